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
)

// failing fails with the class on the first attempts.
func failing(class FailureClass, attempts int) func(context.Context, event.Event, int) *Failure {
	return func(_ context.Context, _ event.Event, attempt int) *Failure {
		if attempt > attempts {
			return nil
		}
		return &Failure{Class: class, Code: "scripted_code", Err: errScripted}
	}
}

// A delivery that fails and may yet succeed is tried again while its first lease lasts, without giving the message back.
func TestRetryInsideTheLease(t *testing.T) {
	t.Parallel()
	for name, class := range map[string]FailureClass{"transient": Transient, "uncertain": Uncertain} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.sink.send = failing(class, 2)
			w := f.start(nil)
			sequence := f.event("payments", "e")
			f.awaitSettled(1)
			f.requireSaid(sequence, "+ACK")
			f.requireHistory("e", "send", "send", "send", "finish")
			f.requireOutcomes(map[string]int{"sent payments": 1})
			if f.metrics.get("age") != 1 {
				t.Errorf("%d ages were observed, want one for each delivery", f.metrics.get("age"))
			}
			for _, line := range []string{"deliveries fail and are tried again", "deliveries work again"} {
				if lines := f.log.lines(line); len(lines) != 1 {
					t.Errorf("%q was logged %d times, want once", line, len(lines))
				}
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
	f.sink.send = failing(Transient, 1)
	f.start(func(o *Options) { o.AckWait, o.SendTimeout = 2*time.Second, 1900*time.Millisecond })
	sequence := f.event("payments", "e")
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireSaid(sequence, "+ACK")
	if stored := f.streamInfo(testNames.RoomStream).State.LastSeq; stored != 1 {
		t.Errorf("%d messages were stored in the room, want 1", stored)
	}
	f.requireOutcomes(map[string]int{"sent payments": 1})
	history := slices.DeleteFunc(f.journal.about("e"), func(what string) bool { return what == "extend" })
	if want := []string{"send", "release", "send", "finish"}; !slices.Equal(history, want) {
		t.Errorf("happened: %q, want %q", history, want)
	}
}

// The back-off of a message that comes back goes on where it was.
func TestBackoffGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.event("payments", "e")
	// It comes from its channel's queue, so it goes back there.
	d := &delivery{candidate: candidate{message: f.taken(w, patience)}, grant: &fakeGrant{journal: f.journal}, started: time.Now(), attempts: 1, destination: "C1"}
	d.source = source{inRoom: true, channel: "C1"}
	for deliveries, want := range map[uint64]time.Duration{1: firstBackoff, 2: 4 * time.Second, 3: longestBackoff, 1000: longestBackoff} {
		d.delivered = deliveries
		delay, _ := w.failed(t.Context(), d, &Failure{Class: Transient, Err: errScripted})
		if again := want < patience/2; again && (delay < want*3/4 || delay > want*5/4) {
			t.Errorf("after delivery %d the next attempt is in %v, want %v give or take a quarter", deliveries, delay, want)
		}
	}
	for attempts, want := range map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 6: 16 * time.Second, 7: 30 * time.Second, 1 << 30: 30 * time.Second,
	} {
		if got := backoff(firstBackoff, attempts); got != want {
			t.Errorf("the back-off after %d attempts is %v, want %v", attempts, got, want)
		}
	}
	if got := backoff(misconfiguredBackoff, 1); got != 5*time.Second {
		t.Errorf("the first back-off of a misconfigured delivery is %v, want 5s", got)
	}
	for range 1000 {
		if d := jitter(time.Second); d < 750*time.Millisecond || d > 1250*time.Millisecond {
			t.Fatalf("one second with jitter is %v, want a quarter to either side at most", d)
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
			sequence := f.event("payments", "e")
			f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
				grant := f.throttle.grant(c)
				grant.refund = func() {
					if letters := f.deadLetters(); len(letters) != 1 {
						t.Errorf("at the refund %d dead letters are stored, want 1", len(letters))
					}
					if said := f.said.about(sequence); len(said) > 0 {
						t.Errorf("before the refund was said %q", said)
					}
				}
				return Decision{Verdict: Admit, Grant: grant}, nil
			}
			f.sink.send = func(context.Context, event.Event, int) *Failure {
				return &Failure{Class: Rejected, Code: code, Err: errScripted}
			}
			f.start(nil)
			f.awaitSettled(1)
			detail := "scripted"
			if code != "" {
				detail = code
			}
			f.requireHistory("e", "send", "refund")
			f.requireSaid(sequence, "+TERM slack_rejected: "+detail)
			f.requireOutcomes(map[string]int{"dead payments": 1})
			if f.metrics.get("letter slack_rejected") != 1 {
				t.Error("the dead letter was not counted by its reason")
			}
			letter := f.deadLetters()[0]
			if letter.Subject != "notify-dlq.slack_rejected.payments" || letter.Header.Get(HeaderError) != detail || letter.Header.Get(HeaderDeliveries) != "1" {
				t.Errorf("the dead letter is on %s with %v", letter.Subject, letter.Header)
			}
		})
	}
}

