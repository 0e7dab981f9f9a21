package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// failing fails with the class on the first attempts.
func failing(class sink.Class, attempts int) func(context.Context, event.Event, int) error {
	return func(_ context.Context, _ event.Event, attempt int) error {
		if attempt > attempts {
			return nil
		}
		return &sink.Error{Class: class, Code: "scripted_code", Err: errScripted}
	}
}

// A delivery that fails and may yet succeed is tried again while its first lease lasts, without a nak.
func TestRetryInsideTheLease(t *testing.T) {
	t.Parallel()
	for name, class := range map[string]sink.Class{"transient": sink.Transient, "uncertain": sink.Unknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.sink.send = failing(class, 2)
			w := f.start(nil)
			sequence := f.event("payments", "order-1")
			f.awaitSettled(1)
			f.requireSaid(sequence, "+ACK")
			f.requireHistory("order-1", "send", "send", "send", "finish")
			f.requireOutcomes(map[string]int{"sent payments": 1})
			testkit.Equal(t, f.metrics.Get("age"), 1, "ages were observed, want one for each delivery")
			for _, line := range []string{"deliveries fail and are tried again", "deliveries work again"} {
				f.log.WantCount(t, 1, line)
			}
			if err := w.Ready(); err != nil {
				t.Errorf("it is not ready: %v", err)
			}
		})
	}
}

// A delivery whose next attempt would not end inside the first lease goes on in its channel's queue; the grant is released, not
// refunded, so that the slot stays taken.
func TestRetryAfterTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.send = failing(sink.Transient, 1)
	f.start(func(o *Options) { o.AckWait, o.SendTimeout = 2*time.Second, 1900*time.Millisecond })
	sequence := f.event("payments", "order-1")
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireSaid(sequence, "+ACK")
	testkit.Equal(t, f.streamInfo(testNames.RoomStream).State.LastSeq, 1, "messages were stored in the room")
	f.requireOutcomes(map[string]int{"sent payments": 1})
	history := slices.DeleteFunc(f.journal.about("order-1"), func(what string) bool { return what == "extend" })
	testkit.EqualSlices(t, history, []string{"send", "release", "send", "finish"}, "happened")
}

// The back-off of a message that comes back goes on where it was.
func TestBackoffGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.event("payments", "order-1")
	// It comes from its channel's queue, so it goes back there.
	d := &delivery{candidate: candidate{message: f.taken(w, patience)}, grant: &fakeGrant{journal: f.journal}, started: time.Now(), attempts: 1, destination: "C1"}
	d.source = source{inRoom: true, channel: "C1"}
	for deliveries, want := range map[uint64]time.Duration{1: firstBackoff, 2: 4 * time.Second, 3: longestBackoff, 1000: longestBackoff} {
		d.delivered = deliveries
		delay, _ := w.failed(t.Context(), d, &sink.Error{Class: sink.Transient, Err: errScripted})
		if again := want < patience/2; again && (delay < want*3/4 || delay > want*5/4) {
			t.Errorf("after delivery %d the next attempt is in %v, want %v give or take a quarter", deliveries, delay, want)
		}
	}
	for attempts, want := range map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 6: 16 * time.Second, 7: 30 * time.Second, 1 << 30: 30 * time.Second,
	} {
		for range 100 {
			if d := retryDelay(firstBackoff, attempts-1); d < want*3/4 || d > want*5/4 {
				t.Fatalf("after %d attempts the next one is in %v, want %v give or take a quarter", attempts, d, want)
			}
		}
	}
}

