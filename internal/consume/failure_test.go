package consume

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestRetryInsideTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, send := f.newWorker(nil), inTurn(sink.Transient, sink.Unknown, sink.OK)
	failing := make(chan error, 3)
	f.sink.send = func(ctx context.Context, e event.Event, attempt int) error {
		failing <- w.Failing()
		return send(ctx, e, attempt)
	}
	f.run(w)
	sequence := f.event("payments", "order-1")
	f.awaitSettled(1)
	testkit.Equal(t, <-failing, nil, "Failing before the first attempt")
	testkit.Fails(t, "Failing after the first attempt", <-failing, errScripted, "transient")
	testkit.Fails(t, "Failing after the second attempt", <-failing, errScripted)
	f.requireSaid(sequence, "+ACK")
	f.requireHistory("order-1", "send", "send", "send", "finish")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	testkit.Equal(t, f.metrics.Get("age"), 1, "observed ages")
	for _, line := range []string{"deliveries fail: retrying", "deliveries work again"} {
		f.log.WantCount(t, 1, line)
	}
	testkit.Equal(t, w.Ready(), nil, "Ready")
	testkit.Equal(t, w.Failing(), nil, "Failing")
}

// TestRetryAfterTheLease has no time for another attempt in the first lease. The event moves to its channel's queue, and keeps its slot.
func TestRetryAfterTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.send = inTurn(sink.Transient, sink.OK)
	f.start(func(o *setup) { o.client.AckWait, o.SendTimeout = 5*time.Second, 4700*time.Millisecond })
	sequence := f.event("payments", "order-1")
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireSaid(sequence, "+ACK")
	testkit.Equal(t, f.streamInfo(testNames.RoomStream).State.LastSeq, 1, "messages stored in the room")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	history := slices.DeleteFunc(f.calls.about("order-1"), func(what string) bool { return what == "extend" })
	testkit.EqualSlices(t, history, []string{"send", "release", "send", "finish"}, "calls")
}

// TestBackoffGoesOn counts the attempts of earlier deliveries.
func TestBackoffGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.event("payments", "order-1")
	// A delivery from its channel's queue goes back to that queue.
	d := &delivery{
		message: f.taken(w, usualAckWait), admission: outcome.Admission{Grant: &fakeGrant{calls: f.calls}}, attempts: 1, began: time.Now(),
		destination: "C1",
	}
	d.message.From = &received.PullRequest{Source: received.QueueOf("C1")}
	for deliveries, want := range map[uint64]time.Duration{1: stage.FirstBackoff, 2: 4 * time.Second, 3: stage.LongestBackoff, 1000: stage.LongestBackoff} {
		d.message.Meta.NumDelivered = deliveries
		delay, _ := w.decider.deliverer.failed(lifeOf(t.Context()), d, &sink.Error{Class: sink.Transient, Err: errScripted})
		if again := want < patience/2; again && (delay < want*3/4 || delay > want*5/4) {
			t.Errorf("back-off after delivery %d: got %v, want about %v", deliveries, delay, want)
		}
	}
	for attempts, want := range map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 6: 16 * time.Second, 7: 30 * time.Second, 1 << 30: 30 * time.Second,
	} {
		for range 100 {
			if d := stage.RetryDelay(stage.FirstBackoff, attempts-1); d < want*3/4 || d > want*5/4 {
				t.Fatalf("back-off after %d attempts: got %v, want about %v", attempts, d, want)
			}
		}
	}
}

