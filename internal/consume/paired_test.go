package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// status publishes an event that fires or resolves, about the key k. Its ID is its status.
func (f *fixture) status(status event.Status) uint64 {
	f.Helper()
	return f.publish("notify.payments", fmt.Sprintf(`{"id": %q, "title": "an event", "status": %[1]q, "key": "k"}`, status))
}

// A resolved event is never dropped because a limit is known to be full; any other is.
func TestResolvedIsNeverDroppedUnasked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body  string
		asked bool
	}{
		"resolved":            {`{"id": "order-1", "title": "x", "status": "resolved", "key": "k"}`, true},
		"resolved, escaped":   {`{"id": "order-1", "title": "x", "st\u0061tus": "r\u0065solved", "key": "k"}`, true},
		"of an alert":         {`{"id": "order-1", "alerts": [{"status": "resolved", "labels": {"alertname": "x"}, "fingerprint": "f"}]}`, true},
		"firing, without key": {`{"id": "order-1", "title": "x", "status": "firing"}`, false},
		"firing":              {`{"id": "order-1", "title": "resolved", "status": "firing", "key": "k"}`, false},
		"not JSON":            {`resolved`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.throttle.full = fullFor("the rule", "")
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

// answerUnpaired finds no pair for what resolves, and leaves the others to another function (nil: admit).
func (f *fixture) answerUnpaired(other func(throttle.Request) throttle.Decision) {
	f.throttle.answers(func(c throttle.Request) throttle.Decision {
		switch {
		case c.Resolves:
			return throttle.Decision{Verdict: throttle.Unpaired}
		case other != nil:
			return other(c)
		}
		return f.throttle.admit(c)
	})
}

// mixedStream makes a stream that holds other subjects too, and keeps what is settled.
func (f *fixture) mixedStream() {
	f.Helper()
	config := testNames.StreamConfig()
	config.Subjects, config.Retention = append(config.Subjects, "other.>"), jetstream.LimitsPolicy
	testkit.Must(f.js.CreateStream(f.Context(), config))(f)
}

func (f *fixture) deleteMessage(sequence uint64) {
	f.Helper()
	testkit.NoError(f, f.stream(testNames.Stream).DeleteMsg(f.Context(), sequence))
}

// unpairedCase is a firing event that stands before a resolved one, and what keeps it from being decided.
type unpairedCase struct {
	ackWait time.Duration         // 0: patience
	stored  bool                  // the firing event, in the producers' stream
	taken   bool                  // another instance has it, and is gone
	keeps   func(*fixture, *gate) // until the gate opens; nil: nothing does
	removes func(*fixture)        // what keeps it, once the gate is open; nil: nothing
	ends    string                // what is done about the firing event last; "": it does not end
}

func keptByWorker(f *fixture, settle *gate) {
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		_ = settle.pass(ctx)
		return nil
	}
}

func nakSent(f *fixture, settle *gate) {
	f.answerUnpaired(func(c throttle.Request) throttle.Decision {
		if settle.isOpen() {
			return f.throttle.admit(c)
		}
		return throttle.Decision{Verdict: throttle.Leased, Wait: 700 * time.Millisecond}
	})
}

// keptInRoom has the firing event stand in the room.
func keptInRoom(subject string, reason room.Reason) func(*fixture, *gate) {
	return func(f *fixture, settle *gate) {
		nakSent(f, settle)
		f.putInRoom(subject, room.Entry{
			Reason: reason, Subject: "notify.payments", ID: "firing", Origin: room.Origin{Stream: "OTHER", Sequence: 1, Stored: time.Now()}, Since: time.Now(),
		}, `{"id": "firing", "title": "an event", "status": "firing", "key": "k"}`)
	}
}

// A resolved event without a pair is dropped once every message before it that may open one is settled, and not before. It waits
// for that in the room.
func TestUnpaired(t *testing.T) {
	t.Parallel()
	subjects := testNames.room()
	schedule, due := subjects.Schedule(room.Redis, "payments", "x")
	for name, test := range map[string]unpairedCase{
		"before it is nothing":                   {},
		"before it is one that a worker holds":   {ends: "finish", stored: true, keeps: keptByWorker},
		"before it is one that got a nak":        {ends: "finish", stored: true, keeps: nakSent},
		"before it is one that comes again":      {ends: "finish", stored: true, ackWait: 4 * time.Second, taken: true},
		"in the room is a part that got a nak":   {ends: "finish", keeps: keptInRoom(subjects.Queue(room.Part, "payments"), room.Part)},
		"in the room is a replay that got a nak": {ends: "finish", keeps: keptInRoom(subjects.Queue(room.Replay, "payments"), room.Replay)},
		"in the room is what Redis refused":      {ends: "finish", keeps: keptInRoom(due, room.Redis)},
		"in the room is what Redis refused, not due yet": {keeps: keptInRoom(schedule, room.Redis), removes: func(f *fixture) {
			testkit.NoError(f, f.stream(testNames.RoomStream).Purge(f.Context(), jetstream.WithPurgeSubject(schedule)))
		}},
	} {
		for _, mixed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, mixed stream %t", name, mixed), func(t *testing.T) {
				t.Parallel()
				newFixture(t).requireUnpaired(test, mixed)
			})
		}
	}
}

