package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// status publishes an event that fires or resolves, about the key k. Its ID is its status.
func (f *fixture) status(status event.Status) uint64 {
	f.Helper()
	return f.publish("notify.payments", fmt.Sprintf(`{"id": %q, "title": "an event", "status": %[1]q, "key": "k"}`, status))
}

// A resolved event with a key is never dropped because a limit is known to be full; any other is.
func TestResolvedIsNeverDroppedUnasked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body  string
		asked bool
	}{
		"resolved":              {`{"id": "e", "title": "x", "status": "resolved", "key": "k"}`, true},
		"resolved, escaped":     {`{"id": "e", "title": "x", "st\u0061tus": "r\u0065solved", "key": "k"}`, true},
		"of an alert":           {`{"id": "e", "alerts": [{"status": "resolved", "labels": {"alertname": "x"}, "fingerprint": "f"}]}`, true},
		"resolved, without key": {`{"id": "e", "title": "x", "status": "resolved"}`, false},
		"firing":                {`{"id": "e", "title": "resolved", "status": "firing", "key": "k"}`, false},
		"not JSON":              {`resolved`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.throttle.full = func(string) (string, bool) { return "the rule", true }
			f.start(nil)
			f.publish("notify.payments", test.body)
			f.awaitSettled(1)
			if asked := len(f.throttle.asked()) == 1; asked != test.asked {
				t.Errorf("the throttle was asked: %t, want %t", asked, test.asked)
			}
			if test.asked {
				f.requireOutcomes(map[string]int{"sent payments": 1})
			} else {
				f.requireOutcomes(map[string]int{"dropped payments": 1})
			}
		})
	}
}

// The receipt of a firing event is kept, and handed on with what resolves it.
func TestReceipts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	f.sink.receipt = "C1/7"
	f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
		decision := f.throttle.admit(c)
		if c.Event.Resolves() {
			decision.Opened = f.sink.receipt
		}
		return decision, nil
	}
	f.status(event.StatusFiring)
	f.status(event.StatusResolved)
	f.start(nil)
	f.awaitSettled(2)
	f.requireHistory("firing", "send", "keep C1/7", "finish")
	f.requireHistory("resolved", "resolve C1/7", "keep C1/7", "finish")
	f.requireOutcomes(map[string]int{"sent payments": 2})
	if paired, unpaired := f.metrics.get("resolved paired"), f.metrics.get("resolved unpaired"); paired != 1 || unpaired != 0 {
		t.Errorf("%d were counted as paired and %d as unpaired, want 1 and 0", paired, unpaired)
	}
}

// judgeUnpaired finds no pair for what resolves, and leaves the rest to another judge (nil: admit).
func (f *fixture) judgeUnpaired(other func(Candidate) Decision) {
	f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
		switch {
		case c.Event.Resolves():
			return Decision{Verdict: Unpaired}, nil
		case other != nil:
			return other(c), nil
		}
		return f.throttle.admit(c), nil
	}
}

// mixedStream makes a stream that holds other subjects too, and keeps what is settled.
func (f *fixture) mixedStream() {
	f.Helper()
	config := testNames.StreamConfig()
	config.Subjects, config.Retention = append(config.Subjects, "other.>"), jetstream.LimitsPolicy
	if _, err := f.js.CreateStream(f.Context(), config); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) deleteMessage(sequence uint64) {
	f.Helper()
	stream, err := f.js.Stream(f.Context(), testNames.Stream)
	if err != nil {
		f.Fatal(err)
	}
	if err := stream.DeleteMsg(f.Context(), sequence); err != nil {
		f.Fatal(err)
	}
}

