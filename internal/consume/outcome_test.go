package consume

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// outcomeCase is an event without an error on its way: its ack, its counts, and the calls of its grant.
type outcomeCase struct {
	setUp     func(*fixture)
	subject   string // "" for notify.payments
	body      string // "" for an event with the ID order-1
	redeliver bool   // another worker had the message before
	maxAge    time.Duration

	outcome journal.Result // "": none is counted
	said    string         // "" for +ACK
	history []string
	level   string
	unasked bool // the throttle gets no request

	noCategory bool // the outcome has no category
}

// decided has the throttle answer each request with a verdict.
func decided(verdict store.Verdict) func(*fixture) {
	return func(f *fixture) { f.throttle.answers(always(store.Decision{Verdict: verdict})) }
}

// inShadow has the throttle admit each event with the verdict of a limit in shadow mode.
func inShadow(verdict store.Verdict) func(*fixture) {
	return func(f *fixture) {
		f.throttle.answers(func(c store.Request) store.Decision {
			return store.Decision{Verdict: verdict, Node: limits.Node{Level: "the rule"}, Grant: f.throttle.grant(c)}
		})
	}
}

func knownFull(f *fixture) {
	f.known.full = fullFor("the rule", "payments")
}

var posted = []string{"send", "finish"}

var outcomeCases = map[string]outcomeCase{
	"sent":   {outcome: journal.Sent, history: posted},
	"denied": {setUp: func(f *fixture) { f.throttle.answers(always(denied(0))) }, outcome: journal.Dropped, level: "the rule"},
	"exceeds a capacity": {setUp: func(f *fixture) {
		f.throttle.answers(always(store.Decision{Verdict: store.ExceedsCapacity, Node: limits.Node{Level: "the rule"}}))
	}, outcome: journal.Dropped, level: "the rule"},
	"reclaimed": {setUp: func(f *fixture) {
		f.throttle.answers(func(c store.Request) store.Decision {
			return store.Decision{Verdict: store.Reclaimed, Grant: f.throttle.grant(c)}
		})
	}, outcome: journal.Sent, history: posted},
	"duplicate":                            {setUp: decided(store.Duplicate), outcome: journal.Duplicate},
	"done":                                 {setUp: decided(store.Done), redeliver: true},
	"delivered, which was recorded before": {setUp: func(f *fixture) { f.throttle.finished["payments order-1"] = true }, history: posted},

	"denied in shadow mode":             {setUp: inShadow(store.Denied), outcome: journal.Sent, history: posted},
	"exceeds a capacity in shadow mode": {setUp: inShadow(store.ExceedsCapacity), outcome: journal.Sent, history: posted},

	"known to be full, undecoded": {setUp: knownFull, body: "{broken", outcome: journal.Dropped, level: "the rule", unasked: true},
	"known to be full, by its body": {setUp: knownFull, subject: "notify", body: `{"title": "x", "category": "payments"}`,
		outcome: journal.Dropped, level: "the rule", unasked: true},
	"known to be full, but delivered before": {setUp: knownFull, redeliver: true, outcome: journal.Sent, history: posted},

	"broken":                   {body: "{broken", outcome: journal.Dead, said: "+TERM bad_json: …", unasked: true},
	"broken, without category": {subject: "notify.PÄY", noCategory: true, outcome: journal.Dead, said: "+TERM bad_category: …", unasked: true},
	"expired":                  {maxAge: time.Nanosecond, outcome: journal.Expired, unasked: true},
	"expired, with its category in the body": {subject: "notify", body: `{"title": "x", "category": "payments"}`,
		maxAge: time.Nanosecond, outcome: journal.Expired, unasked: true},
	"expired, without a category that can be read": {subject: "notify", body: "{broken", maxAge: time.Nanosecond, outcome: journal.Expired,
		noCategory: true, unasked: true},
	"expired, broken, delivered before":  {maxAge: time.Nanosecond, redeliver: true, body: "{broken", outcome: journal.Expired, unasked: true},
	"expired, delivered before, unknown": {setUp: decided(store.Unknown), maxAge: time.Nanosecond, redeliver: true, outcome: journal.Expired},
	"expired, delivered before, done":    {setUp: decided(store.Done), maxAge: time.Nanosecond, redeliver: true},
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	each(t, outcomeCases, func(t *testing.T, f *fixture, test outcomeCase) {
		found := f.provision(usualAckWait)
		if test.setUp != nil {
			test.setUp(f)
		}
		sequence := f.publish(cmp.Or(test.subject, "notify.payments"), cmp.Or(test.body, `{"id": "order-1", "title": "an event"}`))
		said := []string{cmp.Or(test.said, "+ACK")}
		if test.redeliver {
			f.deliverOnce(found)
			said = slices.Insert(said, 0, sayNak)
		}
		w := f.start(func(o *setup) { o.MaxAge = test.maxAge })
		f.requireEmpty()
		switch {
		case test.outcome == "":
			f.requireOutcome("")
		case test.noCategory:
			f.requireOutcome(string(test.outcome) + " ")
		default:
			f.requireOutcome(string(test.outcome) + " payments")
		}
		f.requireSaid(sequence, said...)
		f.requireHistory("order-1", test.history...)
		drops := len(test.level) / len("the rule")
		f.eventually("drops are counted a moment after the outcome", func() bool { return f.metrics.Get("by the rule payments") == drops })
		f.requireAsked(sequence, !test.unasked, test.maxAge > 0)
		tried, sent := len(test.history)/2, 0
		if tried > 0 && test.outcome == journal.Sent {
			sent = 1
		}
		f.eventually("it is under way no more", func() bool { return f.metrics.Get("under way") == 0 && w.decider.pool.Taken() == 0 })
		testkit.Check(t, f.metrics.Get("age") == sent && f.metrics.mostUnderWay() == tried,
			"got %d ages and %d deliveries at once, want %d and %d", f.metrics.Get("age"), f.metrics.mostUnderWay(), sent, tried)
	})
}

