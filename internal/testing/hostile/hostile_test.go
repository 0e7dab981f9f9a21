package hostile

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// answered is a publish with an answer: nil for stored. silent has none.
type answered struct {
	jetstream.PubAckFuture

	ok  chan *jetstream.PubAck
	err chan error
}

func (a answered) Ok() <-chan *jetstream.PubAck { return a.ok }

func (a answered) Err() <-chan error { return a.err }

func silent() answered {
	return answered{ok: make(chan *jetstream.PubAck, 1), err: make(chan error, 1)}
}

// answering answers the first publish of many never, and the others at once.
type answering struct {
	jetstream.JetStream

	published int
}

func (s *answering) PublishMsgAsync(*nats.Msg, ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	s.published++
	future := silent()
	switch s.published % atOnce {
	case 1:
	case 2:
		future.err <- errors.New("maximum bytes exceeded")
	case 3:
		future.err <- jetstream.ErrAsyncPublishTimeout
	default:
		future.ok <- &jetstream.PubAck{}
	}
	return future, nil
}

// TestPatience compares the patience with that of tests, which only tests may import.
func TestPatience(t *testing.T) { testkit.Equal(t, patience, testkit.Patience, "patience") }

func TestAnswersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Producer{JetStream: &answering{}, Subject: "notify.payments.alerts", Patience: time.Second}
		testkit.NoError(t, p.Flood(t.Context(), 2*atOnce))
		testkit.Equal(t, p.Stored(), 2*atOnce-6, "stored")
		testkit.Equal(t, p.Refused(), 2, "refused")
		testkit.Equal(t, p.Unanswered(), 4, "unanswered")
	})
}
