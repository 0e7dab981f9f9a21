package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// paced makes deliveries wait for their destinations in order.
func paced(o *Options) { o.Pace = time.Millisecond }

// posted lists the events that were posted, in order.
func (j *journal) posted() []string {
	var ids []string
	for _, line := range j.all() {
		if id, found := strings.CutPrefix(line, "send "); found {
			ids = append(ids, id)
		}
	}
	return ids
}

// numbered publishes n events of a category, whose IDs are its name and a number.
func (f *fixture) numbered(category string, n int) (ids []string) {
	f.Helper()
	for i := range n {
		id := fmt.Sprintf("%s-%03d", category, i)
		f.event(category, id)
		ids = append(ids, id)
	}
	return ids
}

// Events go to a destination one after the other, in the order in which they were stored, and to several at once.
func TestOrderWithinADestination(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	const events = mostWaiting - 1
	destinations := []string{"one", "two"}
	var want []string
	for _, destination := range destinations {
		want = append(want, f.numbered(destination, events)...)
	}
	var mu sync.Mutex
	running := make(map[string]bool)
	f.sink.send = func(_ context.Context, e event.Event, _ int) *Failure {
		mu.Lock()
		if running[e.Category] {
			t.Errorf("%s is posted while another one is, to the same destination", e.ID)
		}
		running[e.Category] = true
		mu.Unlock()
		time.Sleep(3 * time.Millisecond) // a post takes a while
		mu.Lock()
		defer mu.Unlock()
		running[e.Category] = false
		return nil
	}
	f.start(paced)
	f.awaitSettled(len(want))
	got := f.journal.posted()
	slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:3], b[:3]) })
	if !slices.Equal(got, want) {
		t.Errorf("posted in the order %q, want that of storing within each destination", got)
	}
	if most := f.sink.mostAtOnce(); most != len(destinations) {
		t.Errorf("%d posts were under way at once, want one for each destination", most)
	}
	if held := f.metrics.get("held"); held != 0 {
		t.Errorf("%d deliveries are counted as waiting, want none", held)
	}
}

// A destination that hangs, and one that rests, delay no other.
func TestDestinationsDoNotDelayEachOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	answers := newGate(t)
	f.sink.send = func(ctx context.Context, e event.Event, _ int) *Failure {
		if e.Category == "hangs" {
			_ = answers.pass(ctx)
		}
		return nil
	}
	rested := newGate(t)
	f.throttle.reserve = func(destination string, _ time.Duration) moment {
		select {
		case <-rested.opened:
		default:
			if destination == "rests" {
				return moment{wait: time.Second}
			}
		}
		return moment{}
	}
	f.throttle.Pause(t.Context(), "rests", 10*time.Minute)
	const events = 50
	for _, category := range []string{"hangs", "rests", "quiet"} {
		f.numbered(category, events)
	}
	f.start(func(o *Options) { o.Pace, o.Concurrency = time.Millisecond, 2 })
	f.eventually("the quiet destination gets everything", func() bool { return f.metrics.get("sent quiet") == events })
	f.requireOutcomes(map[string]int{"sent quiet": events})
	if held := f.metrics.get("held"); held < events {
		t.Errorf("%d deliveries are counted as waiting, want those of the destination that rests at least", held)
	}
	answers.open()
	f.throttle.Pause(t.Context(), "rests", 0)
	rested.open()
	f.awaitSettled(3 * events)
	f.requireOutcomes(map[string]int{"sent quiet": events, "sent hangs": events, "sent rests": events})
}

