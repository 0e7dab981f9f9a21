package consume

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// mayDelay lets events wait for slots for an hour.
func mayDelay(o *setup) { o.Delay = func(string) time.Duration { return time.Hour } }

func slowDelays(o *setup) { slow(o); mayDelay(o) }

// denyFirst has the throttle deny each event first, and admit it after its wait.
func (f *fixture) denyFirst(answer func(c store.Request, longest time.Duration) (store.DelayVerdict, time.Duration, error)) {
	f.throttle.answers(func(c store.Request) store.Decision {
		if c.HasWaited {
			return f.throttle.admit(c)
		}
		return denied(time.Second)
	})
	f.throttle.delay = answer
}

func comeBackIn(in time.Duration) func(store.Request, time.Duration) (store.DelayVerdict, time.Duration, error) {
	return func(store.Request, time.Duration) (store.DelayVerdict, time.Duration, error) {
		return store.ComesBack, in, nil
	}
}

// refuse refuses every event that would wait for a slot.
func refuse(verdict store.DelayVerdict) func(store.Request, time.Duration) (store.DelayVerdict, time.Duration, error) {
	return func(store.Request, time.Duration) (store.DelayVerdict, time.Duration, error) { return verdict, 0, nil }
}

// TestDelay has a denied event wait in the room until its slot opens. The longest wait of a replayed event counts from the replay.
func TestDelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.denyFirst(func(_ store.Request, longest time.Duration) (store.DelayVerdict, time.Duration, error) {
		testkit.Check(t, longest <= time.Hour+clockError && longest >= time.Hour-patience, "longest wait: got %v, want about an hour", longest)
		return store.ComesBack, 2 * time.Second, nil
	})
	start := time.Now()
	f.start(mayDelay)
	sequence := f.event("payments", "order-1")
	f.requireSaid(sequence, "+ACK")
	f.requireOutcomes(nil)
	waiting := f.waiting(room.Slot)
	testkit.Require(t, len(waiting) == 1 && testNames.Room().First(waiting[0].Subject) == "payments",
		"waiting messages: got %d, want one of payments", len(waiting))
	at, err := time.Parse(time.RFC3339, strings.TrimPrefix(waiting[0].Header.Get("Nats-Schedule"), "@at "))
	if in := at.Sub(start); err != nil || in < 2*time.Second || in > 2*time.Second+patience {
		t.Errorf("wait: got %v (%v) with %v, want about 2 s", in, err, waiting[0].Header)
	}
	testkit.Equal(t, f.metrics.Get("delayed"), 1, "delayed events")
	testkit.Equal(t, f.metrics.Get("denied payments by the rule"), 1, "denials of the rule")
	f.awaitSettled(1)
	f.requireRoomEmpty()
	took := time.Since(start)
	testkit.Check(t, took >= time.Second, "wait: got %v, want at least a second", took)
	f.requireOutcomes(map[string]int{"sent payments": 1})
	testkit.Equal(t, f.metrics.Get("age"), 0, "observed ages of events that waited for a slot")
	f.requireHistory("order-1", "send", "finish")

	long := time.Now().Add(-24 * time.Hour)
	f.putInRoom(testNames.Room().Queue(room.Replay, "payments"), room.Entry{
		Reason: room.Replay, Subject: "notify.payments", ID: "order-2", Origin: room.Origin{Stream: "OTHER", Sequence: 7, Stored: long}, Since: long,
	}, `{"title": "an event"}`)
	f.eventually("the replay ends", func() bool { return f.metrics.ended() == 2 })
	f.requireRoomEmpty()
	testkit.Equal(t, f.metrics.Get("delayed"), 2, "delayed events")
	f.requireOutcomes(map[string]int{"sent payments": 2})
}

