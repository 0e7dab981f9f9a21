package consume

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestGrantLostToSomeoneElse has another worker take the grant before the post.
func TestGrantLostToSomeoneElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 4 * time.Second // the server has a sixth of ackWait to answer
	f.provision(ackWait)
	var asked atomic.Int32
	f.throttle.answers(func(c store.Request) store.Decision {
		if asked.Add(1) > 1 {
			return store.Decision{Verdict: store.Done}
		}
		return store.Decision{Verdict: store.Admitted, Grant: &fakeGrant{id: shown(c), calls: f.calls, extend: func() bool { return false }}}
	})
	f.sink.send = func(context.Context, event.Event, int) error {
		t.Error("got a post, want none")
		return nil
	}
	// The lease is shorter than a post, so the worker renews the lease before the post.
	sequence := f.event("payments", "order-1")
	f.start(func(o *setup) { o.client.AckWait, o.SendTimeout = ackWait, ackWait })
	f.eventually("it comes again", func() bool { return asked.Load() > 1 })
	f.requireEmpty()
	f.requireSaid(sequence, "+ACK")
	// Redis refuses the refund that may follow, since another worker has the grant.
	history := slices.DeleteFunc(f.calls.about("order-1"), func(call string) bool { return call == "refund" })
	testkit.EqualSlices(t, history, []string{"extend"}, "calls about the event")
	f.requireOutcomes(nil)
}

// TestWaitForThePost has a delivery wait for its post. Redis knows of the wait until the post begins. If Redis cannot learn that the wait is
// over, or another worker has the grant, the worker does not post, and the event comes again.
func TestWaitForThePost(t *testing.T) {
	t.Parallel()
	type begin struct {
		held    bool
		err     error
		history []string
	}
	tests := map[string]begin{
		"the post begins":       {held: true, history: []string{"send", "finish"}},
		"Redis does not answer": {err: errScripted, history: []string{"release", "send", "finish"}},
		"another has the grant": {history: []string{"send", "finish"}},
	}
	each(t, tests, func(t *testing.T, f *fixture, test begin) {
		const ackWait = 4 * time.Second // the server has a sixth of ackWait to answer
		f.provision(ackWait)
		var begun atomic.Int32
		grant := f.throttle.grant(store.Request{ID: "order-1"})
		grant.begin = func() (bool, error) {
			if begun.Add(1) > 1 {
				return true, nil
			}
			testkit.Equal(t, f.calls.count("send order-1"), 0, "posts before the wait is over")
			return test.held, test.err
		}
		f.throttle.answers(func(store.Request) store.Decision { return store.Decision{Verdict: store.Admitted, Grant: grant} })
		f.pacer.reserve = func(string, time.Duration) post { return post{wait: 3 * shortWait} }
		f.sink.send = func(context.Context, event.Event, int) error {
			testkit.Equal(t, grant.waits.Load(), false, "Redis knows of a wait during the post")
			return nil
		}
		f.event("payments", "order-1")
		f.start(func(o *setup) { o.client.AckWait, o.SendTimeout = ackWait, ackWait/4 })
		f.eventually("Redis knows of the wait", grant.waited.Load)
		f.awaitSettled(1)
		history := slices.DeleteFunc(f.calls.about("order-1"), func(call string) bool {
			refused := !test.held && test.err == nil && call == "refund" // by Redis, since another has the grant
			return call == "extend" || refused                           // it is extended on a slow machine
		})
		testkit.EqualSlices(t, history, test.history, "calls about the event")
	})
}

// taken fetches the next message of a worker that does not run.
func (f *fixture) taken(w *Worker, ackWait time.Duration) *received.Message {
	f.Helper()
	requests := w.streams.Connection.NewRequests(patience)
	defer requests.Close()
	testkit.NoError(f, requests.Ask(w.streams.Layout().Consumer, 1, patience))
	msg, request, err := requests.Receive(patience)
	testkit.NoError(f, err)
	return testkit.Must(received.NewMessage(msg, &received.PullRequest{Request: request}, ackWait))(f)
}

// prepared makes a worker that settles messages, but does not run.
func (f *fixture) prepared(change func(*setup)) *Worker {
	f.Helper()
	w := f.newWorker(change)
	f.Cleanup(func() { w.settler.Close(context.Background()) })
	return w
}