// TestRejected stores the dead letter first, then returns the slot, then terminates the message.
func TestRejected(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	sequence := f.event("payments", "order-1")
	f.throttle.answers(func(c store.Request) store.Decision {
		grant := f.throttle.grant(c)
		grant.refund = func() {
			testkit.Equal(t, len(f.deadLetters()), 1, "dead letters at the refund")
			testkit.EqualSlices(t, f.said.about(sequence), nil, "words before the refund")
		}
		return store.Decision{Verdict: store.Admitted, Grant: grant}
	})
	f.sink.send = func(context.Context, event.Event, int) error {
		return &sink.Error{Class: sink.Rejected, Code: "scripted_code", Channel: "payments", Err: errScripted}
	}
	f.start(nil)
	f.awaitSettled(1)
	f.requireHistory("order-1", "send", "refund")
	f.requireSaid(sequence, "+TERM rejected: scripted")
	f.requireOutcomes(map[string]int{"dead payments": 1})
	testkit.Equal(t, f.metrics.Get("letter rejected"), 1, "dead letters by reason")
	letter := f.deadLetters()[0]
	if letter.Subject != "notify-dlq.rejected.payments" || letter.Header.Get(deadletters.HeaderError) != "scripted" || letter.Header.Get(deadletters.HeaderDeliveries) != "1" {
		t.Errorf("dead letter: got %s with %v, want rejected of payments with the error", letter.Subject, letter.Header)
	}
}

func TestDeadLettersCannotBeStored(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.DeadLetterStream))
	f.sink.send = inTurn(sink.Rejected)
	w := f.start(func(o *setup) { o.client.Provision = false })
	sequences := []uint64{f.event("payments", "order-1"), f.publish("notify.payments", "{broken")}
	for _, sequence := range sequences {
		f.requirePutOff(sequence)
	}
	f.eventually("the grant is ended", func() bool { return len(f.calls.about("order-1")) == 2 })
	f.requireHistory("order-1", "send", "release")
	f.requireOutcomes(nil)
	testkit.Equal(t, f.metrics.Get("letter rejected")+f.metrics.Get("letter bad_json"), 0, "counted dead letters")
	testkit.Fails(t, "Failing", w.Failing(), jetstream.ErrNoStreamResponse, "cannot store dead letters: ")

	f.provision(usualAckWait)
	f.awaitSettled(2)
	testkit.Equal(t, w.Failing(), nil, "Failing after letters were stored")
	f.requireHistory("order-1", "send", "release", "send", "refund")
	f.requireOutcomes(map[string]int{"dead payments": 2})
	for _, line := range []string{"cannot store dead letters", "storing dead letters again"} {
		f.log.WantCount(t, 1, line)
	}
}

// TestRejectedAfterItsEnd has Slack reject a redelivered event that another worker has ended, while dead letters cannot be stored. Nobody gets the
// message again, so its slots return.
func TestRejectedAfterItsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(usualAckWait)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.DeadLetterStream))
	sequence := f.event("payments", "order-1")
	f.deliverOnce(found)
	f.sink.find = finds(absent)
	rejects := inTurn(sink.Rejected)
	f.sink.send = func(ctx context.Context, e event.Event, attempt int) error {
		testkit.NoError(t, found.Stream.DeleteMsg(ctx, sequence))
		return rejects(ctx, e, attempt)
	}
	f.start(func(o *setup) { o.client.Provision = false })
	f.eventually("its slots return", func() bool { return f.calls.count("refund order-1") == 1 })
	f.requireHistory("order-1", "find", "send", "refund")
}

// TestMisconfigured has Slack refuse the setup for a while. The worker takes no more events, is not ready, and recovers by itself.
func TestMisconfigured(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mended := newGate(t)
	f.refuseSetup(mended)
	refuse := f.sink.send
	var connected atomic.Bool // the first attempt after the repair finds no connection
	f.sink.send = func(ctx context.Context, e event.Event, attempt int) error {
		if mended.isOpen() && !connected.Swap(true) {
			return &sink.Error{Class: sink.Transient, Err: errScripted}
		}
		return refuse(ctx, e, attempt)
	}
	w := f.start(nil)
	first := f.event("payments", "first")
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	closed := time.Now()
	f.eventually("no request for events is open, nor on its way", func() bool {
		if f.consumerInfo().NumWaiting > 0 {
			closed = time.Now()
		}
		return time.Since(closed) > pollTime/2
	})
	f.numbered("errors", 10)
	f.eventually("ten events wait and one is taken", func() bool {
		info := f.consumerInfo()
		return info.NumPending == 10 && info.NumAckPending == 1
	})
	mended.open()
	f.awaitSettled(11)
	f.eventually("it is ready", func() bool { return w.Ready() == nil })
	f.requireSaid(first, "+ACK")
	history := f.calls.about("first")
	testkit.EqualSlices(t, slices.Compact(history), []string{"send", "finish"}, "the first event, which is tried again after a while")
	f.requireOutcomes(map[string]int{"sent payments": 1, "sent errors": 10})
	f.log.WantCount(t, 1, "sink refuses the setup")
	f.log.WantCount(t, 1, "it is unclear whether the sink still refuses the setup")
}