// A message that will never be delivered is stored as a dead letter, then its slot is returned, then it is terminated.
func TestRejected(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"with a code": "scripted_code", "without a code": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.provision(patience)
			sequence := f.event("payments", "order-1")
			f.throttle.answers(func(c throttle.Request) throttle.Decision {
				grant := f.throttle.grant(c)
				grant.refund = func() {
					if letters := f.deadLetters(); len(letters) != 1 {
						t.Errorf("at the refund %d dead letters are stored, want 1", len(letters))
					}
					if said := f.said.about(sequence); len(said) > 0 {
						t.Errorf("before the refund was said %q", said)
					}
				}
				return throttle.Decision{Verdict: throttle.Admitted, Grant: grant}
			})
			f.sink.send = func(context.Context, event.Event, int) error {
				return &sink.Error{Class: sink.Rejected, Code: code, Channel: "payments", Err: errScripted}
			}
			f.start(nil)
			f.awaitSettled(1)
			detail := "post to payments: rejected: scripted"
			if code != "" {
				detail = code
			}
			f.requireHistory("order-1", "send", "refund")
			f.requireSaid(sequence, "+TERM slack_rejected: "+detail)
			f.requireOutcomes(map[string]int{"dead payments": 1})
			if f.metrics.Get("letter slack_rejected") != 1 {
				t.Error("the dead letter was not counted by its reason")
			}
			letter := f.deadLetters()[0]
			if letter.Subject != "notify-dlq.slack_rejected.payments" || letter.Header.Get(HeaderError) != detail || letter.Header.Get(HeaderDeliveries) != "1" {
				t.Errorf("the dead letter is on %s with %v", letter.Subject, letter.Header)
			}
		})
	}
}

// While dead letters cannot be stored, messages that should become one get a nak, and none is lost.
func TestDeadLettersCannotBeStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.DeadLetterStream))
	f.sink.send = failing(sink.Rejected, 1000)
	f.start(func(o *Options) { o.Provision = false })
	sequences := []uint64{f.event("payments", "order-1"), f.publish("notify.payments", "{broken")}
	for _, sequence := range sequences {
		f.eventually("it gets a nak", func() bool { return len(f.said.about(sequence)) > 0 })
		if delays := f.said.delays(t, sequence); len(delays) == 0 || delays[0] < misconfiguredBackoff*3/4 || delays[0] > misconfiguredBackoff*5/4 {
			t.Errorf("put off by %v, want %v give or take a quarter", delays, misconfiguredBackoff)
		}
	}
	f.eventually("the grant is ended", func() bool { return len(f.journal.about("order-1")) == 2 })
	f.requireHistory("order-1", "send", "release")
	f.requireOutcomes(nil)
	if f.metrics.Get("letter slack_rejected")+f.metrics.Get("letter bad_json") > 0 {
		t.Error("dead letters were counted that are not stored")
	}

	f.provision(patience)
	f.awaitSettled(2)
	f.requireHistory("order-1", "send", "release", "send", "refund")
	f.requireOutcomes(map[string]int{"dead payments": 2})
	for _, line := range []string{"dead letters cannot be stored", "dead letters can be stored again"} {
		f.log.WantCount(t, 1, line)
	}
}

// While the setup is at fault no more events are taken, the worker is not ready, and nothing is lost. It goes on by itself.
func TestMisconfigured(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mended := newGate(t)
	f.sink.send = func(context.Context, event.Event, int) error {
		if mended.isOpen() {
			return nil
		}
		return &sink.Error{Class: sink.Misconfigured, Code: "invalid_auth", Err: errScripted}
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
	for i := range 10 {
		f.event("errors", fmt.Sprint(i))
	}
	f.eventually("ten events wait and one is taken", func() bool {
		info := f.consumerInfo()
		return info.NumPending == 10 && info.NumAckPending == 1
	})
	mended.open()
	f.awaitSettled(11)
	f.eventually("it is ready", func() bool { return w.Ready() == nil })
	f.requireSaid(first, "+ACK")
	f.requireHistory("first", "send", "send", "finish")
	f.requireOutcomes(map[string]int{"sent payments": 1, "sent errors": 10})
	f.log.WantCount(t, 1, "deliveries are misconfigured")
}

// While the setup is at fault one delivery tries and the others wait for it; when it is mended they go out at once.
func TestOneDeliveryProbes(t *testing.T) {
	t.Parallel()
	for name, pace := range map[string]time.Duration{"unpaced": 0, "paced": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			oneDeliveryProbes(t, pace)
		})
	}
}