func TestDeadlineMovesOnConfirmation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
	const ackWait = 10 * time.Second // the server has a sixth of ackWait to answer
	w := f.prepared(func(o *setup) {
		o.client.Connection, o.client.AckWait = f.connect("nats://"+proxy.Addr), ackWait
	})
	f.event("payments", "order-1")
	m := f.taken(w, ackWait)

	before := m.Lease.Ends()
	proxy.DropReplies(true)
	testkit.Fails(t, "extension without a reply", w.settler.Extend(t.Context(), m), nil)
	testkit.Check(t, m.Lease.Ends().Equal(before), "deadline without a confirmation: got %v later, want no change", m.Lease.Ends().Sub(before))
	proxy.DropReplies(false)
	asked := time.Now()
	testkit.NoError(t, w.settler.Extend(t.Context(), m))
	testkit.Check(t, !m.Lease.Ends().Before(asked.Add(ackWait)) && !m.Lease.Ends().After(time.Now().Add(ackWait)),
		"deadline: got %v after the request, want %v", m.Lease.Ends().Sub(asked), ackWait)

	m.Lease.Extend(time.Now(), -time.Millisecond)
	before = m.Lease.Ends()
	err := w.settler.Extend(t.Context(), m)
	testkit.Check(t, err != nil && m.Lease.Ends().Equal(before), "extension after the lease: got %v, want an error and no change", err)
}

// TestAfterTheLease settles a message after its lease. The worker sends neither a nak nor a term, because both would change the next
// delivery. A late ack settles the message.
func TestAfterTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 500 * time.Millisecond
	w := f.prepared(func(o *setup) { o.client.AckWait = ackWait })
	sequence := f.event("payments", "order-1")
	late := f.taken(w, ackWait)
	current := f.taken(w, ackWait) // the redelivery
	testkit.Require(t, late.Lease.Left() <= 0 && current.Meta.NumDelivered == 2,
		"got %v left of the lease and delivery %d, want none left and delivery 2", late.Lease.Left(), current.Meta.NumDelivered)

	w.settler.Nak(late, 0)
	w.decider.deliverer.postpone(lifeOf(t.Context()), &delivery{message: late, admission: outcome.Admission{Grant: &fakeGrant{calls: f.calls}}}, 0)
	w.settler.Terminate(late, event.NewFault(event.ReasonBadJSON, "of no use"), nil)
	f.awaitSettled(1)
	f.requireSaid(sequence, "+ACK")
	f.requireOutcomes(map[string]int{"dead ": 1})
	testkit.EqualSlices(t, f.calls.all(), nil, "calls of a grant that another worker may have")

	// The owner of the redelivery can still settle the message.
	w.settler.Settle(outcome.Settlement{Message: current, Outcome: journal.Dead})
	f.event("payments", "another")
	w.settler.Settle(outcome.Settlement{Message: f.taken(w, ackWait), Outcome: journal.Sent})
	f.awaitSettled(2)
	f.requireSaid(sequence, "+ACK", "+ACK")
	f.requireOutcomes(map[string]int{"dead ": 1, "sent ": 1})
}

// TestEndedBeforeItsRedelivery has a message delivered again before its late ack arrives. The event has ended, so nobody decides about it again.
func TestEndedBeforeItsRedelivery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 500 * time.Millisecond
	w := f.prepared(func(o *setup) { o.client.AckWait = ackWait })
	sequence := f.event("payments", "order-1")
	late, redelivered := f.taken(w, ackWait), f.taken(w, patience)
	w.settler.Settle(outcome.Settlement{Message: late, Outcome: journal.Dropped})
	f.awaitSettled(1)
	candidates := w.decider.intake.decode(lifeOf(t.Context()), []*received.Message{redelivered})
	testkit.Equal(t, len(candidates), 0, "events to decide about")
	f.event("payments", "another")
	w.settler.Settle(outcome.Settlement{Message: f.taken(w, ackWait), Outcome: journal.Sent})
	f.awaitSettled(2)
	f.requireSaid(sequence, "+ACK", "+ACK")
	f.requireOutcomes(map[string]int{"dropped ": 1, "sent ": 1})
}