// refuseSetup has each post fail as misconfigured until the gate opens.
func (f *fixture) refuseSetup(until *gate) {
	f.sink.send = func(context.Context, event.Event, int) error {
		if until.isOpen() {
			return nil
		}
		return &sink.Error{Class: sink.Misconfigured, Code: "invalid_auth", Err: errScripted}
	}
}

// TestOneDeliveryProbes has Slack refuse the setup while many deliveries wait. One delivery tries again. All go out after the repair.
func TestOneDeliveryProbes(t *testing.T) {
	t.Parallel()
	each(t, map[string]time.Duration{"unpaced": 0, "paced": time.Millisecond}, func(t *testing.T, f *fixture, pace time.Duration) {
		const events = 20
		mended := newGate(t)
		f.refuseSetup(mended)
		f.provision(usualAckWait)
		f.numbered("payments", events)
		var concurrency int
		w := f.start(func(o *setup) { concurrency, o.Pace = o.Concurrency, pace })
		f.eventually("it is not ready", func() bool { return w.Ready() != nil })
		mended.open()
		f.awaitSettled(events)
		testkit.AtMost(t, len(f.sink.handed())-events, concurrency, "refused posts")
		f.requireOutcomes(map[string]int{"sent payments": events})
		f.eventually("it is ready", func() bool { return w.Ready() == nil })
	})
}

