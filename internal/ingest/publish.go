package ingest

import (
	"errors"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/oplog"
)

// Publisher is the part of JetStream that this package uses. Each acknowledgement or failure arrives within the timeout of the publisher.
// Any number of goroutines may publish at once; their messages share the connection.
type Publisher interface {
	PublishMsgAsync(m *nats.Msg, options ...jetstream.PublishOpt) (jetstream.PubAckFuture, error)
}

// The pauses that clients are asked to make.
const (
	busyPause        = time.Second
	unavailablePause = 2 * time.Second
	fullPause        = 10 * time.Second // workers must make room
)

// store publishes messages and tracks whether that works.
type store struct {
	publisher Publisher
	available func() error
	metrics   Metrics
	storing   *oplog.Condition
}

// result is the result of one message: ack or refusal.
type result struct {
	ack     *jetstream.PubAck
	refusal *problem
}

// publish stores messages and waits for all of them. It does not change them. Once JetStream may not store a message, the messages behind it
// are not published: each of them would wait too.
func (s *store) publish(messages []*nats.Msg) []result {
	results := make([]result, len(messages))
	futures := make([]jetstream.PubAckFuture, len(messages))
	began := time.Now()
	var failed *problem
	for i, m := range messages {
		if failed == nil {
			futures[i], results[i].refusal = s.begin(m)
		} else {
			results[i].refusal = failed
		}
		if refusal := results[i].refusal; refusal != nil && !refusal.isFinal() {
			failed = refusal
		}
	}
	for i, future := range futures {
		if future != nil {
			results[i] = s.await(future)
		}
	}
	s.metrics.Published(time.Since(began))
	return results
}

// begin publishes a message. Await returns the result.
func (s *store) begin(m *nats.Msg) (jetstream.PubAckFuture, *problem) {
	if err := s.available(); err != nil {
		return nil, s.failed(err)
	}
	future, err := s.publisher.PublishMsgAsync(m)
	if err != nil {
		return nil, s.failed(err)
	}
	return future, nil
}

// await waits until JetStream has acknowledged a message or the publish has failed.
func (s *store) await(future jetstream.PubAckFuture) result {
	select {
	case ack := <-future.Ok():
		s.storing.Note(nil)
		return result{ack: ack}
	case err := <-future.Err():
		return result{refusal: s.failed(err)}
	}
}

// Codes of the server's errors, as in its errors.json.
const (
	codeAccountExceeded       = 10002
	codeInsufficientResources = 10023
	codeStorageExceeded       = 10047
	codeMessageTooLarge       = 10054
	codeStoreFailed           = 10077 // the stream has reached its bounds or the disk fails
)

// failed converts an error of a publish into an answer. It logs the first error of an outage.
func (s *store) failed(err error) *problem {
	code := jetstream.ErrorCode(0)
	if answer, is := errors.AsType[*jetstream.APIError](err); is {
		code = answer.ErrorCode
	}
	if code == codeMessageTooLarge || errors.Is(err, nats.ErrMaxPayload) {
		return newProblem(http.StatusRequestEntityTooLarge, "the event is larger than NATS takes")
	}
	s.storing.Note(err)
	switch code {
	case codeAccountExceeded, codeInsufficientResources, codeStorageExceeded, codeStoreFailed:
		return newProblem(http.StatusServiceUnavailable, "the stream of events or its storage is full").later(fullPause)
	}
	return newProblem(http.StatusServiceUnavailable, "NATS is unavailable; the event may have been stored").later(unavailablePause)
}
