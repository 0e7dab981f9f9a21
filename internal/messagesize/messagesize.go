// Package messagesize has what NATS counts as the size of a message, and recognizes that a message was refused because of its size. Its functions
// have no state.
package messagesize

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Of returns an upper estimate of the bytes that a message takes in a stream.
func Of(subject string, header nats.Header, body int) int {
	const around = 64 // overhead of the server
	return around + len(subject) + OfHeader(header) + body
}

// OfHeader returns the bytes of headers.
func OfHeader(header nats.Header) (size int) {
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// IsTooLarge reports whether the client, the server, or a stream with a bound of its own, refused a message because of its size.
func IsTooLarge(err error) bool {
	const messageSize, headersSize = jetstream.ErrorCode(10054), jetstream.ErrorCode(10097)
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || refused && (refusal.ErrorCode == messageSize || refusal.ErrorCode == headersSize)
}
