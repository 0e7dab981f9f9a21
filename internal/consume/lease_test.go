package consume

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// A post that takes several acknowledgement waits keeps its message: it is delivered once, and both leases are renewed.
func TestSlowDeliveryKeepsItsLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release := newGate(t)
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		if err := release.pass(ctx); err != nil {
			return &sink.Error{Class: sink.Unknown, Err: err}
		}
		return nil
	}
	const ackWait = 1500 * time.Millisecond
	f.start(func(o *Options) { o.AckWait, o.SendTimeout = ackWait, ackWait/2 })
	sequence := f.event("payments", "order-1")
	start := time.Now()
	f.eventually("the leases are renewed, for longer than two of them last", func() bool {
		return f.journal.count("extend order-1") >= 7 && time.Since(start) > 2*ackWait
	})
	if delivered := f.consumerInfo().Delivered.Consumer; delivered != 1 {
		t.Errorf("the message was delivered %d times while it was being posted, want once", delivered)
	}
	release.open()
	f.awaitSettled(1)
	f.requireSaid(sequence, "+ACK")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	if f.journal.count("send order-1") != 1 || f.metrics.Get("redelivered") != 0 {
		t.Errorf("happened: %q", f.journal.all())
	}
}

// A delivery whose grant is someone else's by now is not posted, and nothing is said about its message.
func TestGrantLostToSomeoneElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 4 * time.Second // a sixth of it has to do for an answer
	f.provision(ackWait)
	var asked atomic.Int32
	f.throttle.answers(func(c throttle.Request) throttle.Decision {
		if asked.Add(1) > 1 {
			return throttle.Decision{Verdict: throttle.Done}
		}
		return throttle.Decision{Verdict: throttle.Admitted, Grant: &fakeGrant{id: shown(c), journal: f.journal, extend: func() bool { return false }}}
	})
	f.sink.send = func(context.Context, event.Event, int) error {
		t.Error("it was posted")
		return nil
	}
	// The lease never lasts for a post, so it is renewed before one.
	sequence := f.event("payments", "order-1")
	f.start(func(o *Options) { o.AckWait, o.SendTimeout = ackWait, time.Minute })
	f.eventually("it comes again", func() bool { return asked.Load() > 1 })
	f.requireEmpty()
	f.requireSaid(sequence, "+ACK")
	f.requireHistory("order-1", "extend")
	f.requireOutcomes(nil) // whoever delivered it has counted it
}

// taken is a message of a worker that does not run.
func (f *fixture) taken(w *Worker, ackWait time.Duration) *message {
	f.Helper()
	asked := time.Now()
	msg := testkit.Must(f.fetch(w))(f)
	return testkit.Must(newMessage(msg, source{}, asked, w.conn.Stats().Reconnects, ackWait))(f)
}

func (f *fixture) fetch(w *Worker) (jetstream.Msg, error) {
	return w.topology.Load().consumer.Next(jetstream.FetchMaxWait(patience))
}

// prepared is a worker that can settle and does not run.
func (f *fixture) prepared(change func(*Options)) *Worker {
	f.Helper()
	w := f.newWorker(change)
	if _, _, err := w.Prepare(f.Context()); err != nil {
		f.Fatal(err)
	}
	w.settler = newSettler(w.conn, f.metrics, nil, nil, func([]*message) {}, func(...settlement) {}, w.ackWait, nil)
	f.Cleanup(func() { w.settler.close(context.Background()) })
	return w
}

// Only the server's confirmation moves the deadline: not the request, and not the hope for a reply that is lost.
func TestDeadlineMovesOnConfirmation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
	const ackWait = 10 * time.Second // a sixth of it has to do for an answer
	w := f.prepared(func(o *Options) {
		o.Connection, o.AckWait = f.connect("nats://"+proxy.Addr), ackWait
	})
	f.event("payments", "order-1")
	m := f.taken(w, ackWait)

	before := m.deadline
	proxy.DropReplies(true)
	if err := w.extend(t.Context(), m); err == nil {
		t.Error("an extension whose reply was lost gives no error")
	}
	if !m.deadline.Equal(before) {
		t.Errorf("the deadline moved by %v without a confirmation", m.deadline.Sub(before))
	}
	proxy.DropReplies(false)
	asked := time.Now()
	testkit.NoError(t, w.extend(t.Context(), m))
	if m.deadline.Before(asked.Add(ackWait)) || m.deadline.After(time.Now().Add(ackWait)) {
		t.Errorf("the deadline moved to %v after it was asked for, want %v", m.deadline.Sub(asked), ackWait)
	}

	m.deadline = time.Now().Add(-time.Millisecond)
	before = m.deadline
	if err := w.extend(t.Context(), m); err == nil || !m.deadline.Equal(before) {
		t.Errorf("a lease that has run out was extended: %v", err)
	}
}

// Once the lease may have run out a message gets no nak and is not terminated, since both would change what the
// server does with the next delivery. A late acknowledgement settles it.
func TestAfterTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 500 * time.Millisecond
	w := f.prepared(func(o *Options) { o.AckWait = ackWait })
	sequence := f.event("payments", "order-1")
	late := f.taken(w, ackWait)
	current := f.taken(w, ackWait) // the server has delivered it again
	if late.left() > 0 || current.delivered != 2 {
		t.Fatalf("the lease lasts for another %v, delivery %d", late.left(), current.delivered)
	}

	w.nak(late, 0)
	w.postpone(t.Context(), &delivery{candidate: candidate{message: late}, grant: &fakeGrant{journal: f.journal}}, 0)
	w.terminate(late, event.NewFault(event.ReasonBadJSON, "of no use", nil))
	f.awaitSettled(1)
	f.requireSaid(sequence, "+ACK")
	f.requireOutcomes(map[string]int{"dead ": 1})
	if happened := f.journal.all(); len(happened) > 0 {
		t.Errorf("a grant that may be someone else's was touched: %q", happened)
	}

	// The other one who has the message is not harmed by it.
	w.settler.settle(settlement{message: current, outcome: Dead})
	f.event("payments", "another")
	w.settler.settle(settlement{message: f.taken(w, ackWait), outcome: Sent})
	f.awaitSettled(2)
	f.requireSaid(sequence, "+ACK", "+ACK")
	f.requireOutcomes(map[string]int{"dead ": 1, "sent ": 1})
}

// A post is not begun on a lease that could not be renewed and may end before the post does.
func TestNoPostWithoutALease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
	const ackWait = 3 * time.Second
	w := f.prepared(func(o *Options) {
		o.Connection, o.AckWait, o.SendTimeout = f.connect("nats://"+proxy.Addr), ackWait, time.Minute
	})
	w.sink, w.throttle, w.leases = f.sink, f.throttle, newLeaseRenewer(w)
	f.event("payments", "order-1")
	d := &delivery{
		candidate: candidate{message: f.taken(w, ackWait)}, out: sink.Delivery{Event: event.Event{ID: "order-1"}},
		grant: &fakeGrant{id: "order-1", journal: f.journal},
	}
	proxy.DropReplies(true)
	if _, _, attempted := w.attempt(t.Context(), d); attempted {
		t.Error("it was posted")
	}
	f.requireHistory("order-1")
	proxy.DropReplies(false)
	if _, failure, attempted := w.attempt(t.Context(), d); !attempted || failure != nil {
		t.Errorf("with the lease renewed it was not posted: %v", failure)
	}
	f.requireHistory("order-1", "extend", "send")
}
