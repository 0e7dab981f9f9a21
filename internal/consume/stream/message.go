package stream

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Size returns an upper estimate of the bytes that a message takes in a stream.
func Size(subject string, header nats.Header, body int) int {
	const around = 64 // overhead of the server
	size := around + len(subject) + body
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// IsTooLarge reports whether the client, or a stream with a bound of its own, refused a message because of its size.
func IsTooLarge(err error) bool {
	const messageSize = jetstream.ErrorCode(10054)
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || refused && refusal.ErrorCode == messageSize
}
