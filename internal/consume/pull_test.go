package consume

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestNextDemand(t *testing.T) {
	t.Parallel()
	const ackWait = 32 * time.Second
	for name, test := range map[string]struct {
		demand  int
		full    bool
		handing time.Duration
		want    int
	}{
		"all came, and were taken over at once": {32, true, 0, 64},
		"all came, and were taken over quickly": {32, true, time.Second - 1, 64},
		"all came, and were taken over less so": {32, true, time.Second, 32},
		"fewer came":                            {32, false, 0, 32},
		"few came and had to wait":              {64, false, 4*time.Second + 1, 16},
		"at the smallest":                       {smallestDemand, true, ackWait, smallestDemand},
		"just above the smallest":               {smallestDemand + 1, false, ackWait, smallestDemand},
		"at the largest":                        {largestDemand, true, 0, largestDemand},
		"just below the largest":                {largestDemand - 1, true, 0, largestDemand},
	} {
		got := taken{full: test.full, handing: test.handing}
		testkit.Equal(t, nextDemand(test.demand, got, ackWait), test.want, "%s: next demand", name)
	}
}

// leaderless is a consumer about which the server leaves so many questions unanswered, which fail with an error.
type leaderless struct {
	jetstream.Consumer
	silent int
	fails  error
}

func (l *leaderless) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	if l.silent > 0 {
		l.silent--
		return nil, l.fails
	}
	return l.Consumer.Info(ctx)
}

// TestConsumerWithoutALeader has a worker ask for its consumer while a cluster elects a leader. The worker is ready again when it knows
// that the consumer is there.
func TestConsumerWithoutALeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	for i, fails := range []error{context.DeadlineExceeded, &jetstream.APIError{Code: 503, ErrorCode: 10008, Description: "JetStream system temporarily unavailable"}} {
		consumer := &leaderless{w.streams.Layout().Consumer, 2, fails}
		testkit.NoError(t, w.puller.pullFailed(t.Context(), consumer, nats.ErrNoResponders))
		testkit.NoError(t, w.Ready())
		testkit.Equal(t, consumer.silent, 0, "requests without an answer that are left")
		f.log.WantCount(t, i+1, "cannot look for the consumer")
		f.log.WantCount(t, i+1, "looking for the consumer works again")
	}
	f.log.WantCount(t, 0, "consumer not found")
}

// TestAnotherConsumerWithoutALeader has a worker ask for a consumer while nobody answers for another one.
func TestAnotherConsumerWithoutALeader(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	at := w.streams.Layout()
	ctx, cancel := context.WithCancel(t.Context())
	ended, answered := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		_ = w.puller.pullFailed(ctx, &leaderless{at.Room.Consumer, math.MaxInt, context.DeadlineExceeded}, nats.ErrNoResponders) // until the context ends
	}()
	f.eventually("nobody answers", func() bool { return len(f.log.Lines("cannot look for the consumer")) > 0 })
	go func() { answered <- w.puller.pullFailed(ctx, at.Consumer, nats.ErrNoResponders) }()
	select {
	case err := <-answered:
		testkit.NoError(t, err)
	case <-time.After(testkit.Patience):
		t.Error("asking for a consumer: got no answer while nobody answers for another one")
	}
	cancel()
	<-ended
	f.log.WantCount(t, 1, "cannot look for the consumer")
	f.log.WantCount(t, 0, "looking for the consumer works again")
}

// TestRequestsOfLargeMessages receives large messages until another request is due: while the server still sends messages for the first.
func TestRequestsOfLargeMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.publishAsync(firstDemand, func(int) (subject, body string) { return "notify.payments", strings.Repeat("x", 400_000) })
	requests := w.streams.Connection.NewRequests(time.Minute)
	defer requests.Close()
	testkit.NoError(t, w.puller.ask(t.Context(), requests, w.streams.Layout().Consumer, firstDemand))
	got, err := w.puller.receive(t.Context(), requests, received.Source{}, firstDemand/2)
	testkit.NoError(t, err)
	testkit.Check(t, got.full && got.messages >= 4 && got.messages <= 7 && requests.Left() == firstDemand-got.messages,
		"got %+v with %d messages left, want half of the bytes of a request", got, requests.Left())
}

// TestLargeMessagesInHand has large messages follow many small ones. None is settled. The server delivers about as many large ones as fit.
func TestLargeMessagesInHand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	const small, large, size = 2 * largestDemand, 64, 400_000
	f.publishAsync(small, func(int) (subject, body string) { return "notify.payments", "{}" })
	f.publishAsync(large, func(int) (subject, body string) { return "notify.payments", strings.Repeat("x", size) })
	w.puller.inbox.messages = make(chan *received.Message, small+large)
	ctx, cancel := context.WithCancel(t.Context())
	w.puller.pulling.Go(func() {
		_ = w.puller.pull(ctx, received.Source{}, func() jetstream.Consumer { return w.streams.Layout().Consumer })
	})
	delivered := func() int { return testkit.Must(w.streams.Layout().Consumer.Info(t.Context()))(t).NumAckPending }
	f.eventually("the messages in hand are as many as fit", func() bool { return w.puller.hand.Held() > received.MostInHand-2*size })
	f.eventually("one more message waits for its turn", func() bool { return delivered() > len(w.puller.inbox.messages) })
	testkit.AtMost(t, (delivered()-small)*size, 2*received.MostInHand, "bytes of the large messages that the server has delivered")
	cancel()
	w.puller.pulling.Wait()
}