// TestLostThread has a thread in a channel that the resolved event's category no longer goes to. If no reply is possible, the event goes to its own
// channel. The state of each channel follows from what that channel answers.
func TestLostThread(t *testing.T) {
	t.Parallel()
	lost := &sink.Error{Class: sink.Rejected, Lost: true, Code: "thread_not_found", Err: errScripted}
	archived := &sink.Error{Class: sink.Misconfigured, OfChannel: true, Lost: true, Code: "is_archived", Err: errScripted}
	limited := &sink.Error{Class: sink.RateLimited, RetryAfter: time.Minute, Err: errScripted}
	doubtful := &sink.Error{Class: sink.Unknown, Err: errScripted}
	type lostThread struct {
		others   error         // that the event of the thread's channel gets
		resolved []*sink.Error // that the resolved event gets, one after the other
		waits    bool          // fresh events wait in the room, so the resolved event goes to the queues of both channels
		posts    []string
		paused   string // the channel that a failure pauses; "": none
		refuses  string // the channel with a fault; "": none
	}
	each(t, map[string]lostThread{
		"thread lost":           {resolved: []*sink.Error{lost}, posts: []string{"resolve r1", "send"}},
		"and own channel waits": {resolved: []*sink.Error{lost}, waits: true, posts: []string{"resolve r1", "send"}},
		"and own one limited":   {resolved: []*sink.Error{lost, limited}, posts: []string{"resolve r1", "send"}, paused: "#new"},
		"and own one in doubt":  {resolved: []*sink.Error{lost, doubtful}, posts: []string{"resolve r1", "send", "find r1"}},
		"and own one refuses":   {resolved: []*sink.Error{lost, archived}, posts: []string{"resolve r1", "send"}, paused: "#new", refuses: "#new"},
		"its channel refuses":   {others: archived, posts: []string{"send"}, paused: "#old", refuses: "#old"},
	}, func(t *testing.T, f *fixture, test lostThread) {
		f.resolvesMessages("r1")
		if test.waits {
			f.holdFresh()
		}
		f.sink.threads = "#old"
		f.sink.destination = func(e event.Event) string {
			return map[string]string{"payments": "#new", "other": "#old"}[e.Category]
		}
		f.sink.find = func(_ context.Context, d sink.Doubt) (sink.Finding, error) { // an earlier attempt may have replied
			f.calls.add("find %s resolved", d.Delivery.Opened)
			return sink.Finding{Presence: sink.Present}, nil
		}
		f.sink.send = func(_ context.Context, e event.Event, attempt int) error {
			switch {
			case e.Category == "other":
				return test.others
			case attempt > len(test.resolved):
				return nil
			}
			return test.resolved[attempt-1]
		}
		w := f.start(func(o *setup) { o.Pace = 10 * time.Millisecond })
		f.event("other", "other")
		f.eventually("the thread's channel has answered", func() bool { return f.calls.count("send other") > 0 && (test.others == nil || w.Failing() != nil) })
		f.status(event.StatusResolved)
		posts := func() []string {
			return slices.DeleteFunc(f.calls.about("resolved"), func(call string) bool { return !slices.Contains([]string{"send", "resolve r1", "find r1"}, call) })
		}
		f.eventually("the event is a message of its own", func() bool { return len(posts()) >= len(test.posts) })
		testkit.EqualSlices(t, posts(), test.posts, "posts and look-ups of the resolved event")
		for _, channel := range []string{"#old", "#new"} {
			f.eventually(channel+" has the state of its own answers", func() bool {
				f.pacer.mu.Lock()
				defer f.pacer.mu.Unlock()
				return (f.pacer.pauses[channel] > 0) == (channel == test.paused) && (f.pacer.causes[channel] == "refuses") == (channel == test.refuses) &&
					w.health.Lost(channel) == (channel == test.refuses)
			})
		}
	})
}

// TestExpiredWhileWaiting lets an event become too old between its attempts. The slot is returned unless an attempt may have delivered
// the event. The throttle says so of an earlier worker. The number of deliveries says nothing.
func TestExpiredWhileWaiting(t *testing.T) {
	t.Parallel()
	type expiredCase struct {
		class              sink.Class
		redeliver, inDoubt bool
		ends               string
		logged             int // lines about a pause that is too long
	}
	each(t, map[string]expiredCase{
		"in the pause of its channel":          {class: sink.RateLimited, ends: "refund", logged: 1},
		"certainly not delivered":              {class: sink.Transient, ends: "refund"},
		"perhaps delivered":                    {class: sink.Unknown, ends: "finish"},
		"not delivered by a worker before":     {class: sink.Transient, redeliver: true, ends: "refund"},
		"perhaps delivered by a worker before": {class: sink.Transient, redeliver: true, inDoubt: true, ends: "finish"},
	}, func(t *testing.T, f *fixture, test expiredCase) {
		found := f.provision(usualAckWait)
		sequence, said := f.event("payments", "order-1"), []string{"+ACK"}
		if test.redeliver {
			f.deliverOnce(found)
			said = []string{sayNak, "+ACK"}
		}
		f.admitInDoubt(test.inDoubt)
		f.sink.send = func(context.Context, event.Event, int) error {
			return &sink.Error{Class: test.class, RetryAfter: 4 * time.Second, Err: errScripted}
		}
		f.start(func(o *setup) { o.MaxAge = 3 * time.Second })
		f.awaitSettled(1)
		testkit.Equal(t, f.log.Count("a channel was paused for longer than its waiting events live"), test.logged, "lines about a pause that is too long")
		f.requireSaid(sequence, said...)
		f.requireOutcomes(map[string]int{"expired payments": 1})
		history := f.calls.about("order-1")
		testkit.Check(t, len(history) >= 2 && history[len(history)-1] == test.ends, "calls: got %q, want %s last", history, test.ends)
	})
}

