package consume

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// forgetful is a consumer whose server does not answer requests: it was restarted since.
type forgetful struct {
	jetstream.Consumer
	asked chan chan jetstream.Msg // has the messages of each request
	infos chan struct{}           // has an element for each question about the consumer
	dumb  int                     // how many of these questions have no answer
}

// openBatch is a request for messages without an end.
type openBatch struct{ messages chan jetstream.Msg }

func (b openBatch) Messages() <-chan jetstream.Msg { return b.messages }
func (b openBatch) Error() error                   { return nil }

func (c *forgetful) Fetch(int, ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	batch := openBatch{make(chan jetstream.Msg, 1)}
	c.asked <- batch.messages
	return batch, nil
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

// TestPullAfterReconnect loses the connection while a request for messages is open. The worker asks anew when the connection is there
// again, and still takes what comes of the first request.
func TestPullAfterReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.event("payments", "order-1")
	late := testkit.Must(f.fetch(w))(t)
	consumer := &forgetful{Consumer: w.streams.Layout().Consumer, asked: make(chan chan jetstream.Msg)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.puller.pull(ctx, source{}, func() jetstream.Consumer { return consumer }) }()

	first := receive(t, "the first request", consumer.asked)
	testkit.NoError(t, w.streams.Connection.Conn.ForceReconnect())
	second := receive(t, "the request after the reconnect", consumer.asked)
	first <- late
	testkit.Equal(t, receive(t, "the message of the first request", w.puller.inbox.messages).meta.Sequence.Stream, 1, "sequence of the message")

	cancel()
	close(first)
	close(second)
	testkit.Equal(t, receive(t, "the end of pulling", ended), context.Canceled, "error of pulling")
	w.puller.pulling.Wait()
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