// What is beyond the bounds, of one destination and of all, goes back with a delay; nothing is lost, or posted twice.
func TestWaitingIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ destinations, each, held int }{
		"of one destination": {1, mostWaiting + 8, mostWaiting},
		"of all":             {mostHeld/mostWaiting + 1, mostWaiting, mostHeld},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.provision(patience)
			total := test.destinations * test.each
			for i := range total {
				body := fmt.Appendf(nil, `{"id": "%d", "title": "an event"}`, i)
				if _, err := f.js.PublishAsync(fmt.Sprintf("notify.d%d", i%test.destinations), body); err != nil {
					t.Fatal(err)
				}
			}
			<-f.js.PublishAsyncComplete()
			answers := newGate(t)
			f.sink.send = func(ctx context.Context, _ event.Event, _ int) *Failure {
				_ = answers.pass(ctx)
				return nil
			}
			w := f.start(paced)
			f.eventually("as many wait as may", func() bool { return f.metrics.inHand() == test.held })
			beyond := uint64(test.held + 1)
			f.eventually("the next one is given back", func() bool { return len(f.said.about(beyond)) > 0 })
			if delays := f.said.delays(t, beyond); delays[0] < mostWaiting*time.Millisecond+spread {
				t.Errorf("put off by %v, want until those before it may have gone out", delays)
			}
			answers.open()
			f.awaitSettled(total)
			w.stop()
			if posted := f.journal.posted(); len(posted) != total {
				t.Errorf("%d posts for %d events", len(posted), total)
			}
			if got := f.metrics.ended(); got != total || f.metrics.mostInHand != test.held {
				t.Errorf("%d of %d events ended, %d were in hand at most, want %d", got, total, f.metrics.mostInHand, test.held)
			}
			if w.channels.held != 0 || len(w.channels.queues) != 0 {
				t.Errorf("%d still wait, in %d queues", w.channels.held, len(w.channels.queues))
			}
		})
	}
}

// Nothing is kept of a destination whose deliveries are gone, or were not let in.
func TestQueuesEnd(t *testing.T) {
	t.Parallel()
	c := newChannels(true)
	c.held = mostHeld
	if c.enter(&delivery{destination: "late"}) || len(c.queues) != 0 {
		t.Errorf("beyond the bound there are %d queues, want none", len(c.queues))
	}
	c.held = 0
	first, second := &delivery{destination: "C1"}, &delivery{destination: "C1"}
	if !c.enter(first) || !c.enter(second) || first.before != nil || second.before == nil {
		t.Fatal("want that both wait, the second one for the first")
	}
	first.leaveQueue()
	first.leaveQueue()
	<-second.before
	if c.held != 1 || len(c.queues) != 1 {
		t.Errorf("%d wait in %d queues, want one", c.held, len(c.queues))
	}
	second.leaveQueue()
	if c.held != 0 || len(c.queues) != 0 {
		t.Errorf("%d wait in %d queues, want none", c.held, len(c.queues))
	}
}

// A delivery that waits for longer than an acknowledgement wait keeps its message, and so does the one behind it.
func TestWaitingKeepsTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = time.Second
	var reserved atomic.Bool
	f.throttle.reserve = func(string, time.Duration) moment {
		if reserved.CompareAndSwap(false, true) {
			return moment{wait: 3 * ackWait}
		}
		return moment{}
	}
	f.provision(ackWait)
	f.event("payments", "first")
	f.event("payments", "behind")
	f.start(func(o *Options) { o.AckWait, o.SendTimeout, o.Pace = ackWait, ackWait/4, time.Millisecond })
	f.awaitSettled(2)
	for i, id := range []string{"first", "behind"} {
		f.requireSaid(uint64(i+1), "+ACK")
		if n := f.journal.count("extend " + id); n < 6 {
			t.Errorf("the leases on %s were extended %d times in three acknowledgement waits", id, n)
		}
	}
	if delivered := f.consumerInfo().Delivered.Consumer; delivered != 2 || f.metrics.redelivered != 0 {
		t.Errorf("%d deliveries of two messages", delivered)
	}
	if posted := f.journal.posted(); !slices.Equal(posted, []string{"first", "behind"}) {
		t.Errorf("posted: %q", posted)
	}
}