// TestEndedByAnotherWorker has the late ack of another worker arrive while a worker decides about the redelivered message. Without the message,
// the event is not posted.
func TestEndedByAnotherWorker(t *testing.T) {
	t.Parallel()
	type endedCase struct {
		ends    bool
		known   store.Decision // what Redis knew of the event
		finding sink.Finding
		history []string
	}
	anew, reclaimed := store.Decision{Verdict: store.Admitted}, store.Decision{Verdict: store.Reclaimed}
	inDoubt := store.Decision{Verdict: store.Reclaimed, InDoubt: true}
	each(t, map[string]endedCase{
		"it has not ended":                          {false, anew, absent, []string{"find", "send", "finish"}},
		"it ended without a post":                   {true, anew, absent, []string{"find", "refund"}},
		"it ended with a post":                      {true, anew, isPosted, []string{"find", keeps, "finish"}},
		"nobody can look for a post":                {true, anew, unsearchable, []string{"find", "refund"}},
		"it was admitted before, and ended":         {true, reclaimed, absent, []string{"release"}},
		"it was admitted before, and has not ended": {false, reclaimed, absent, []string{"send", "finish"}},
		"nobody can look for an attempt":            {true, inDoubt, unsearchable, []string{"find", "release in doubt"}},
	}, func(t *testing.T, f *fixture, test endedCase) {
		found := f.provision(usualAckWait)
		sequence := f.event("payments", "order-1")
		f.deliverOnce(found)
		f.sink.find = finds(test.finding)
		f.throttle.answers(func(c store.Request) store.Decision {
			if test.ends {
				testkit.NoError(f, found.Stream.DeleteMsg(f.Context(), sequence))
			}
			decision := f.throttle.admit(c)
			decision.Verdict, decision.InDoubt = test.known.Verdict, test.known.InDoubt
			return decision
		})
		w := f.start(nil)
		f.eventually("it is under way no more", func() bool {
			return len(f.calls.about("order-1")) >= len(test.history) && w.decider.pool.Taken() == 0
		})
		f.requireHistory("order-1", test.history...)
		f.requireEmpty()
	})
}

// TestEndedByAnotherWorkerWhileItWaits has the late ack of another worker arrive while the redelivered event waits for its post, or before it goes to
// its channel's queue. Nobody gets the message again, so the slots return.
func TestEndedByAnotherWorkerWhileItWaits(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"Redis does not answer at the post": false, "its channel is paused": true}, func(t *testing.T, f *fixture, paused bool) {
		found := f.provision(usualAckWait)
		sequence := f.event("payments", "order-1")
		f.deliverOnce(found)
		f.sink.find = finds(absent)
		if !paused {
			f.pacer.reserve = func(string, time.Duration) post { return post{wait: 3 * shortWait} }
		}
		f.throttle.answers(func(c store.Request) store.Decision {
			testkit.NoError(f, found.Stream.DeleteMsg(f.Context(), sequence))
			if paused {
				f.pacer.Pause(t.Context(), "payments", time.Hour)
			}
			grant := f.throttle.grant(c)
			grant.begin = func() (bool, error) { return false, errScripted }
			return store.Decision{Verdict: store.Admitted, Grant: grant}
		})
		w := f.start(nil)
		f.eventually("its slots return", func() bool { return f.calls.count("refund order-1") == 1 && w.decider.pool.Taken() == 0 })
		testkit.Equal(t, len(f.calls.posted("")), 0, "posts")
		testkit.Equal(t, f.calls.count("release order-1"), 0, "released leases")
		f.requireRoomEmpty()
	})
}

// TestSilentStreamAtAReturn has the stream give no answer while a redelivered event is returned. The event keeps its lease until the stream
// says whether another worker has ended the event.
func TestSilentStreamAtAReturn(t *testing.T) {
	t.Parallel()
	each(t, map[string]silentCase{
		"another worker has ended it":             {ended: true},
		"nobody has ended it":                     {},
		"another worker has ended it, in a pause": {ended: true, paused: true},
	}, testSilentStreamAtAReturn)
}

