package consume

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// requireGivenBack wants one nak without a delay, or a second one: a request that was still open may get the message again.
func (f *fixture) requireGivenBack(sequence uint64) {
	f.Helper()
	testkit.Soon(func() bool { return len(f.said.about(sequence)) > 0 })
	said := f.said.about(sequence)
	testkit.Check(f, len(said) != 0 && len(said) <= 2 && !slices.ContainsFunc(said, func(word string) bool { return word != sayNak }),
		"words about message %d: got %q, want %q once or twice", sequence, said, sayNak)
}

// TestStopFinishesDeliveries stops a worker during a post. The worker settles the message before it ends.
func TestStopFinishesDeliveries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release := newGate(t)
	f.holdPosts(release)
	w := f.start(nil)
	sequence := f.event("payments", "order-1")
	f.eventually("the post begins", func() bool { return f.sink.mostAtOnce() == 1 })
	w.cancel()
	f.eventually("no request for events is open", func() bool { return f.consumerInfo().NumWaiting == 0 })
	f.event("payments", "late")
	release.open()
	w.wait()
	f.requireHistory("order-1", "send", "finish")
	f.requireSaid(sequence, "+ACK")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	// The last request may still have taken the late event. Then the event got a nak.
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, 1, "messages in the stream")
	testkit.Equal(t, f.consumerInfo().NumAckPending, 0, "unacknowledged messages")
}

// TestStopGivesBackWhatIsUndecided stops a worker during a decision. The events go back at once, before the end of their leases.
func TestStopGivesBackWhatIsUndecided(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	deciding := make(chan struct{})
	f.throttle.decideOne = func(ctx context.Context, _ store.Request) (store.Decision, error) {
		close(deciding)
		<-ctx.Done()
		return store.Decision{}, ctx.Err()
	}
	w := f.start(nil)
	sequences := []uint64{f.event("payments", "0")}
	<-deciding
	for i := 1; i < 10; i++ {
		sequences = append(sequences, f.event("payments", fmt.Sprint(i)))
	}
	f.eventually("all events are taken", func() bool { return f.consumerInfo().NumAckPending == 10 })
	w.stop()
	for _, sequence := range sequences {
		f.requireSaid(sequence, sayNak)
	}

	f.throttle.decideOne = nil
	f.start(nil)
	f.awaitOutcomes(map[string]int{"sent payments": 10})
}

// TestStopSettlesWhatWasDeliveredLast has a post succeed at the cut. The event is recorded, acknowledged and counted.
func TestStopSettlesWhatWasDeliveredLast(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sending := make(chan struct{})
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		close(sending)
		<-ctx.Done()
		return nil
	}
	// The cut comes after the end of all requests, so the ack of the post is the last word.
	w := f.start(func(o *setup) { o.Shutdown = 3 * pollTime / 2 })
	sequence := f.event("payments", "order-1")
	<-sending
	w.stop()
	f.requireHistory("order-1", "send", "finish")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	f.requireSaid(sequence, "+ACK")
	f.requireEmpty()
}

// TestStopWithAFullHand stops a worker whose pool is full. The shutdown timeout counts from the stop. The worker cuts the post under way,
// and gives all events back at once.
func TestStopWithAFullHand(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	const events = stage.PoolSize + 1
	ids := f.numbered("payments", events)
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		<-ctx.Done()
		testkit.Fails(t, "cause of the cut", context.Cause(ctx), errShutdown)
		return &sink.Error{Class: sink.Unknown, Err: ctx.Err()}
	}
	w := f.start(func(o *setup) { o.Shutdown, o.Concurrency = 50*time.Millisecond, 1 })
	f.eventually("the pool is full", func() bool { return len(f.throttle.asked()) == events })
	waiting := f.event("payments", "waits for the pool")
	f.eventually("all events are taken", func() bool { return f.consumerInfo().NumAckPending == events+1 })
	w.stop()
	f.requireGivenBack(waiting)
	posts := f.calls.posted("")
	testkit.Equal(t, len(posts), 1, "posts")
	for i, id := range ids {
		f.requireGivenBack(uint64(i + 1))
		want := []string{"release"} // the post never began
		if slices.Contains(posts, id) {
			want = []string{"send", "release in doubt"}
		}
		history := slices.DeleteFunc(f.calls.about(id), func(call string) bool { return call == "extend" }) // on a slow machine
		testkit.EqualSlices(t, history, want, "calls about %s", id)
	}
	testkit.Equal(t, f.metrics.Get("sent payments"), 0, "sent events")

	f.sink.send = nil
	f.start(nil)
	f.awaitSettled(events + 1)
}

// TestStopWithoutNATS stops a worker while NATS is unavailable.
func TestStopWithoutNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
	f.provision(usualAckWait)
	const events = stage.PoolSize
	release := newGate(t)
	f.holdPosts(release)
	f.numbered("payments", events)
	w := f.start(func(o *setup) {
		o.client.Connection, o.Shutdown = f.connect("nats://"+proxy.Addr), 50*time.Millisecond
	})
	f.eventually("all events are taken", func() bool { return len(f.throttle.asked()) == events })
	proxy.Refuse(true)
	f.eventually("the connection is lost", func() bool { return w.Ready() != nil })
	release.open()
	f.eventually("all events are posted", func() bool { return len(f.calls.all()) == 2*events })
	w.stop()
	f.requireOutcomes(map[string]int{"sent payments": events})
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, events, "messages without an ack")
}

func TestClosedConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.start(nil)
	w.streams.Connection.Conn.Close()
	testkit.Fails(t, "error of the worker", receive(t, "the end of the worker", w.result), stream.ErrClosed)
	testkit.Check(t, w.Ready() != nil, "Ready without a connection: got no error, want one")
	testkit.Fails(t, "error of Find", f.newClient(stream.Options{Connection: w.streams.Connection, Logger: f.log.Logger()}).Find(t.Context()), stream.ErrClosed)
}