// While dead letters cannot be stored, messages that should become one are given back, and none is lost.
func TestDeadLettersCannotBeStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	if err := f.js.DeleteStream(t.Context(), testNames.DeadLetterStream); err != nil {
		t.Fatal(err)
	}
	f.sink.send = failing(Rejected, 1000)
	f.start(func(o *Options) { o.Provision = false })
	sequences := []uint64{f.event("payments", "e"), f.publish("notify.payments", "{broken")}
	for _, sequence := range sequences {
		f.eventually("it is given back", func() bool { return len(f.said.about(sequence)) > 0 })
		if delays := f.said.delays(t, sequence); len(delays) == 0 || delays[0] < misconfiguredBackoff*3/4 || delays[0] > misconfiguredBackoff*5/4 {
			t.Errorf("put off by %v, want %v give or take a quarter", delays, misconfiguredBackoff)
		}
	}
	f.eventually("the grant is ended", func() bool { return len(f.journal.about("e")) == 2 })
	f.requireHistory("e", "send", "release")
	f.requireOutcomes(nil)
	if f.metrics.get("letter slack_rejected")+f.metrics.get("letter bad_json") > 0 {
		t.Error("dead letters were counted that are not stored")
	}

	f.provision(patience)
	f.awaitSettled(2)
	f.requireHistory("e", "send", "release", "send", "refund")
	f.requireOutcomes(map[string]int{"dead payments": 2})
	for _, line := range []string{"dead letters cannot be stored", "dead letters can be stored again"} {
		if lines := f.log.lines(line); len(lines) != 1 {
			t.Errorf("%q was logged %d times, want once", line, len(lines))
		}
	}
}