// requireAsked checks the requests to the throttle about the event order-1. A look-up has no cost.
func (f *fixture) requireAsked(sequence uint64, want, lookUp bool) {
	f.Helper()
	asked := f.throttle.asked()
	testkit.Equal(f, len(asked) > 0, want, "requests to the throttle: %v; some", asked)
	for _, c := range asked {
		if c.Cost == 0 != lookUp || shown(c) != "order-1" || c.Message.Stream != testNames.Stream || c.Message.Sequence != sequence || time.Since(c.Message.Stored) > patience {
			f.Errorf("request: got %+v, want order-1 of message %d", c, sequence)
		}
	}
}

// TestUndecided leaves an event without a decision at first. The event comes back, and holds up no other event.
func TestUndecided(t *testing.T) {
	t.Parallel()
	type undecidedCase struct {
		first             store.Decision
		err               error
		shortest, longest time.Duration
	}
	each(t, map[string]undecidedCase{
		"someone else delivers it": {first: store.Decision{Verdict: store.Leased, Wait: 300 * time.Millisecond}, shortest: 300 * time.Millisecond, longest: 400 * time.Millisecond},
		"nothing can be decided":   {err: errScripted, shortest: 700 * time.Millisecond, longest: 1300 * time.Millisecond},
	}, func(t *testing.T, f *fixture, test undecidedCase) {
		f.provision(usualAckWait)
		asked := 0
		f.throttle.decideOne = func(_ context.Context, c store.Request) (store.Decision, error) {
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
		f.eventually("the other one is sent", func() bool { return f.calls.count("finish another") == 1 })
		f.requireHistory("another", "send", "finish")
		delays := f.said.delays(t, sequence)
		testkit.Check(t, len(delays) == 1 && delays[0] >= test.shortest && delays[0] <= test.longest,
			"delays: got %v, want one of %v to %v", delays, test.shortest, test.longest)
		f.awaitSettled(2)
		f.requireHistory("order-1", "send", "finish")
		testkit.Equal(t, f.metrics.Get("redelivered"), 1, "redeliveries")
	})
}

// TestInHandIsBounded stores more events than the pool has elements, and holds the posts.
func TestInHandIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const concurrency, events = 3, stage.PoolSize + 100
	f.provision(usualAckWait)
	f.numbered("payments", events)
	release := newGate(t)
	f.holdPosts(release)
	f.start(func(o *setup) { o.Concurrency = concurrency })
	f.eventually("all events are taken", func() bool { return f.consumerInfo().NumAckPending == events })
	// The last elements of the pool stay free until they are enough for a batch.
	f.eventually("the pool is full", func() bool { return len(f.throttle.asked()) > stage.PoolSize+concurrency-stage.PoolSize/4 })
	f.eventually("posts are under way", func() bool { return f.sink.mostAtOnce() == concurrency })
	testkit.AtMost(t, len(f.throttle.asked()), stage.PoolSize+concurrency, "decisions")
	release.open()
	f.awaitOutcomes(map[string]int{"sent payments": events})
	testkit.Equal(t, f.sink.mostAtOnce(), concurrency, "posts at once")
	testkit.Equal(t, len(slices.Compact(slices.Sorted(slices.Values(f.calls.all())))), 2*events, "different calls: a post and a record for each event")
}

