package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// requireGivenBack checks that a message went back without a delay, and no more often than once for what held it
// and once for the request for messages that was still open then.
func (f *fixture) requireGivenBack(sequence uint64) {
	f.Helper()
	testkit.Soon(func() bool { return len(f.said.about(sequence)) > 0 })
	said := f.said.about(sequence)
	if len(said) == 0 || len(said) > 2 || slices.ContainsFunc(said, func(word string) bool { return word != sayNak }) {
		f.Errorf("about message %d was said %q, want %q once or twice", sequence, said, sayNak)
	}
}

// Deliveries that are under way when a worker is stopped are finished, and their messages settled before it ends.
func TestStopFinishesDeliveries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sending, release := make(chan struct{}), newGate(t)
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		close(sending)
		if err := release.pass(ctx); err != nil {
			return &sink.Error{Class: sink.Unknown, Err: err}
		}
		return nil
	}
	w := f.start(nil)
	sequence := f.event("payments", "order-1")
	<-sending
	w.cancel()
	f.eventually("no request for events is open", func() bool { return f.consumerInfo().NumWaiting == 0 })
	f.event("payments", "late")
	release.open()
	w.wait()
	f.requireHistory("order-1", "send", "finish")
	f.requireSaid(sequence, "+ACK")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	// A request that was just being made may still have taken the late one. Then it got a nak.
	if left, unacknowledged := f.streamInfo(testNames.Stream).State.Msgs, f.consumerInfo().NumAckPending; left != 1 || unacknowledged != 0 {
		t.Errorf("%d messages are left, %d of them unacknowledged, want 1 and 0", left, unacknowledged)
	}
}

// Events that are not decided when a worker is stopped go back at once: another instance has them without waiting for
// their leases to end.
func TestStopGivesBackWhatIsUndecided(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	deciding := make(chan struct{})
	f.throttle.decideOne = func(ctx context.Context, _ throttle.Request) (throttle.Decision, error) {
		close(deciding)
		<-ctx.Done()
		return throttle.Decision{}, ctx.Err()
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
	f.awaitSettled(10)
	f.requireOutcomes(map[string]int{"sent payments": 10})
}

// A delivery that waits for its next attempt goes back at once, and keeps its slot.
func TestStopGivesBackWhatWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	failed := make(chan struct{})
	f.sink.send = func(context.Context, event.Event, int) error {
		close(failed)
		return &sink.Error{Class: sink.Misconfigured, Err: errScripted} // tried again after some seconds
	}
	w := f.start(nil)
	sequence := f.event("payments", "order-1")
	<-failed
	w.stop()
	f.requireGivenBack(sequence)
	f.requireHistory("order-1", "send", "release")
	f.requireOutcomes(nil)
}

// Deliveries that take longer than the shutdown timeout are cut, and go back at once.
func TestStopCutsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sending := make(chan struct{}, 2)
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		sending <- struct{}{}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errShutdown) {
			t.Errorf("the post was cut because of %v, want %v", context.Cause(ctx), errShutdown)
		}
		return &sink.Error{Class: sink.Unknown, Err: ctx.Err()}
	}
	w := f.start(func(o *Options) { o.Shutdown, o.Concurrency = 50*time.Millisecond, 1 })
	sequences := []uint64{f.event("payments", "0"), f.event("payments", "1")} // the second one waits for its turn
	<-sending
	f.eventually("both are decided about", func() bool { return len(f.throttle.asked()) == 2 })
	w.stop()
	for _, sequence := range sequences {
		f.requireGivenBack(sequence)
	}
	// One was cut, and may be out; the other one never had its turn.
	cut, never := f.journal.about("0"), f.journal.about("1")
	if len(cut) == 1 {
		cut, never = never, cut
	}
	if !slices.Equal(cut, []string{"send", "release in doubt"}) || !slices.Equal(never, []string{"release"}) {
		t.Errorf("happened: %q", f.journal.all())
	}
	f.requireOutcomes(nil)

	f.sink.send = nil
	f.start(nil)
	f.awaitSettled(2)
}

// A post that succeeds just as it is cut is recorded, acknowledged and counted all the same.
func TestStopSettlesWhatWasDeliveredLast(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	sending := make(chan struct{})
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		close(sending)
		<-ctx.Done()
		return nil
	}
	// It is cut when nothing else is left to wait for, so that its acknowledgement is the last thing said.
	w := f.start(func(o *Options) { o.Shutdown = 3 * pollTime / 2 })
	sequence := f.event("payments", "order-1")
	<-sending
	w.stop()
	f.requireHistory("order-1", "send", "finish")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	f.requireSaid(sequence, "+ACK")
	f.requireEmpty()
}

// The time to finish counts from the stop, also while the whole pool is taken.
func TestStopWithAFullHand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	var sequences []uint64
	for i := range poolSize + 1 {
		sequences = append(sequences, f.event("payments", fmt.Sprint(i)))
	}
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		<-ctx.Done()
		return &sink.Error{Class: sink.Unknown, Err: ctx.Err()}
	}
	w := f.start(func(o *Options) { o.Shutdown, o.Concurrency = 50*time.Millisecond, 1 })
	f.eventually("the pool is full", func() bool { return len(f.throttle.asked()) == poolSize+1 })
	sequences = append(sequences, f.publish("notify.payments", "{broken")) // it waits for the pool
	f.eventually("all events are taken", func() bool { return f.consumerInfo().NumAckPending == len(sequences) })
	w.stop()
	f.requireOutcomes(f.metrics.outcomes())
	for _, sequence := range sequences[:poolSize+1] {
		f.requireGivenBack(sequence)
	}
}

// A worker can be stopped while NATS is unavailable, and does not wait for it.
func TestStopWithoutNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
	f.provision(patience)
	const events = poolSize
	release := newGate(t)
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		_ = release.pass(ctx)
		return nil
	}
	for i := range events {
		f.event("payments", fmt.Sprint(i))
	}
	w := f.start(func(o *Options) {
		o.Connection, o.Shutdown = f.connect("nats://"+proxy.Addr), 50*time.Millisecond
	})
	f.eventually("all events are taken", func() bool { return len(f.throttle.asked()) == events })
	proxy.Refuse(true)
	proxy.Cut()
	f.eventually("the connection is lost", func() bool { return w.Ready() != nil })
	release.open()
	f.eventually("all events are posted", func() bool { return len(f.journal.all()) == 2*events })
	w.stop()
	f.requireOutcomes(map[string]int{"sent payments": events}) // they are, and it is recorded
	if left := f.streamInfo(testNames.Stream).State.Msgs; left != events {
		t.Errorf("%d messages are left, want all %d that were not acknowledged", left, events)
	}
}

// A connection that is closed ends a worker with an error.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.start(nil)
	w.o.Connection.Conn.Close()
	select {
	case err := <-w.result:
		if !errors.Is(err, errClosed) {
			t.Errorf("the worker ended with %v, want %v", err, errClosed)
		}
	case <-time.After(patience):
		t.Fatal("the worker does not end")
	}
	if w.Ready() == nil {
		t.Error("it is ready without a connection")
	}
	if _, _, err := w.Prepare(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("preparing gives %v, want %v", err, errClosed)
	}
}
