package consume

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// forgetful is a consumer of which the server tells nothing for so many questions.
type forgetful struct {
	jetstream.Consumer
	infos chan struct{} // has an element for each question about the consumer
	dumb  int           // how many of these questions have no answer
}

func (c *forgetful) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	c.infos <- struct{}{}
	if c.dumb > 0 {
		c.dumb--
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.Consumer.Info(ctx)
}

// TestConsumerAskedForAfterReconnect loses the connection with a question about the consumer. The worker asks anew when the connection is
// there again, and does not report the consumer as absent.
func TestConsumerAskedForAfterReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	consumer := &forgetful{Consumer: w.streams.Layout().Consumer, infos: make(chan struct{}), dumb: 1}
	ended := make(chan error, 1)
	go func() { ended <- w.puller.pullFailed(t.Context(), consumer, nats.ErrNoResponders) }()
	receive(t, "the first question", consumer.infos)
	testkit.NoError(t, w.streams.Connection.Conn.ForceReconnect())
	receive(t, "the question after the reconnect", consumer.infos)
	testkit.NoError(t, receive(t, "the end of the questions", ended))
	testkit.NoError(t, w.Ready())
	f.log.WantCount(t, 0, "consumer not found")
	f.log.WantCount(t, 0, "nats does not answer")
}