func oneDeliveryProbes(t *testing.T, pace time.Duration) {
	t.Helper()
	const events = 20
	f := newFixture(t)
	mended := newGate(t)
	var refused atomic.Int64
	f.sink.send = func(context.Context, event.Event, int) error {
		if mended.isOpen() {
			return nil
		}
		refused.Add(1)
		return &sink.Error{Class: sink.Misconfigured, Code: "invalid_auth", Err: errScripted}
	}
	f.provision(patience)
	for i := range events {
		f.event("payments", fmt.Sprint(i))
	}
	var concurrency int
	w := f.start(func(o *Options) { concurrency, o.Pace = o.Concurrency, pace })
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	mended.open()
	f.awaitSettled(events)
	if n := refused.Load(); n > int64(concurrency) {
		t.Errorf("%d posts were refused, want at most one for each delivery at once", n)
	}
	f.requireOutcomes(map[string]int{"sent payments": events})
	f.eventually("it is ready", func() bool { return w.Ready() == nil })
}

// A prober that ends without an answer hands over to one that waits; where nobody waits, the fault is found anew.
func TestProberLeaves(t *testing.T) {
	t.Parallel()
	health := newHealth(slog.New(slog.DiscardHandler))
	one := candidate{message: &message{}}
	prober, other := &delivery{candidate: one, destination: "C1"}, &delivery{candidate: one, destination: "C1"}
	health.misconfigure(prober, errScripted)
	if !health.turn(t.Context(), &delivery{destination: "C2"}) {
		t.Error("another destination has to wait")
	}
	looked := make(chan bool)
	go func() { looked <- health.turn(t.Context(), other) }()
	testkit.Eventually(t, "one delivery waits", func() bool {
		health.mu.Lock()
		defer health.mu.Unlock()
		return health.faults["C1"].waiting == 1
	})
	health.leave(prober)
	if <-looked {
		t.Error("who waited may try without looking again")
	}
	if !health.turn(t.Context(), other) {
		t.Error("nobody takes over")
	}
	health.leave(prober) // it is the prober no more
	if _, err := health.misconfiguration(); !errors.Is(err, errScripted) {
		t.Errorf("the fault is %v, want it to stand", err)
	}
	changed, _ := health.misconfiguration()
	health.leave(other)
	if _, err := health.misconfiguration(); err != nil {
		t.Errorf("the fault %v stands though nobody tries", err)
	}
	<-changed
}

// An event that becomes too old while it waits is expired. Its slot is returned if it surely was never posted; else it counts as
// delivered. Whether a worker before may have posted it is for the throttle to say, not for the number of deliveries.
func TestExpiredWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		class              sink.Class
		redeliver, inDoubt bool
		ends               string
	}{
		"certainly not delivered":              {class: sink.Transient, ends: "refund"},
		"perhaps delivered":                    {class: sink.Unknown, ends: "finish"},
		"not delivered by a worker before":     {class: sink.Transient, redeliver: true, ends: "refund"},
		"perhaps delivered by a worker before": {class: sink.Transient, redeliver: true, inDoubt: true, ends: "finish"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			found := f.provision(patience)
			sequence, said := f.event("payments", "order-1"), []string{"+ACK"}
			if test.redeliver {
				f.deliverOnce(found)
				said = []string{sayNak, "+ACK"}
			}
			f.admitInDoubt(test.inDoubt)
			f.sink.send = failing(test.class, 1000)
			f.start(func(o *Options) { o.MaxAge = 3 * time.Second })
			f.awaitSettled(1)
			f.requireSaid(sequence, said...)
			f.requireOutcomes(map[string]int{"expired payments": 1})
			if history := f.journal.about("order-1"); len(history) < 2 || history[len(history)-1] != test.ends {
				t.Errorf("happened: %q, want that it ends with %s", history, test.ends)
			}
		})
	}
}