// admitInDoubt admits each event that an earlier worker had admitted. InDoubt says that this worker may have delivered it.
func (f *fixture) admitInDoubt(inDoubt bool) {
	f.throttle.answers(func(c store.Request) store.Decision {
		decision := f.throttle.admit(c)
		decision.Verdict, decision.InDoubt = store.Reclaimed, inDoubt
		return decision
	})
}

// TestRejectedInDoubt has Slack reject an event. If an earlier attempt may have delivered the event, it counts as delivered.
// Of a redelivered event that Redis does not know, nobody knows whether it was posted.
func TestRejectedInDoubt(t *testing.T) {
	t.Parallel()
	type rejectedCase struct {
		before  func(f *fixture, found stream.Layout)
		send    func(context.Context, event.Event, int) error
		history []string
	}
	nothing := func(*fixture, stream.Layout) {}
	inDoubt := func(f *fixture, _ stream.Layout) { f.admitInDoubt(true) }
	each(t, map[string]rejectedCase{
		"not in doubt":           {nothing, inTurn(sink.Rejected), []string{"send", "refund"}},
		"of a worker before":     {inDoubt, inTurn(sink.Rejected), []string{"send", "finish"}},
		"of a forgotten worker":  {(*fixture).deliverOnce, inTurn(sink.Rejected), []string{"send", "finish"}},
		"of an attempt before":   {nothing, inTurn(sink.Unknown, sink.Rejected), []string{"send", "send", "finish"}},
		"of a certain one first": {nothing, inTurn(sink.Transient, sink.Rejected), []string{"send", "send", "refund"}},
	}, func(t *testing.T, f *fixture, test rejectedCase) {
		found := f.provision(usualAckWait)
		f.event("payments", "order-1")
		test.before(f, found)
		f.sink.send = test.send
		f.start(nil)
		f.awaitSettled(1)
		f.requireHistory("order-1", test.history...)
		f.requireOutcomes(map[string]int{"dead payments": 1})
	})
}

// inTurn fails with one class after the other, and then with the last one. OK is no failure. A rate limit lasts for an hour.
func inTurn(classes ...sink.Class) func(context.Context, event.Event, int) error {
	return func(_ context.Context, _ event.Event, attempt int) error {
		class := classes[min(attempt, len(classes))-1]
		if class == sink.OK {
			return nil
		}
		return &sink.Error{Class: class, Code: "scripted_code", RetryAfter: time.Hour, Err: errScripted}
	}
}

// TestOrderAfterAFailure fails the first event of a channel once. After a rate limit the event stays first. After another failure the
// next events go first.
func TestOrderAfterAFailure(t *testing.T) {
	t.Parallel()
	const pause = 500 * time.Millisecond
	for class, order := range map[sink.Class][]int{sink.RateLimited: {0, 0, 1, 2}, sink.Transient: {0, 1, 2, 0}, sink.Unknown: {0, 1, 2, 0}} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			f := newProvisioned(t)
			ids := f.numbered("payments", 3)
			var refused, again time.Time
			f.sink.send = func(_ context.Context, e event.Event, attempt int) error {
				switch {
				case e.ID != ids[0]:
				case attempt == 1:
					refused = time.Now()
					return &sink.Error{Class: class, RetryAfter: pause, Err: errScripted}
				default:
					again = time.Now()
				}
				return nil
			}
			f.start(slow)
			f.awaitSettled(len(ids))
			var want []string
			for _, i := range order {
				want = append(want, ids[i])
			}
			testkit.EqualSlices(t, f.calls.posted(""), want, "posts")
			if class == sink.RateLimited {
				testkit.Equal(t, f.pacer.pauses["payments"], pause, "pause of the channel")
				took := again.Sub(refused)
				testkit.Check(t, took >= pause, "time before the second attempt: got %v, want at least %v", took, pause)
			}
			for i := range ids {
				f.requireSaid(uint64(i+1), "+ACK")
			}
		})
	}
}