// TestDelayOutlivesTheMaxAge has events of the README's settings, NOTIFIER_DELAY=security=6h and the default age of 1h, grow old.
func TestDelayOutlivesTheMaxAge(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.newWorker(func(o *setup) {
		o.MaxAge = time.Hour
		o.Delay = func(category string) time.Duration {
			return map[string]time.Duration{"security": 6 * time.Hour, "audit": time.Minute}[category]
		}
	})
	const securityInBody = `{"category": "security", "title": "an event"}`
	stored := time.Now()
	for _, test := range []struct {
		subject, body string
		last          time.Duration // age at which the event is not too old yet
	}{
		{"notify.payments", "", time.Hour},
		{"notify.audit", "", time.Hour},
		{"notify.security", "", 6*time.Hour + received.TimeToDeliver},
		{"notify", securityInBody, 6*time.Hour + received.TimeToDeliver},
		{"notify", `{"title": "an event"}`, time.Hour},
		{"notify", `{"broken`, time.Hour},
	} {
		m := &received.Message{Content: received.Content{Data: []byte(test.body)}, Entry: &room.Entry{Subject: test.subject, Since: stored}}
		testkit.Equal(t, w.decider.intake.reader.TooOld(stored.Add(test.last), m), false, "%s %s is too old after %v", test.subject, test.body, test.last)
		testkit.Equal(t, w.decider.intake.reader.TooOld(stored.Add(test.last+time.Nanosecond), m), true, "%s %s is too old after more than %v", test.subject, test.body, test.last)
	}
	report := &received.Message{Entry: &room.Entry{Subject: "notify.payments", Since: stored, Steady: 1}}
	testkit.Equal(t, w.decider.intake.reader.TooOld(stored.Add(24*time.Hour), report), false, "a report is too old after a day")
	testkit.Equal(t, received.LongestLife(time.Hour, 6*time.Hour), 6*time.Hour+received.TimeToDeliver, "longest life with a long delay")
	testkit.Equal(t, received.LongestLife(time.Hour, time.Minute), time.Hour, "longest life with a short delay")
	testkit.Equal(t, received.LongestLife(time.Hour, 0), time.Hour, "longest life without delays")
	testkit.Equal(t, received.LongestLife(0, 6*time.Hour), 0, "longest life without a maximum age")
}

// TestDelayEnds delays an event three times. The third one comes too late, so the event is dropped. Younger events can still wait.
func TestDelayEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var longest []time.Duration
	f.throttle.answers(always(denied(time.Second)))
	f.throttle.delay = func(c store.Request, left time.Duration) (store.DelayVerdict, time.Duration, error) {
		if shown(c) == "another" {
			return store.ComesBack, time.Hour, nil
		}
		if longest = append(longest, left); len(longest) < 3 {
			return store.ComesBack, time.Second, nil
		}
		return store.TooLate, 0, nil
	}
	drops := make(chan []summary.Drop, 1)
	f.start(func(o *setup) {
		mayDelay(o)
		o.Drops = func(d []summary.Drop) int64 { drops <- d; return 1 }
	})
	f.event("payments", "order-1")
	f.awaitSettled(1)
	f.event("payments", "another")
	f.eventually("the next one waits", func() bool { return len(f.waiting(room.Slot)) == 1 && f.metrics.Get("delayed") > 1 })
	testkit.Equal(t, f.metrics.Get("delayed"), 2, "events that began to wait")
	f.requireOutcomes(map[string]int{"dropped payments": 1})
	want := []summary.Drop{{Category: "payments", Level: "the rule", Title: "an event", N: 1}}
	testkit.EqualDeeply(t, <-drops, want, "drops")
	if len(longest) != 3 || longest[0] > time.Hour+clockError || longest[1] > longest[0]-time.Second/2 || longest[2] > longest[1]-time.Second/2 {
		t.Errorf("longest waits: got %v, want a shorter one each time", longest)
	}
	testkit.Equal(t, f.metrics.Get("refused by the room: slot"), 0, "refused events")
}

// TestDelayedEventLeavesBeforeItEnds ends events that have waited for a slot and are to wait no longer. Each one leaves its queues and its
// pair first, or its resolved event would wait for it.
func TestDelayedEventLeavesBeforeItEnds(t *testing.T) {
	t.Parallel()
	type endingCase struct {
		second  store.Decision
		leaves  int
		outcome string
	}
	mute := store.Decision{}
	mute.MutedBy(&store.Denial{Path: "payments"})
	each(t, map[string]endingCase{
		"muted":                {mute, 1, "dropped payments"},
		"above the capacity":   {store.Decision{Verdict: store.ExceedsCapacity, Node: limits.Node{Level: "the rule"}}, 1, "dropped payments"},
		"expired":              {store.Decision{Verdict: store.Unknown}, 1, "expired payments"},
		"posted meanwhile":     {store.Decision{Verdict: store.Duplicate}, 1, "duplicate payments"},
		"Redis is unavailable": {store.Decision{Verdict: store.Denied, Node: limits.Node{Level: limits.LevelClosed}}, 0, "dropped payments"},
	}, func(t *testing.T, f *fixture, test endingCase) {
		var leaves atomic.Int32
		f.throttle.answers(func(r store.Request) store.Decision {
			if r.HasWaited {
				return test.second
			}
			return denied(time.Second)
		})
		f.throttle.delay = func(r store.Request, left time.Duration) (store.DelayVerdict, time.Duration, error) {
			if !r.HasWaited {
				return store.ComesBack, time.Second, nil
			}
			testkit.Equal(t, left, 0, "time that it may still wait")
			leaves.Add(1)
			return store.TooLate, 0, nil
		}
		f.start(mayDelay)
		f.event("payments", "order-1")
		f.awaitSettled(1)
		f.eventually("it ends", func() bool { return f.metrics.ended() == 1 })
		f.requireOutcomes(map[string]int{test.outcome: 1})
		testkit.Equal(t, int(leaves.Load()), test.leaves, "events that leave their queues")
	})
}