func (f *fixture) requireUnpaired(test unpairedCase, mixed bool) {
	f.Helper()
	if mixed {
		f.mixedStream()
	}
	ackWait := cmp.Or(test.ackWait, patience)
	found, settle := f.provision(ackWait), newGate(f)
	f.answerUnpaired(nil)
	f.others(mixed)
	if test.stored {
		f.status(event.StatusFiring)
	}
	if test.taken {
		testkit.Must(found.consumer.Next(jetstream.FetchMaxWait(patience)))(f)
	}
	if test.keeps != nil {
		test.keeps(f, settle)
	}
	f.others(mixed)
	resolved := f.status(event.StatusResolved)
	f.others(mixed)
	early := make(chan bool, 1) // it was dropped before the firing event ended
	f.start(func(o *Options) {
		o.AckWait = ackWait
		o.Drops = func(drops []summary.Drop) {
			early <- test.ends != "" && f.journal.count(test.ends+" firing") == 0
			testkit.EqualSlices(f, drops, []summary.Drop{{Category: "payments", Level: throttle.LevelUnpaired, Title: "an event", N: 1}}, "dropped")
		}
	})
	if test.keeps != nil {
		f.requireWaitsAgain(resolved)
	}
	settle.open()
	if test.removes != nil {
		test.removes(f)
	}
	select {
	case tooEarly := <-early:
		testkit.Equal(f, tooEarly, false, "it was dropped before what may open its pair was settled")
	case <-time.After(patience):
		f.Fatal("it is not dropped")
	}
	want := map[string]int{"dropped payments": 1}
	if test.ends != "" {
		want["sent payments"] = 1
	}
	f.requireRoomEmpty()
	f.requireOutcomes(want)
	f.requireHistory("resolved")
	for name, want := range map[string]int{"by unpaired payments": 1, "resolved paired": 0, "resolved unpaired": 1} {
		testkit.Equal(f, f.metrics.Get(name), want, "%q was counted", name)
	}
	testkit.Equal(f, f.journal.count("learns payments/k"), 1, "it was learned that the pair is not open")
}

// others publishes on another subject of a mixed stream.
func (f *fixture) others(mixed bool) {
	f.Helper()
	for range 3 {
		if mixed {
			f.publish("other.subject", "no event")
		}
	}
}

// requireWaitsAgain waits until the resolved event waits in the room, comes back, and waits there again.
func (f *fixture) requireWaitsAgain(resolved uint64) {
	f.Helper()
	first := uint64(0)
	f.eventually("it waits in the room", func() bool {
		waiting := f.waiting(room.Pair)
		if len(waiting) == 1 {
			first = waiting[0].Sequence
		}
		return first > 0
	})
	f.requireSaid(resolved, "+ACK")
	f.eventually("it comes back, and waits again", func() bool {
		waiting := f.waiting(room.Pair)
		return len(waiting) == 1 && waiting[0].Sequence > first
	})
	f.requireOutcomes(nil)
}

