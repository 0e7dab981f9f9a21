package consume

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestNextDemand(t *testing.T) {
	t.Parallel()
	const ackWait = 32 * time.Second
	for name, test := range map[string]struct {
		demand, received int
		handing          time.Duration
		want             int
	}{
		"all came, and were taken over at once": {64, 64, 0, 128},
		"all came, and were taken over quickly": {64, 64, time.Second - 1, 128},
		"all came, and were taken over less so": {64, 64, time.Second, 64},
		"fewer came":                            {64, 63, 0, 64},
		"few came and had to wait":              {64, 3, 4*time.Second + 1, 16},
		"at the smallest":                       {smallestFetch, smallestFetch, ackWait, smallestFetch},
		"just above the smallest":               {smallestFetch + 1, 1, ackWait, smallestFetch},
		"at the largest":                        {largestFetch, largestFetch, 0, largestFetch},
		"just below the largest":                {largestFetch - 1, largestFetch - 1, 0, largestFetch},
	} {
		testkit.Equal(t, nextDemand(test.demand, test.received, test.handing, ackWait), test.want, "%s: next demand", name)
	}
}

// leaderless is a consumer of which the server tells nothing for so many requests.
type leaderless struct {
	jetstream.Consumer
	silent int
}

func (l *leaderless) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	if l.silent > 0 {
		l.silent--
		return nil, context.DeadlineExceeded
	}
	return l.Consumer.Info(ctx)
}

// TestConsumerWithoutALeader has a worker ask for its consumer while a cluster elects a leader. The worker is ready again when it knows
// that the consumer is there.
func TestConsumerWithoutALeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	consumer := &leaderless{w.topology.Load().consumer, 2}
	testkit.NoError(t, w.pullFailed(t.Context(), consumer, nats.ErrNoResponders))
	testkit.NoError(t, w.Ready())
	testkit.Equal(t, consumer.silent, 0, "requests without an answer that are left")
	f.log.WantCount(t, 1, "nats does not answer whether the consumer exists")
	f.log.WantCount(t, 1, "nats answers again whether the consumer exists")
	f.log.WantCount(t, 0, "the consumer is not there")
}
