package consume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// outcomeCase is an event that nothing goes wrong with: how it is acknowledged and counted, and what becomes of its grant.
type outcomeCase struct {
	setUp     func(*fixture)
	subject   string // "" for notify.payments
	body      string // "" for an event with the ID e
	redeliver bool   // another instance had it before
	maxAge    time.Duration

	outcome Outcome // "": none is counted
	said    string  // "" for +ACK
	history []string
	level   string
	unasked bool // the throttle is not asked
}

// decided has the throttle answer with one verdict.
func decided(verdict throttle.Verdict) func(*fixture) {
	return func(f *fixture) { f.throttle.answers(always(throttle.Decision{Verdict: verdict})) }
}

// inShadow has the throttle measure a denial, and admit.
func inShadow(verdict throttle.Verdict) func(*fixture) {
	return func(f *fixture) {
		f.throttle.answers(func(c throttle.Request) throttle.Decision {
			return throttle.Decision{Verdict: verdict, Node: limits.Node{Level: "the rule"}, Grant: f.throttle.grant(c)}
		})
	}
}

func knownFull(f *fixture) {
	f.throttle.full = fullFor("the rule", "payments")
}

var posted = []string{"send", "finish"}

var outcomeCases = map[string]outcomeCase{
	"sent":                                 {outcome: Sent, history: posted},
	"denied":                               {setUp: func(f *fixture) { f.throttle.answers(always(denied(0))) }, outcome: Dropped, level: "the rule"},
	"duplicate":                            {setUp: decided(throttle.Duplicate), outcome: Duplicate},
	"done":                                 {setUp: decided(throttle.Done), redeliver: true}, // whoever delivered it has counted it
	"delivered, which was recorded before": {setUp: func(f *fixture) { f.throttle.finished["payments order-1"] = true }, history: posted},

	"denied in shadow mode":             {setUp: inShadow(throttle.Denied), outcome: Sent, history: posted, level: "the rule"},
	"exceeds a capacity in shadow mode": {setUp: inShadow(throttle.ExceedsCapacity), outcome: Sent, history: posted, level: "the rule"},

	"known to be full, undecoded": {setUp: knownFull, body: "{broken", outcome: Dropped, level: "the rule", unasked: true},
	"known to be full, by its body": {setUp: knownFull, subject: "notify", body: `{"title": "x", "category": "payments"}`,
		outcome: Dropped, level: "the rule", unasked: true},
	"known to be full, but delivered before": {setUp: knownFull, redeliver: true, outcome: Sent, history: posted},

	"broken":                             {body: "{broken", outcome: Dead, said: "+TERM bad_json: …", unasked: true},
	"broken, without category":           {subject: "notify.PÄY", outcome: Dead, said: "+TERM bad_category: …", unasked: true},
	"expired":                            {maxAge: time.Nanosecond, outcome: Expired, unasked: true},
	"expired, broken, delivered before":  {maxAge: time.Nanosecond, redeliver: true, body: "{broken", outcome: Expired, unasked: true},
	"expired, delivered before, unknown": {setUp: decided(throttle.Unknown), maxAge: time.Nanosecond, redeliver: true, outcome: Expired},
	"expired, delivered before, done":    {setUp: decided(throttle.Done), maxAge: time.Nanosecond, redeliver: true},
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, test := range outcomeCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			found := f.provision(patience)
			if test.setUp != nil {
				test.setUp(f)
			}
			subject := cmp.Or(test.subject, "notify.payments")
			sequence := f.publish(subject, cmp.Or(test.body, `{"id": "order-1", "title": "an event"}`))
			said := []string{cmp.Or(test.said, "+ACK")}
			if test.redeliver {
				f.deliverOnce(found)
				said = slices.Insert(said, 0, sayNak)
			}
			f.start(func(o *Options) { o.MaxAge = test.maxAge })
			f.requireEmpty()
			if test.outcome == "" {
				f.requireOutcomes(nil)
			} else {
				category := "payments"
				if strings.HasSuffix(subject, "PÄY") {
					category = ""
				}
				f.eventually("it is counted", func() bool { return f.metrics.ended() == 1 })
				f.requireOutcomes(map[string]int{fmt.Sprintf("%s %s", test.outcome, category): 1})
			}
			f.requireSaid(sequence, said...)
			f.requireHistory("order-1", test.history...)
			f.requireCount("by the rule payments", len(test.level)/len("the rule"))
			f.requireAsked(sequence, !test.unasked, test.maxAge > 0)
			tried, sent := len(test.history)/2, 0
			if tried > 0 && test.outcome == Sent {
				sent = 1
			}
			f.eventually("it is under way no more", func() bool { return f.metrics.Get("under way") == 0 })
			if f.metrics.Get("age") != sent || f.metrics.mostUnderWay() != tried {
				t.Errorf("%d ages, %d under way at most, want %d and %d", f.metrics.Get("age"), f.metrics.mostUnderWay(), sent, tried)
			}
		})
	}
}