// Another instance decides about a firing event, and settles it, after the throttle was asked about what resolves it and before the
// streams are looked at: the throttle is asked again, and knows of the pair.
func TestPairOpensMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(patience)
	f.status(event.StatusFiring)
	elsewhere := testkit.Must(found.consumer.Next(jetstream.FetchMaxWait(patience)))(t)
	opened := false
	f.throttle.decideOne = func(ctx context.Context, c throttle.Request) (throttle.Decision, error) {
		if opened {
			return f.throttle.admit(c), nil
		}
		opened = true
		return throttle.Decision{Verdict: throttle.Unpaired}, elsewhere.DoubleAck(ctx)
	}
	f.status(event.StatusResolved)
	f.start(nil)
	f.awaitSettled(1)
	f.requireOutcomes(map[string]int{"sent payments": 1})
	if asked := len(f.throttle.asked()); asked != 2 {
		t.Errorf("the throttle was asked %d times, want twice", asked)
	}
	f.requireHistory("resolved", "send", "finish")
}

// A resolved event of a pair that was found not to be open a moment ago is dropped without asking, but not one that somebody may
// have had.
func TestKnownUnpaired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(patience)
	f.throttle.unpaired["payments\nk"] = true
	f.status(event.StatusResolved)
	f.deliverOnce(found)
	f.publish("notify.payments", `{"id": "another", "title": "an event", "status": "resolved", "key": "k"}`)
	f.publish("notify.errors", `{"id": "of another category", "title": "an event", "status": "resolved", "key": "k"}`)
	f.start(nil)
	f.awaitSettled(3)
	f.requireOutcomes(map[string]int{"sent payments": 1, "dropped payments": 1, "sent errors": 1})
	f.requireHistory("another")
	testkit.Equal(t, f.metrics.Get("by unpaired payments"), 1, "drops were counted by level")
}

// A consumer that was made anew counts anew: what its predecessor had settled is settled again first.
func TestUnpairedAfterTheConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mixedStream()
	f.provision(patience)
	anew, settle := newGate(t), newGate(t)
	f.answerUnpaired(func(c throttle.Request) throttle.Decision {
		switch {
		case !anew.isOpen():
			return f.throttle.admit(c)
		case settle.isOpen():
			return throttle.Decision{Verdict: throttle.Done}
		}
		return throttle.Decision{Verdict: throttle.Leased, Wait: 300 * time.Millisecond}
	})
	f.status(event.StatusFiring)
	f.start(nil)
	f.eventually("the firing one is settled", func() bool { return f.metrics.ended() == 1 && f.consumerInfo().NumAckPending == 0 })

	anew.open()
	testkit.NoError(t, f.js.DeleteConsumer(t.Context(), testNames.Stream, testNames.Consumer))
	f.status(event.StatusResolved)
	f.eventually("the resolved one is asked about again, and again", func() bool {
		n := 0
		for _, c := range f.throttle.asked() {
			if c.Resolves {
				n++
			}
		}
		return n > 2
	})
	f.requireOutcomes(map[string]int{"sent payments": 1})
	settle.open()
	f.eventually("it ends", func() bool { return f.metrics.ended() == 2 })
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 1, "dropped payments": 1})
}