// clockError bounds the error of a worker's server clock on a busy machine.
const clockError = time.Second

// TestDelayRefused refuses to delay an event. The worker drops more events of the category without asking for a second.
func TestDelayRefused(t *testing.T) {
	t.Parallel()
	type refusedCase struct {
		verdict store.DelayVerdict
		counted int
	}
	each(t, map[string]refusedCase{"too many wait": {store.TooMany, 3}, "too late": {store.TooLate, 0}}, func(t *testing.T, f *fixture, test refusedCase) {
		var asked atomic.Int32
		f.denyFirst(func(store.Request, time.Duration) (store.DelayVerdict, time.Duration, error) {
			asked.Add(1)
			return test.verdict, 0, nil
		})
		w := f.start(mayDelay)
		start := time.Now()
		f.event("payments", "first")
		f.awaitSettled(1)
		f.event("payments", "second")
		f.awaitSettled(2)
		if time.Since(start) < outcome.RefusedFor {
			testkit.Equal(t, asked.Load(), 1, "requests within the second")
		}
		testkit.Equal(t, w.decider.refusals.MayWait("errors"), true, "another category may wait")
		f.eventually("the second is over", func() bool { return w.decider.refusals.MayWait("payments") })
		before := asked.Load()
		f.event("payments", "third")
		f.awaitSettled(3)
		testkit.Equal(t, asked.Load()-before, 1, "requests after the second")
		f.requireOutcomes(map[string]int{"dropped payments": 3})
		testkit.Equal(t, f.metrics.Get("refused by the room: slot"), test.counted, "refused events")
		testkit.Equal(t, f.metrics.Get("by the rule payments"), 3, "drops by the rule")
	})
}

// TestDelayRefusedToAKey drops an event whose key has no slot in time. Other events of the category can still wait.
func TestDelayRefusedToAKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	full := denied(time.Hour)
	full.Node.Level, full.Node.Key = "payments@key", limits.HashOfKey("db-1")
	f.throttle.answers(always(full))
	f.throttle.delay = refuse(store.TooLate)
	w := f.start(mayDelay)
	f.event("payments", "first")
	f.awaitSettled(1)
	testkit.Equal(t, w.decider.refusals.MayWait("payments"), true, "the category may wait")
	f.requireOutcomes(map[string]int{"dropped payments": 1})
}

// TestDelayVerdicts has the other ends of a denied or planned event.
func TestDelayVerdicts(t *testing.T) {
	t.Parallel()
	type verdictCase struct {
		setUp     func(f *fixture)
		redeliver bool
		off       bool // the settings let no event wait
		said      string
		outcome   string
	}
	planned := func(verdict store.DelayVerdict, err error) func(*fixture) {
		return func(f *fixture) {
			f.denyFirst(func(store.Request, time.Duration) (store.DelayVerdict, time.Duration, error) {
				return verdict, 0, err
			})
		}
	}
	each(t, map[string]verdictCase{
		"another message with its ID waits": {setUp: planned(store.AlreadyWaiting, nil), said: "+ACK", outcome: "duplicate payments"},
		"it cannot be looked up": {setUp: func(f *fixture) {
			f.throttle.planned = func(store.Request) (time.Duration, bool, error) { return 0, false, errScripted }
		}, redeliver: true, said: "-NAK…"},
		"it was not planned": {redeliver: true, said: "+ACK", outcome: "sent payments"},
		"no slot ever opens": {setUp: func(f *fixture) {
			f.throttle.answers(always(denied(0)))
		}, said: "+ACK", outcome: "dropped payments"},
		"events may not wait": {setUp: func(f *fixture) { f.denyFirst(nil) }, off: true, said: "+ACK", outcome: "dropped payments"},
	}, func(t *testing.T, f *fixture, test verdictCase) {
		found := f.provision(usualAckWait)
		if test.setUp != nil {
			test.setUp(f)
		}
		sequence := f.event("payments", "order-1")
		want := []string{test.said}
		if test.redeliver {
			f.deliverOnce(found)
			want = []string{sayNak, test.said}
		}
		if test.off {
			f.start(nil)
		} else {
			f.start(mayDelay)
		}
		f.requireSaid(sequence, want...)
		if test.outcome == "" {
			f.requireOutcomes(nil)
			return
		}
		f.awaitOutcomes(map[string]int{test.outcome: 1})
	})
}