// requireAsked checks what the throttle was asked about the event with the ID e; a look-up costs nothing.
func (f *fixture) requireAsked(sequence uint64, want, lookUp bool) {
	f.Helper()
	asked := f.throttle.asked()
	if len(asked) > 0 != want {
		f.Errorf("the throttle was asked for %v", asked)
	}
	for _, c := range asked {
		if c.Cost == 0 != lookUp || shown(c) != "order-1" || c.Message.Stream != testNames.Stream || c.Message.Sequence != sequence || time.Since(c.Message.Stored) > patience {
			f.Errorf("the throttle was asked for %+v", c)
		}
	}
}

// An event that someone else delivers, or about which nothing can be decided now, comes back, and keeps nothing else waiting.
func TestUndecided(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first             throttle.Decision
		err               error
		shortest, longest time.Duration
	}{
		"someone else delivers it": {first: throttle.Decision{Verdict: throttle.Leased, Wait: 300 * time.Millisecond}, shortest: 300 * time.Millisecond, longest: 400 * time.Millisecond},
		"nothing can be decided":   {err: errScripted, shortest: 700 * time.Millisecond, longest: 1300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.provision(patience)
			asked := 0
			f.throttle.decideOne = func(_ context.Context, c throttle.Request) (throttle.Decision, error) {
				if shown(c) == "order-1" {
					if asked++; asked == 1 {
						return test.first, test.err
					}
				}
				return f.throttle.admit(c), nil
			}
			sequence := f.event("payments", "order-1")
			f.start(nil)
			f.eventually("it gets a nak", func() bool { return len(f.said.about(sequence)) > 0 })
			f.event("payments", "another")
			f.eventually("the other one is sent", func() bool { return f.journal.count("finish another") == 1 })
			f.requireHistory("another", "send", "finish")
			delays := f.said.delays(t, sequence)
			if len(delays) != 1 || delays[0] < test.shortest || delays[0] > test.longest {
				t.Errorf("put off by %v, want once, by %v to %v", delays, test.shortest, test.longest)
			}
			f.awaitSettled(2)
			f.requireHistory("order-1", "send", "finish")
			testkit.Equal(t, f.metrics.Get("redelivered"), 1, "redeliveries were counted")
		})
	}
}

// While deliveries are slow a worker holds no more than its pool has elements for, and posts no more at once than it may.
func TestInHandIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const concurrency, events = 3, poolSize + 100
	f.provision(patience)
	for i := range events {
		f.event("payments", fmt.Sprint(i))
	}
	release := newGate(t)
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		if err := release.pass(ctx); err != nil {
			return &sink.Error{Class: sink.Unknown, Err: err}
		}
		return nil
	}
	f.start(func(o *Options) { o.Concurrency = concurrency })
	f.eventually("all events are taken", func() bool { return f.consumerInfo().NumAckPending == events })
	// The last elements stay free until there are enough for a batch that is worth a call.
	f.eventually("the pool is full", func() bool { return len(f.throttle.asked()) > poolSize+concurrency-poolSize/4 })
	f.eventually("posts are under way", func() bool { return f.sink.mostAtOnce() == concurrency })
	if decided := len(f.throttle.asked()); decided > poolSize+concurrency {
		t.Errorf("%d events were decided about, want no more than the pool has elements: %d", decided, poolSize+concurrency)
	}
	release.open()
	f.awaitSettled(events)
	f.requireOutcomes(map[string]int{"sent payments": events})
	testkit.Equal(t, f.sink.mostAtOnce(), concurrency, "posts were under way at once")
	if got := len(slices.Compact(slices.Sorted(slices.Values(f.journal.all())))); got != 2*events {
		t.Errorf("%d different things happened, want one post and one record for each of %d events", got, events)
	}
}

// A throttle that is unavailable is waited for, and no event is taken meanwhile.
func TestThrottleIsAwaited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	back, waiting := newGate(t), make(chan struct{}, 1)
	f.throttle.await = func(ctx context.Context) error {
		select {
		case waiting <- struct{}{}:
		default:
		}
		return back.pass(ctx)
	}
	f.event("payments", "order-1")
	f.start(nil)
	<-waiting
	if info := f.consumerInfo(); info.NumPending != 1 || info.NumAckPending != 0 || info.NumWaiting != 0 {
		t.Errorf("%d events wait, %d are taken, %d requests are open; want 1, 0, 0", info.NumPending, info.NumAckPending, info.NumWaiting)
	}
	back.open()
	f.awaitSettled(1)
	f.requireHistory("order-1", "send", "finish")
}