// A moment that is far away is waited for in JetStream, not here.
func TestBeyondTheHorizon(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.reserve = func(_ string, reach time.Duration) moment {
		if reach != horizon {
			t.Errorf("a moment within %v is asked for, want within %v", reach, horizon)
		}
		return moment{wait: 2 * horizon, tooLate: true}
	}
	f.start(paced)
	sequences := []uint64{f.event("payments", "0"), f.event("payments", "1")}
	for i, sequence := range sequences {
		f.requireSaid(sequence, "-NAK…")
		delays := f.said.delays(t, sequence)
		if len(delays) != 1 || delays[0] <= 2*horizon || delays[0] > 2*horizon+longestSpread {
			t.Errorf("put off by %v, want once, by a little more than %v", delays, 2*horizon)
		}
		f.requireHistory(fmt.Sprint(i), "release")
	}
}

// What waits for its destination when a worker is stopped goes back at once, and keeps its slot.
func TestStopWhileWaitingForADestination(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.reserve = func(string, time.Duration) moment { return moment{wait: patience} }
	w := f.start(paced)
	var sequences []uint64
	for i := range 10 {
		sequences = append(sequences, f.event("payments", fmt.Sprint(i)))
	}
	f.eventually("all wait", func() bool { return f.metrics.get("held") == len(sequences) })
	start := time.Now()
	w.stop()
	if took := time.Since(start); took > patience/4 {
		t.Errorf("the stop took %v", took)
	}
	for i, sequence := range sequences {
		f.requireGivenBack(sequence)
		f.requireHistory(fmt.Sprint(i), "release")
	}
	f.requireOutcomes(nil)
}

// An event that its destination did not take because it wants rest keeps its place before the others.
func TestRateLimitedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	const rest = 500 * time.Millisecond
	ids := f.numbered("payments", 5)
	var refused, again time.Time
	f.sink.send = func(_ context.Context, e event.Event, attempt int) *Failure {
		switch {
		case e.ID == ids[1] && attempt == 1:
			refused = time.Now()
			return &Failure{Class: RateLimited, RetryAfter: rest, Err: errScripted}
		case e.ID == ids[1]:
			again = time.Now()
		}
		return nil
	}
	f.start(paced)
	f.awaitSettled(len(ids))
	if got, want := f.journal.posted(), slices.Insert(slices.Clone(ids), 1, ids[1]); !slices.Equal(got, want) {
		t.Errorf("posted %q, want %q", got, want)
	}
	if took := again.Sub(refused); took < rest {
		t.Errorf("posted again after %v, want a rest of %v", took, rest)
	}
	if got := f.throttle.pauses["payments"]; got != rest {
		t.Errorf("the destination was paused for %v, want %v", got, rest)
	}
	for i := range ids {
		f.requireSaid(uint64(i+1), "+ACK")
	}
}

// A destination that wants a long rest gets it: its events wait in JetStream.
func TestRateLimitedForLong(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.send = func(context.Context, event.Event, int) *Failure {
		return &Failure{Class: RateLimited, RetryAfter: time.Hour, Err: errScripted}
	}
	f.start(paced)
	sequence := f.event("payments", "e")
	f.requireSaid(sequence, "-NAK…")
	if delays := f.said.delays(t, sequence); len(delays) != 1 || delays[0] < 59*time.Minute {
		t.Errorf("put off by %v, want by an hour", delays)
	}
	f.requireHistory("e", "send", "release")
}

// While an event waits for another attempt the next one of its destination goes out.
func TestFailureLetsTheNextOneGo(t *testing.T) {
	t.Parallel()
	for name, class := range map[string]FailureClass{"transient": Transient, "uncertain": Uncertain} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.provision(patience)
			ids := f.numbered("payments", 3)
			f.sink.send = func(_ context.Context, e event.Event, attempt int) *Failure {
				if e.ID == ids[0] && attempt == 1 {
					return &Failure{Class: class, Err: errScripted}
				}
				return nil
			}
			f.start(paced)
			f.awaitSettled(len(ids))
			if got, want := f.journal.posted(), []string{ids[0], ids[1], ids[2], ids[0]}; !slices.Equal(got, want) {
				t.Errorf("posted %q, want %q", got, want)
			}
			f.requireSaid(1, "+ACK")
		})
	}
}