type silentCase struct {
	ended  bool
	paused bool // the event would go to its channel's queue
}

func testSilentStreamAtAReturn(t *testing.T, f *fixture, test silentCase) {
	const ackWait = 10 * time.Second // the stream has a sixth of ackWait to answer
	found := f.provision(ackWait)
	sequence := f.event("payments", "order-1")
	f.deliverOnce(found)
	proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
	var silent atomic.Bool // has it been?
	var asked atomic.Int64 // since then
	_ = testkit.Must(f.js.Conn().Subscribe("$JS.API.STREAM.MSG.GET.>", func(*nats.Msg) {
		if silent.Load() {
			proxy.DropReplies(asked.Add(1) == 1)
		}
	}))(t)
	silence := func() {
		silent.Store(true)
		proxy.DropReplies(true)
		if test.ended {
			testkit.NoError(f, found.Stream.DeleteMsg(f.Context(), sequence))
		}
	}
	f.sink.find = finds(absent)
	f.pacer.reserve = func(string, time.Duration) post {
		if test.paused && !silent.Load() {
			silence()
			return post{wait: time.Hour, tooLate: true}
		}
		return post{wait: 3 * shortWait}
	}
	f.throttle.answers(func(c store.Request) store.Decision {
		grant := f.throttle.grant(c)
		grant.begin = func() (bool, error) {
			if silent.Load() {
				return true, nil
			}
			silence()
			return false, errScripted
		}
		return store.Decision{Verdict: store.Admitted, Grant: grant}
	})
	f.start(func(o *setup) { o.client.Connection, o.client.AckWait = f.connect("nats://"+proxy.Addr), ackWait })
	last, want := "finish order-1", []string{"find", "release", "find", "send", "finish"}
	if test.ended {
		last, want = "refund order-1", []string{"find", "refund"}
	}
	f.eventually("it is under way no more", func() bool { return f.calls.count(last) == 1 })
	f.requireHistory("order-1", want...)
	n := asked.Load()
	testkit.Check(t, n >= 2, "the stream was asked %d times, want at least twice", n)
	f.requireEmpty()
	f.requireRoomEmpty()
}

// TestLostBeforeALateAck has a worker lose its lease of an event. The ack of another worker then removes the message before anyone gets it again, so
// the slots return. A worker that was suspended before its decision does not know that the message was delivered again.
func TestLostBeforeALateAck(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"redelivered": true, "the worker was suspended": false}, testLostBeforeALateAck)
}

func testLostBeforeALateAck(t *testing.T, f *fixture, redelivered bool) {
	const ackWait = 3 * time.Second // the server has a sixth of ackWait to answer
	found := f.provision(ackWait)
	sequence := f.event("payments", "order-1")
	if redelivered {
		f.deliverOnce(found)
	}
	f.sink.find = finds(absent)
	f.pacer.reserve = func(string, time.Duration) post { return post{wait: time.Hour} }
	f.throttle.answers(func(c store.Request) store.Decision {
		grant := f.throttle.grant(c)
		grant.extend = func() bool { return false }
		return store.Decision{Verdict: store.Admitted, Grant: grant}
	})
	f.start(func(o *setup) { o.client.AckWait, o.SendTimeout = ackWait, ackWait/4 })
	f.eventually("its lease is lost", func() bool { return f.calls.count("extend order-1") > 0 })
	testkit.NoError(t, found.Stream.DeleteMsg(t.Context(), sequence))
	f.eventually("its slots return", func() bool { return f.calls.count("refund order-1") == 1 })
	testkit.Equal(t, len(f.calls.posted("")), 0, "posts")
}

// attemptsBefore are what may have delivered an event before another worker ends it.
var attemptsBefore = map[string]outcome.Admission{
	"no attempt":                         {},
	"an attempt of nobody that is known": {Doubt: outcome.Doubt{Open: true}},
	"an attempt of this worker":          {Doubt: outcome.Doubt{Open: true, Own: true}},
}