// admitInDoubt admits every event, perhaps in doubt whether a worker before has delivered it.
func (f *fixture) admitInDoubt(inDoubt bool) {
	f.throttle.answers(func(c throttle.Request) throttle.Decision {
		decision := f.throttle.admit(c)
		decision.InDoubt = inDoubt
		return decision
	})
}

// What Slack rejects while it is in doubt whether an attempt before delivered it counts as delivered: a replay of it is a duplicate.
func TestRejectedInDoubt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		inDoubt bool
		send    func(context.Context, event.Event, int) error
		history []string
	}{
		"not in doubt":           {false, failing(sink.Rejected, 1000), []string{"send", "refund"}},
		"of a worker before":     {true, failing(sink.Rejected, 1000), []string{"send", "finish"}},
		"of an attempt before":   {false, inTurn(sink.Unknown, sink.Rejected), []string{"send", "send", "finish"}},
		"of a certain one first": {false, inTurn(sink.Transient, sink.Rejected), []string{"send", "send", "refund"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.admitInDoubt(test.inDoubt)
			f.sink.send = test.send
			f.start(nil)
			f.event("payments", "order-1")
			f.awaitSettled(1)
			f.requireHistory("order-1", test.history...)
			f.requireOutcomes(map[string]int{"dead payments": 1})
		})
	}
}

// inTurn fails with one class after the other, and goes on with the last one.
func inTurn(classes ...sink.Class) func(context.Context, event.Event, int) error {
	return func(_ context.Context, _ event.Event, attempt int) error {
		return &sink.Error{Class: classes[min(attempt, len(classes))-1], Code: "scripted_code", Err: errScripted}
	}
}

// An event that its channel did not take because it is paused stays before the others.
func TestRateLimitedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	const pause = 500 * time.Millisecond
	ids := f.numbered("payments", 5)
	var refused, again time.Time
	f.sink.send = func(_ context.Context, e event.Event, attempt int) error {
		switch {
		case e.ID == ids[1] && attempt == 1:
			refused = time.Now()
			return &sink.Error{Class: sink.RateLimited, RetryAfter: pause, Err: errScripted}
		case e.ID == ids[1]:
			again = time.Now()
		}
		return nil
	}
	f.start(slow)
	f.awaitSettled(len(ids))
	if got, want := f.journal.posted(), slices.Insert(slices.Clone(ids), 1, ids[1]); !slices.Equal(got, want) {
		t.Errorf("posted %q, want %q", got, want)
	}
	if took := again.Sub(refused); took < pause {
		t.Errorf("posted again after %v, want a pause of %v", took, pause)
	}
	testkit.Equal(t, f.throttle.pauses["payments"], pause, "the channel was paused for")
	for i := range ids {
		f.requireSaid(uint64(i+1), "+ACK")
	}
}

// While an event waits for another attempt the next one of its channel goes out.
func TestFailureLetsTheNextOneGo(t *testing.T) {
	t.Parallel()
	for name, class := range map[string]sink.Class{"transient": sink.Transient, "uncertain": sink.Unknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.provision(patience)
			ids := f.numbered("payments", 3)
			f.sink.send = func(_ context.Context, e event.Event, attempt int) error {
				if e.ID == ids[0] && attempt == 1 {
					return &sink.Error{Class: class, Err: errScripted}
				}
				return nil
			}
			f.start(slow)
			f.awaitSettled(len(ids))
			if got, want := f.journal.posted(), []string{ids[0], ids[1], ids[2], ids[0]}; !slices.Equal(got, want) {
				t.Errorf("posted %q, want %q", got, want)
			}
			f.requireSaid(1, "+ACK")
		})
	}
}