// A resolved event without a pair is dropped once every message before it is settled, and not before.
func TestUnpaired(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ackWait time.Duration
		taken   bool                                          // another instance has the firing event, and is gone
		setUp   func(f *fixture, firing uint64, settle *gate) // of what keeps the firing event
		ends    string                                        // what is done about the firing event last
	}{
		"before it is nothing": {ends: ""},
		"before it is one in hand": {ends: "finish", setUp: func(f *fixture, _ uint64, settle *gate) {
			f.sink.send = func(ctx context.Context, _ event.Event, _ int) *Failure {
				_ = settle.pass(ctx)
				return nil
			}
		}},
		"before it is one that was given back": {ends: "finish", setUp: func(f *fixture, _ uint64, settle *gate) {
			f.judgeUnpaired(func(c Candidate) Decision {
				select {
				case <-settle.opened:
					return f.throttle.admit(c)
				default:
					return Decision{Verdict: Wait, Wait: 700 * time.Millisecond}
				}
			})
		}},
		"before it is one that comes again": {ends: "finish", ackWait: 1500 * time.Millisecond, taken: true},
		"before it is one that is deleted": {ackWait: 1500 * time.Millisecond, taken: true, setUp: func(f *fixture, firing uint64, _ *gate) {
			f.deleteMessage(firing)
		}},
	} {
		for _, mixed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, mixed stream %t", name, mixed), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				ackWait := max(test.ackWait, 0)
				if ackWait == 0 {
					ackWait = patience
				}
				if mixed {
					f.mixedStream()
				}
				found := f.provision(ackWait)
				other := func(n int) {
					for range n {
						if mixed {
							f.publish("other.subject", "no event")
						} else {
							f.deleteMessage(f.event("payments", "gone"))
						}
					}
				}
				settle := newGate(t)
				f.judgeUnpaired(nil)
				other(3)
				var firing uint64
				if test.ends != "" || test.setUp != nil {
					firing = f.status(event.StatusFiring)
				}
				if test.taken {
					if _, err := found.consumer.Next(jetstream.FetchMaxWait(patience)); err != nil {
						t.Fatal(err)
					}
				}
				if test.setUp != nil {
					test.setUp(f, firing, settle)
				}
				other(3)
				resolved := f.status(event.StatusResolved)
				other(3)
				dropped := make(chan bool, 1) // tells whether that was too early
				f.start(func(o *Options) {
					o.AckWait = ackWait
					o.Drops = func(drops []Drop) {
						dropped <- test.ends != "" && f.journal.count(test.ends+" firing") == 0
						if want := []Drop{{Category: "payments", Level: LevelUnpaired, Title: "an event", Count: 1}}; !slices.Equal(drops, want) {
							t.Errorf("dropped: %v, want %v", drops, want)
						}
					}
				})
				if test.setUp != nil && !test.taken {
					f.eventually("it is given back, and again", func() bool { return len(f.said.about(resolved)) > 2 })
					f.requireOutcomes(nil)
					// The first time it is only too young.
					for i, delay := range f.said.delays(t, resolved)[1:3] {
						if want := firstUnpairedWait << (i + 1); delay < want*3/4 || delay > want*5/4 {
							t.Errorf("put off by %v for time %d, want by %v give or take a quarter", delay, i+1, want)
						}
					}
				}
				settle.open()
				select {
				case early := <-dropped:
					if early {
						t.Error("it was dropped before what was stored before it was settled")
					}
				case <-time.After(patience):
					t.Fatal("it is not dropped")
				}
				if n := f.metrics.get("by unpaired payments"); n != 1 {
					t.Errorf("%d drops were counted by level, want 1", n)
				}
				want := map[string]int{"dropped payments": 1}
				if test.ends != "" {
					want["sent payments"] = 1
				} else if !test.taken {
					f.eventually("it is put off once, since it is young, and settled", func() bool {
						said := f.said.about(resolved)
						return len(said) > 1 && said[len(said)-1] == "+ACK"
					})
				}
				f.requireOutcomes(want)
				f.requireHistory("resolved")
				if paired, unpaired := f.metrics.get("resolved paired"), f.metrics.get("resolved unpaired"); paired != 0 || unpaired != 1 {
					t.Errorf("%d were counted as paired and %d as unpaired, want 0 and 1", paired, unpaired)
				}
			})
		}
	}
}

// A consumer that was made anew counts anew: what its predecessor had settled is settled again first.
func TestUnpairedAfterTheConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mixedStream()
	f.provision(patience)
	anew, settle := newGate(t), newGate(t)
	f.judgeUnpaired(func(c Candidate) Decision {
		select {
		case <-anew.opened:
		default:
			return f.throttle.admit(c)
		}
		select {
		case <-settle.opened:
			return Decision{Verdict: Done}
		default:
			return Decision{Verdict: Wait, Wait: 300 * time.Millisecond}
		}
	})
	f.status(event.StatusFiring)
	resolved := f.status(event.StatusResolved)
	f.start(nil)
	f.eventually("both end", func() bool { return f.metrics.ended() == 2 })

	anew.open()
	said := len(f.said.about(resolved))
	if err := f.js.DeleteConsumer(t.Context(), testNames.Stream, testNames.Consumer); err != nil {
		t.Fatal(err)
	}
	f.eventually("it is given back, and again", func() bool { return len(f.said.about(resolved)) > said+1 })
	f.requireOutcomes(map[string]int{"sent payments": 1, "dropped payments": 1})
	settle.open()
	f.eventually("both end again", func() bool { return f.metrics.ended() == 4 })
	f.requireOutcomes(map[string]int{"sent payments": 2, "dropped payments": 2})
}

// Events that resolve nothing do not wait for each other: only for what may open a pair, alone or in a group.
func TestUnpairedCrowd(t *testing.T) {
	t.Parallel()
	const crowd = 30
	f := newFixture(t)
	f.judgeUnpaired(nil)
	w := f.prepared(nil)
	var last uint64
	for range crowd {
		last = f.publish("notify.payments", `{"title": "an event", "status": "resolved", "key": "k"}`)
	}
	if first, err := w.firstOpening(t.Context(), w.place.Load(), 0); err != nil || first <= last {
		t.Errorf("the first message that may open a pair is %d (%v), want one behind the crowd of %d", first, err, last)
	}
	group := f.publish("notify.payments", `{"alerts": [{"status": "resolved", "fingerprint": "a"}, {"status": "firing", "fingerprint": "b"}]}`)
	if first, err := w.firstOpening(t.Context(), w.place.Load(), 0); err != nil || first != group {
		t.Errorf("the first message that may open a pair is %d (%v), want the group, %d", first, err, group)
	}
	f.deleteMessage(group)
	f.start(nil)
	f.awaitSettled(crowd)
	f.requireOutcomes(map[string]int{"dropped payments": crowd})
}

// Where the stream cannot be asked about, a resolved event waits.
func TestUnpairedInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.status(event.StatusResolved)
	m := f.taken(w, patience)
	blind := *w.place.Load()
	blind.stream = nil
	w.place.Store(&blind)
	if w.settledBefore(t.Context(), m) {
		t.Error("all before it is settled, though that is not known")
	}
	if _, err := w.firstOpening(t.Context(), &blind, 0); !errors.Is(err, errNoStream) {
		t.Errorf("the error is %v, want %v", err, errNoStream)
	}
	w.unpaired(t.Context(), m)
	f.requireSaid(1, "-NAK…")
	f.requireOutcomes(nil)

	sighted := f.provision(patience)
	w.place.Store(&sighted)
	if !w.settledBefore(t.Context(), m) {
		t.Error("something before it is not settled, though it is the first one")
	}
}