// TestLostAfterAnAttempt has a worker lose an event, and removes the message. The slots return unless an attempt of the worker may have delivered the
// event: Redis knew of no other.
func TestLostAfterAnAttempt(t *testing.T) {
	t.Parallel()
	each(t, attemptsBefore, func(t *testing.T, f *fixture, attempted outcome.Admission) {
		const ackWait = time.Second
		w := f.prepared(func(o *setup) { o.client.AckWait = ackWait })
		sequence := f.event("payments", "order-1")
		message := f.taken(w, ackWait)
		testkit.NoError(t, w.settler.Streams.Layout().Stream.DeleteMsg(t.Context(), sequence))
		attempted.Grant, attempted.Anew = &fakeGrant{id: "order-1", calls: f.calls}, true
		w.settler.LeaveLost(message, attempted)
		w.settler.AwaitOwed()
		if attempted.Doubt.Own {
			f.requireHistory("order-1")
		} else {
			f.requireHistory("order-1", "refund")
		}
	})
}

// TestEndedByOther has a worker find that another worker has ended the event. It records no delivery unless its own attempt may be one: an undecided
// event may go on in the room.
func TestEndedByOther(t *testing.T) {
	t.Parallel()
	each(t, attemptsBefore, func(t *testing.T, f *fixture, attempted outcome.Admission) {
		w := f.prepared(nil)
		f.event("payments", "order-1")
		attempted.Grant, attempted.Anew = &fakeGrant{id: "order-1", calls: f.calls}, true
		w.settler.LeaveEnded(f.taken(w, usualAckWait), attempted)
		if attempted.Doubt.Own {
			f.requireHistory("order-1", "finish")
		} else {
			f.requireHistory("order-1", "refund")
		}
	})
}

// TestPostponedLeavesTheHand returns an event to its channel's queue while a request for more of the queue is open. The request may wait for a place in
// the hand, so the event leaves the hand first.
func TestPostponedLeavesTheHand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.event("payments", "order-1")
	m := f.taken(w, usualAckWait)
	m.From = &received.PullRequest{Source: received.QueueOf("C1")}
	w.puller.hand.Take(t.Context(), m)
	testkit.Must(w.lanes.AwaitFree(t.Context(), "C1"))(t) // the request is open from now on
	d := &delivery{
		message: m, destination: "C1", admission: outcome.Admission{Grant: &fakeGrant{id: "order-1", calls: f.calls}}, place: w.lanes.Enter(lane.Delivery{Channel: "C1"}),
	}
	postponed := make(chan struct{})
	go func() {
		w.decider.deliverer.postpone(lifeOf(t.Context()), d, time.Second)
		close(postponed)
	}()
	f.eventually("the hand is empty", func() bool { return w.puller.hand.Held() == 0 })
	w.lanes.Fetched("C1", 0, nil)
	receive(t, "the end of the delivery", postponed)
}

// TestNoPostWithoutALease fails to renew a lease that is shorter than a post, then renews it. It posts nothing if even a new lease is
// shorter than a post.
func TestNoPostWithoutALease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
	w := f.prepared(func(o *setup) { o.client.Connection, o.SendTimeout = f.connect("nats://"+proxy.Addr), usualAckWait/2 })
	f.event("payments", "order-1")
	d := &delivery{
		message: f.taken(w, usualAckWait), event: event.Event{ID: "order-1"},
		admission: outcome.Admission{Grant: &fakeGrant{id: "order-1", calls: f.calls}}, place: w.lanes.Enter(lane.Delivery{Channel: "C1"}),
	}
	d.message.Lease.Extend(time.Now(), usualAckWait/4)
	proxy.DropReplies(true)
	unanswered, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, attempted := w.decider.deliverer.attempt(unanswered, d); attempted {
		t.Error("got a post, want none")
	}
	f.requireHistory("order-1")
	proxy.DropReplies(false)
	if _, failure, attempted := w.decider.deliverer.attempt(t.Context(), d); !attempted || failure != nil {
		t.Errorf("attempt with a renewed lease: got %t, %v, want a post", attempted, failure)
	}
	f.requireHistory("order-1", "extend", "send")
	w.decider.deliverer.sendTimeout = 2 * patience
	if _, _, attempted := w.decider.deliverer.attempt(t.Context(), d); attempted {
		t.Error("got a post, want none: a new lease is shorter than a post")
	}
	f.requireHistory("order-1", "extend", "send")
}