// TestConsumerRecreatedUnseen recreates the consumer while the worker has no open request. The worker asks the throttle about a message that the
// earlier consumer may have delivered to another worker, although a limit is known to be full. That holds even if the recreated consumer has
// delivered more messages to other workers than the earlier one had delivered.
func TestConsumerRecreatedUnseen(t *testing.T) {
	t.Parallel()
	const ackWait = 2 * time.Second
	testkit.Each(t, map[string]int{"few deliveries": 0, "many deliveries": 5}, func(t *testing.T, others int) {
		f := newFixture(t)
		f.provision(ackWait)
		var waits, full atomic.Bool
		resumed := newGate(t)
		f.throttle.await = func(ctx context.Context) error {
			if waits.Load() {
				return resumed.pass(ctx)
			}
			return ctx.Err()
		}
		f.known.full = func(category string) *store.Denial {
			if full.Load() {
				return fullFor("the rule", "")(category)
			}
			return nil
		}
		f.start(nil)
		f.numbered("payments", 3)
		f.awaitSettled(3)
		waits.Store(true)
		f.eventually("no request is open", func() bool { return f.consumerInfo().NumWaiting == 0 })
		f.numbered("others", others)
		f.event("payments", "before")
		testkit.NoError(t, f.js.DeleteConsumer(t.Context(), testNames.Stream, testNames.Consumer))
		recreated := f.provision(ackWait)
		for range others {
			testkit.NoError(t, testkit.Must(recreated.Consumer.Next())(t).DoubleAck(t.Context()))
		}
		time.Sleep(ackWait / 2) // longer than a request may be open: what is tested
		full.Store(true)
		resumed.open()
		f.awaitOutcomes(map[string]int{"sent payments": 4})
	})
}

// TestThrottleIsAwaited has no throttle for a while. The worker takes no event meanwhile.
func TestThrottleIsAwaited(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
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
		t.Errorf("got %d waiting events, %d taken events and %d requests, want 1, 0 and 0", info.NumPending, info.NumAckPending, info.NumWaiting)
	}
	back.open()
	f.awaitSettled(1)
	f.requireHistory("order-1", "send", "finish")
}

func TestOutcomesAreLogged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.answers(func(c store.Request) store.Decision {
		if c.Category == "payments.full" {
			return store.Decision{Verdict: store.Denied, Node: limits.Node{Path: "payments", Level: limits.LevelCategory}}
		}
		return f.throttle.admit(c)
	})
	f.start(nil)
	f.event("payments", "sent-1")
	f.event("payments.full", "dropped-1")
	f.publish("notify.payments", "{broken", "Nats-Msg-Id", "dead-1")
	f.awaitSettled(3)
	f.eventually("each has a line", func() bool { return f.log.Count("event has ended") == 3 })
	f.log.WantCount(t, 1, `id=sent-1 category=payments outcome=sent`)
	f.log.WantCount(t, 1, `id=dropped-1 category=payments.full outcome=dropped limit_level=category`)
	f.log.WantCount(t, 1, `id=dead-1 category=payments outcome=dead`)
}

// TestShutdownLogsNoRecovery stops a worker during two faults. The end of its deliveries is no recovery. The event that waits for another attempt
// goes back at once, and keeps its slot.
func TestShutdownLogsNoRecovery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.send = inTurn(sink.Misconfigured)
	w := f.start(nil)
	sequence := f.event("payments", "refused")
	f.eventually("Slack refuses it", func() bool { return f.log.Count("sink refuses the setup") > 0 })
	w.stop()
	f.requireGivenBack(sequence)
	f.requireHistory("refused", "send", "release")
	f.requireOutcomes(nil)
	f.log.WantCount(t, 0, "sink accepts deliveries again")
	f.log.WantCount(t, 0, "it is unclear")
}