// Events that resolve nothing do not wait for each other: only for what may open a pair, alone or in a group, in either stream.
func TestUnpairedCrowd(t *testing.T) {
	t.Parallel()
	const crowd = 60
	f := newFixture(t)
	f.answerUnpaired(nil)
	w := f.prepared(nil)
	resolved := func(i int) (subject, body string) {
		return "notify.payments", fmt.Sprintf(`{"title": "an event", "status": "resolved", "key": "%d"}`, i)
	}
	f.publishAsync(crowd, resolved)
	at := w.topology.Load()
	group := f.publish("notify.payments", `{"alerts": [{"status": "resolved", "fingerprint": "a"}, {"status": "firing", "fingerprint": "b"}]}`)
	found := uint64(0)
	f.eventually("the group is found, which may open a pair", func() bool {
		before := found
		found, _ = w.firstOfProducers(t.Context(), at, before)
		if found < before || found > group {
			t.Fatalf("the first message that may open a pair is %d, and was not before %d, want the group, %d", found, before, group)
		}
		return found == group
	})
	f.deleteMessage(group)

	entry := room.Entry{Reason: room.Part, Subject: "notify.payments", ID: "order-1", Origin: room.Origin{Stream: "S", Sequence: 1, Stored: time.Now()}, Since: time.Now()}
	_, body := resolved(0)
	f.putInRoom(testNames.room().Queue(room.Part, "payments"), entry, body)
	f.putInRoom(testNames.room().Channel(room.Token("payments"), "payments"), entry, `{"title": "firing, and decided"}`)
	if first, err := w.firstOfRoom(t.Context(), at, 0); err != nil || first != 3 {
		t.Errorf("the first message of the room that may open a pair is %d (%v), want none of 2", first, err)
	}
	f.putInRoom(testNames.room().Queue(room.Part, "errors"), entry, `{"title": "firing"}`)
	if first, err := w.firstOfRoom(t.Context(), at, 0); err != nil || first != 3 {
		t.Errorf("the first message of the room that may open a pair is %d (%v), want 3", first, err)
	}
	f.event("security", "order-1")
	f.start(nil)
	f.awaitSettled(crowd + 3) // the two that fire have one ID
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": crowd + 1, "sent payments": 1, "sent security": 1})
}

// Where the streams cannot be asked about, a resolved event waits in the room.
func TestUnpairedInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := prepare(t, f.newWorker(nil))
	f.event("errors", "of another instance") // which keeps the acknowledgement floor below it
	elsewhere := testkit.Must(f.fetch(w))(t)
	blind := *w.topology.Load()
	blind.stream = testkit.Must(f.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "GONE"}))(t)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), "GONE"))
	w.topology.Store(&blind)
	if first, err := w.firstOfProducers(t.Context(), &blind, 5); !errors.Is(err, jetstream.ErrStreamNotFound) || first != 5 {
		t.Errorf("the first message that may open a pair is %d (%v), want %v", first, err, jetstream.ErrStreamNotFound)
	}
	f.answerUnpaired(nil)
	f.run(w)
	f.status(event.StatusResolved)
	f.eventually("it waits again and again", func() bool { return f.streamInfo(testNames.RoomStream).State.LastSeq > 4 })
	f.requireOutcomes(nil)

	sighted := f.provision(patience)
	w.topology.Store(&sighted)
	testkit.NoError(t, elsewhere.Ack())
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": 1})
}

// What is known of how far a stream holds nothing that may open a pair is asked for seldom, never believed beyond what was found,
// and forgotten when the streams are other ones.
func TestFirstOpening(t *testing.T) {
	t.Parallel()
	var o firstOpening
	at, looks, found := new(topology), 0, uint64(10)
	var failure error
	look := func(_ context.Context, _ *topology, from uint64) (uint64, error) {
		looks++
		return max(from, found), failure
	}
	none := func(sequence uint64, want bool, wantLooks int) {
		t.Helper()
		if got := o.noneBefore(t.Context(), sequence, at, look); got != want || looks != wantLooks {
			t.Errorf("none stands before %d: %t after %d looks, want %t after %d", sequence, got, looks, want, wantLooks)
		}
	}
	none(10, true, 1)
	none(7, true, 1)
	none(11, false, 1) // it was asked a moment ago
	o.asked = time.Now().Add(-2 * openingKept)
	none(11, false, 2)
	o.asked, found, failure = time.Now().Add(-2*openingKept), 12, errScripted
	none(12, true, 3) // so far it came
	o.asked, found = time.Now().Add(-2*openingKept), 0
	none(13, false, 4)
	at, failure = new(topology), nil
	none(5, false, 5)
}