// TestUnplannedEventIsNotInDoubt fails to plan an event, at first or once it has waited. The event goes on waiting, and no worker has to look
// for its post.
func TestUnplannedEventIsNotInDoubt(t *testing.T) {
	t.Parallel()
	type unplannedCase struct {
		plans int32 // that succeed before
		waits room.Reason
	}
	each(t, map[string]unplannedCase{"new": {0, room.Redis}, "waited": {1, room.Slot}}, func(t *testing.T, f *fixture, test unplannedCase) {
		var asked atomic.Int32
		f.throttle.answers(always(denied(time.Second)))
		f.throttle.delay = func(store.Request, time.Duration) (store.DelayVerdict, time.Duration, error) {
			if asked.Add(1) > test.plans {
				return 0, 0, errScripted
			}
			return store.ComesBack, time.Second, nil
		}
		f.start(mayDelay)
		sequence := f.event("payments", "order-1")
		var waiting []*jetstream.RawStreamMsg
		f.eventually("the event waits without a plan", func() bool {
			waiting = f.waiting(test.waits)
			return asked.Load() == test.plans+1 && len(waiting) == 1
		})
		f.requireSaid(sequence, "+ACK")
		entry := testkit.Must(room.Read(waiting[0].Header, waiting[0].Time))(t)
		testkit.Equal(t, entry.Attempted.IsZero(), true, "no attempt may have posted it")
		f.requireOutcomes(nil)
	})
}

// gatedRoom is a JetStream that stores nothing before its gate opens.
type gatedRoom struct {
	jetstream.JetStream
	*gate
}

func (g gatedRoom) PublishMsgAsync(m *nats.Msg, o ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	<-g.opened
	return g.JetStream.PublishMsgAsync(m, o...)
}

// TestPlannedEventsDelayNoOther redelivers events that were planned to wait while the room cannot be written. Events of other categories go on
// being decided. The plans are looked up in batches, and the events come back in their order.
func TestPlannedEventsDelayNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(usualAckWait)
	const events = 20
	ids := f.numbered("payments", events)
	var delivered []jetstream.Msg
	for msg := range testkit.Must(found.Consumer.Fetch(events, jetstream.FetchMaxWait(patience)))(t).Messages() {
		delivered = append(delivered, msg)
	}
	for _, msg := range delivered {
		testkit.NoError(t, msg.Nak())
	}
	f.throttle.answers(func(c store.Request) store.Decision { return f.throttle.admit(c) })
	f.throttle.planned = func(c store.Request) (time.Duration, bool, error) { return 0, c.Category == "payments", nil }
	w := f.newWorker(slowDelays)
	gate := newGate(t)
	w.streams.JetStream = gatedRoom{w.streams.JetStream, gate}
	f.run(w)
	t.Cleanup(gate.open) // before the worker's own cleanup
	f.event("orders", "order-1")
	f.eventually("the other event ends", func() bool { return f.metrics.ended() == 1 })
	f.requireOutcomes(map[string]int{"sent orders": 1})
	gate.open()
	f.awaitSettled(1 + events)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent orders": 1, "sent payments": events})
	var came []string
	for _, c := range f.throttle.asked() {
		if c.HasWaited {
			came = append(came, shown(c))
		}
	}
	testkit.EqualSlices(t, came, ids, "events in the order in which they came back")
}

// TestDelayOfWhatIsTooLarge denies an event that exceeds the room's largest message with its headers. The event is dropped.
func TestDelayOfWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"at first": false, "planned before": true}, func(t *testing.T, f *fixture, redeliver bool) {
		f.smallRoom()
		found := f.provision(usualAckWait)
		f.denyFirst(comeBackIn(time.Hour))
		f.throttle.planned = func(store.Request) (time.Duration, bool, error) { return time.Hour, true, nil }
		f.publish("notify.payments", strings.Repeat("x", 450))
		level := "the rule"
		if redeliver {
			f.deliverOnce(found)
			level = limits.LevelRoom // a redelivery does not know its rule
		}
		f.start(mayDelay)
		f.awaitOutcomes(map[string]int{"dropped payments": 1})
		testkit.Equal(t, f.metrics.Get("by "+level+" payments"), 1, "drops by %s", level)
		testkit.Equal(t, f.metrics.Get("delayed"), 0, "delayed events")
	})
}

// smallRoom makes a room of messages with at most 500 bytes.
func (f *fixture) smallRoom() {
	f.Helper()
	config := testNames.RoomConfig()
	config.MaxMsgSize = 500
	testkit.Must(f.js.CreateStream(f.Context(), config))(f)
}