// While the setup is at fault no more events are taken, the worker is not ready, and nothing is lost. It goes on by itself.
func TestMisconfigured(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mended := newGate(t)
	f.sink.send = func(context.Context, event.Event, int) *Failure {
		select {
		case <-mended.opened:
			return nil
		default:
			return &Failure{Class: Misconfigured, Code: "invalid_auth", Err: errScripted}
		}
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
	if info := f.consumerInfo(); info.NumPending != 10 || info.NumAckPending != 1 {
		t.Errorf("%d events wait and %d are taken, want 10 and 1", info.NumPending, info.NumAckPending)
	}
	mended.open()
	f.awaitSettled(11)
	f.eventually("it is ready", func() bool { return w.Ready() == nil })
	f.requireSaid(first, "+ACK")
	f.requireHistory("first", "send", "send", "finish")
	f.requireOutcomes(map[string]int{"sent payments": 1, "sent errors": 10})
	if lines := f.log.lines("deliveries are misconfigured"); len(lines) != 1 {
		t.Errorf("that was logged %d times, want once", len(lines))
	}
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
	f.sink.send = func(context.Context, event.Event, int) *Failure {
		select {
		case <-mended.opened:
			return nil
		default:
			refused.Add(1)
			return &Failure{Class: Misconfigured, Code: "invalid_auth", Err: errScripted}
		}
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
	trouble := newTrouble(slog.New(slog.DiscardHandler))
	prober, other := &delivery{destination: "C1"}, &delivery{destination: "C1"}
	trouble.misconfigure(prober, errScripted)
	if !trouble.turn(t.Context(), &delivery{destination: "C2"}) {
		t.Error("another destination has to wait")
	}
	looked := make(chan bool)
	go func() { looked <- trouble.turn(t.Context(), other) }()
	for {
		trouble.mu.Lock()
		waiting := trouble.faults["C1"].waiting
		trouble.mu.Unlock()
		if waiting == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	trouble.leave(prober)
	if <-looked {
		t.Error("who waited may try without looking again")
	}
	if !trouble.turn(t.Context(), other) {
		t.Error("nobody takes over")
	}
	trouble.leave(prober) // it is the prober no more
	if _, err := trouble.misconfiguration(); !errors.Is(err, errScripted) {
		t.Errorf("the fault is %v, want it to stand", err)
	}
	changed, _ := trouble.misconfiguration()
	trouble.leave(other)
	if _, err := trouble.misconfiguration(); err != nil {
		t.Errorf("the fault %v stands though nobody tries", err)
	}
	<-changed
}

// An event that becomes too old while it waits is expired. Its slot is returned if it surely was never posted; else it counts as
// delivered.
func TestExpiredWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		class FailureClass
		ends  string
	}{
		"certainly not delivered": {Transient, "refund"},
		"perhaps delivered":       {Uncertain, "finish"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.sink.send = failing(test.class, 1000)
			f.start(func(o *Options) { o.MaxAge = time.Second })
			sequence := f.event("payments", "e")
			f.awaitSettled(1)
			f.requireSaid(sequence, "+ACK")
			f.requireOutcomes(map[string]int{"expired payments": 1})
			if history := f.journal.about("e"); len(history) < 2 || history[len(history)-1] != test.ends {
				t.Errorf("happened: %q, want that it ends with %s", history, test.ends)
			}
		})
	}
}

// Whether a worker before may have posted an event is for the throttle to say, not for the number of deliveries: where it may, the
// event counts as delivered when it expires, and its slot stays taken.
func TestExpiredAfterARedelivery(t *testing.T) {
	t.Parallel()
	for inDoubt, ends := range map[bool]string{false: "refund", true: "finish"} {
		t.Run(ends, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			found := f.provision(patience)
			sequence := f.event("payments", "e")
			f.deliverOnce(found)
			f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
				decision := f.throttle.admit(c)
				decision.InDoubt = inDoubt
				return decision, nil
			}
			f.sink.send = failing(Transient, 1000)
			f.start(func(o *Options) { o.MaxAge = 3 * time.Second })
			f.awaitSettled(1)
			f.requireSaid(sequence, "-NAK", "+ACK")
			f.requireOutcomes(map[string]int{"expired payments": 1})
			if history := f.journal.about("e"); len(history) < 2 || history[len(history)-1] != ends {
				t.Errorf("happened: %q, want that it ends with %s", history, ends)
			}
		})
	}
}

// What Slack rejects while it is in doubt whether an attempt before delivered it counts as delivered: a replay of it is a duplicate.
func TestRejectedInDoubt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		inDoubt bool
		send    func(context.Context, event.Event, int) *Failure
		history []string
	}{
		"not in doubt":           {false, failing(Rejected, 1000), []string{"send", "refund"}},
		"of a worker before":     {true, failing(Rejected, 1000), []string{"send", "finish"}},
		"of an attempt before":   {false, inTurn(Uncertain, Rejected), []string{"send", "send", "finish"}},
		"of a certain one first": {false, inTurn(Transient, Rejected), []string{"send", "send", "refund"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
				decision := f.throttle.admit(c)
				decision.InDoubt = test.inDoubt
				return decision, nil
			}
			f.sink.send = test.send
			f.start(nil)
			f.event("payments", "e")
			f.awaitSettled(1)
			f.requireHistory("e", test.history...)
			f.requireOutcomes(map[string]int{"dead payments": 1})
		})
	}
}

// inTurn fails with one class after the other, and goes on with the last one.
func inTurn(classes ...FailureClass) func(context.Context, event.Event, int) *Failure {
	return func(_ context.Context, _ event.Event, attempt int) *Failure {
		return &Failure{Class: classes[min(attempt, len(classes))-1], Code: "scripted_code", Err: errScripted}
	}
}
