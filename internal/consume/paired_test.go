package consume

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/openers"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// status publishes a firing or resolved event with the key k. The status is the ID too.
func (f *fixture) status(status event.Status) uint64 {
	f.Helper()
	return f.publish("notify.payments", fmt.Sprintf(`{"id": %q, "title": "an event", "status": %[1]q, "key": "k"}`, status))
}

// TestResolvedIsNeverDroppedUnasked has a full limit. The worker asks the throttle about resolved events, and about firing ones that may repeat
// others.
func TestResolvedIsNeverDroppedUnasked(t *testing.T) {
	t.Parallel()
	type resolvedCase struct {
		body  string
		asked bool
	}
	each(t, map[string]resolvedCase{
		"resolved":            {`{"id": "order-1", "title": "x", "status": "resolved", "key": "k"}`, true},
		"resolved, escaped":   {`{"id": "order-1", "title": "x", "st\u0061tus": "r\u0065solved", "key": "k"}`, true},
		"of an alert":         {`{"id": "order-1", "alerts": [{"status": "resolved", "labels": {"alertname": "x"}, "fingerprint": "f"}]}`, true},
		"of a firing alert":   {`{"alerts": [{"status": "firing", "startsAt": "2026-01-02T10:00:00Z", "labels": {"alertname": "x"}, "fingerprint": "f"}]}`, true},
		"without a status":    {`{"id": "order-1", "title": "x", "key": "k"}`, false},
		"firing, without ID":  {`{"title": "x", "status": "firing", "key": "k"}`, false},
		"firing, without key": {`{"id": "order-1", "title": "x", "status": "firing"}`, false},
		"firing":              {`{"id": "order-1", "title": "resolved", "status": "firing", "key": "k"}`, true},
		"not JSON":            {`resolved`, false},
	}, func(t *testing.T, f *fixture, test resolvedCase) {
		f.known.full = fullFor("the rule", "")
		f.start(nil)
		f.publish("notify.payments", test.body)
		f.awaitSettled(1)
		testkit.Equal(t, len(f.throttle.asked()) == 1, test.asked, "one request to the throttle")
		outcome := "dropped payments"
		if test.asked {
			outcome = "sent payments"
		}
		f.requireOutcomes(map[string]int{outcome: 1})
	})
}

// answerUnpaired decides unpaired for each resolved event. other decides about the firing events; nil admits them.
func (f *fixture) answerUnpaired(other func(store.Request) store.Decision) {
	f.throttle.answers(func(c store.Request) store.Decision {
		switch {
		case c.Resolves:
			return store.Decision{Verdict: store.Unpaired}
		case other != nil:
			return other(c)
		}
		return f.throttle.admit(c)
	})
}

// mixedStream makes a stream that has other subjects too, and keeps settled messages: no worker can remove them.
func (f *fixture) mixedStream() {
	f.Helper()
	config := testNames.StreamConfig()
	config.Subjects, config.DenyDelete = append(config.Subjects, "other.>"), true
	testkit.Must(f.js.CreateStream(f.Context(), config))(f)
}

// unpairedCase is a firing event before a resolved one, and the reason why the firing event has no decision yet.
type unpairedCase struct {
	ackWait time.Duration         // 0: patience
	mixed   bool                  // the stream has other subjects too
	stored  bool                  // the firing event, in the producers' stream
	taken   bool                  // a worker that is gone has it
	keeps   func(*fixture, *gate) // keeps it undecided until the gate opens; may be nil
	removes func(*fixture)        // removes it after the gate has opened; may be nil
	ends    string                // last call about the firing event; "": none
}

func nakSent(f *fixture, settle *gate) {
	f.answerUnpaired(func(c store.Request) store.Decision {
		if settle.isOpen() {
			return f.throttle.admit(c)
		}
		return store.Decision{Verdict: store.Leased, Wait: 700 * time.Millisecond}
	})
}

// keptInRoom puts the firing event into the room.
func keptInRoom(subject string, reason room.Reason) func(*fixture, *gate) {
	return func(f *fixture, settle *gate) {
		nakSent(f, settle)
		f.putInRoom(subject, room.Entry{
			Reason: reason, Subject: "notify.payments", ID: "firing", Origin: room.Origin{Stream: "OTHER", Sequence: 1, Stored: time.Now()}, Since: time.Now(),
		}, `{"id": "firing", "title": "an event", "status": "firing", "key": "k"}`)
	}
}

// TestUnpaired drops a resolved event without a pair. The event waits in the room until each message before it that may open the pair
// is settled.
func TestUnpaired(t *testing.T) {
	t.Parallel()
	subjects := testNames.Room()
	schedule, due := subjects.Schedule(room.Redis, "payments", "x")
	each(t, map[string]unpairedCase{
		"before it is nothing":                   {},
		"before it are messages of others":       {mixed: true},
		"before it is one that a worker holds":   {ends: "finish", stored: true, keeps: (*fixture).holdPosts},
		"before it is one that got a nak":        {ends: "finish", stored: true, keeps: nakSent},
		"before it is one that comes again":      {ends: "finish", stored: true, mixed: true, ackWait: 4 * time.Second, taken: true},
		"in the room is a part that got a nak":   {ends: "finish", keeps: keptInRoom(subjects.Queue(room.Part, "payments"), room.Part)},
		"in the room is a replay that got a nak": {ends: "finish", keeps: keptInRoom(subjects.Queue(room.Replay, "payments"), room.Replay)},
		"in the room is what Redis refused":      {ends: "finish", keeps: keptInRoom(due, room.Redis)},
		"in the room is what Redis refused, not due yet": {keeps: keptInRoom(schedule, room.Redis), removes: func(f *fixture) {
			testkit.NoError(f, f.stream(testNames.RoomStream).Purge(f.Context(), jetstream.WithPurgeSubject(schedule)))
		}},
	}, func(_ *testing.T, f *fixture, test unpairedCase) { f.requireUnpaired(test) })
}

func (f *fixture) requireUnpaired(test unpairedCase) {
	f.Helper()
	if test.mixed {
		f.mixedStream()
	}
	ackWait := cmp.Or(test.ackWait, patience)
	found, settle := f.provision(ackWait), newGate(f)
	f.answerUnpaired(nil)
	f.others(test.mixed)
	if test.stored {
		f.status(event.StatusFiring)
	}
	if test.taken {
		testkit.Must(found.Consumer.Next(jetstream.FetchMaxWait(patience)))(f)
	}
	if test.keeps != nil {
		test.keeps(f, settle)
	}
	f.others(test.mixed)
	began, resolved := time.Now(), f.status(event.StatusResolved)
	f.others(test.mixed)
	early := make(chan bool, 1) // the drop came before the end of pairPatience or of the firing event
	f.start(func(o *setup) {
		o.client.AckWait = ackWait
		o.Drops = func(drops []summary.Drop) int64 {
			early <- time.Since(began) < pairPatience || test.ends != "" && f.calls.count(test.ends+" firing") == 0
			testkit.EqualDeeply(f, drops, []summary.Drop{{Category: "payments", Level: limits.LevelUnpaired, Title: "an event", N: 1}}, "dropped")
			return 1
		}
	})
	if test.keeps != nil {
		f.requireWaitsAgain(resolved)
	}
	settle.open()
	if test.removes != nil {
		test.removes(f)
	}
	testkit.Equal(f, receive(f, "the drop", early), false, "the drop comes too early")
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
	learned := 1 // where the last answer holds for later events too
	if test.ends != "" || test.keeps != nil {
		learned = 0
	}
	testkit.Equal(f, f.calls.count("learns payments/k"), learned, "calls of LearnUnpaired")
}

// TestOpenForLaterEvents drops a resolved event whose pair is open for later events. The worker does not take the pair for a closed one.
func TestOpenForLaterEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.answers(func(store.Request) store.Decision { return store.Decision{Verdict: store.Unpaired, Awaits: true} })
	f.start(nil)
	f.status(event.StatusResolved)
	f.awaitOutcomes(map[string]int{"dropped payments": 1})
	testkit.Equal(t, f.calls.count("learns payments/k"), 0, "calls of LearnUnpaired")
}

// TestResolvedIsStoredFirst stores a firing event some time after its resolved event, within pairPatience. They pair, however long the
// decision about the firing event takes.
func TestResolvedIsStoredFirst(t *testing.T) {
	t.Parallel()
	type firstCase struct {
		gap  time.Duration
		late bool // the decision comes when the resolved event has waited twice
	}
	each(t, map[string]firstCase{
		"300 ms, decided late": {300 * time.Millisecond, true}, "1.5 s": {1500 * time.Millisecond, false},
	}, func(t *testing.T, f *fixture, test firstCase) {
		settle := newGate(t)
		nakSent(f, settle)
		others := f.throttle.decideOne
		f.throttle.decideOne = func(ctx context.Context, c store.Request) (store.Decision, error) {
			if _, key, _ := strings.Cut(c.Pair, "\n"); c.Resolves && f.calls.count("finish firing-"+key) > 0 {
				return f.throttle.admit(c), nil
			}
			return others(ctx, c)
		}
		f.start(nil)
		f.start(nil) // another worker
		round, began := 0, time.Time{}
		for ; began.IsZero() || time.Since(began) >= pairPatience; round++ { // a busy machine may take longer than that
			began = time.Now()
			f.ofKey(event.StatusResolved, round)
			time.Sleep(test.gap) // it is what is tested
			f.ofKey(event.StatusFiring, round)
		}
		if test.late {
			f.eventually("resolved events wait again", func() bool {
				waiting := f.waiting(room.Pair)
				return len(waiting) == round && waiting[round-1].Header.Get(room.HeaderUntil) != ""
			})
		}
		settle.open()
		f.awaitSettled(2 * round)
		f.requireRoomEmpty()
		f.requireHistory(fmt.Sprint("resolved-", round-1), "send", "finish")
	})
}

// ofKey publishes a firing or resolved event of a key of its own.
func (f *fixture) ofKey(status event.Status, key int) {
	f.Helper()
	f.publish("notify.payments", fmt.Sprintf(`{"id": "%s-%d", "title": "an event", "status": %[1]q, "key": "%[2]d"}`, status, key))
}

// resolvedBefore puts a resolved event into the room that was stored some time ago.
func (f *fixture) resolvedBefore(d time.Duration) {
	f.Helper()
	_, due := testNames.Room().Schedule(room.Pair, "payments", "earlier")
	stored := time.Now().Add(-d)
	f.putInRoom(due, room.Entry{
		Reason: room.Pair, Subject: "notify.payments", ID: "earlier", Origin: room.Origin{Stream: testNames.Stream, Sequence: 1, Stored: stored}, Since: stored,
	}, `{"id": "earlier", "title": "an event", "status": "resolved", "key": "k"}`)
}

// others publishes on the other subject of a mixed stream.
func (f *fixture) others(mixed bool) {
	f.Helper()
	for range 3 {
		if mixed {
			f.publish("other.subject", "no event")
		}
	}
}

// requireWaitsAgain awaits two stays of the resolved event in the room.
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

// TestPairOpensMeanwhile has another worker settle the firing event between the first decision about an old resolved one and the search
// in the streams. The worker asks the throttle again, which knows the pair now.
func TestPairOpensMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(usualAckWait)
	f.status(event.StatusFiring)
	elsewhere := testkit.Must(found.Consumer.Next(jetstream.FetchMaxWait(patience)))(t)
	opened := false
	f.throttle.decideOne = func(ctx context.Context, c store.Request) (store.Decision, error) {
		if opened {
			return f.throttle.admit(c), nil
		}
		opened = true
		return store.Decision{Verdict: store.Unpaired}, elsewhere.DoubleAck(ctx)
	}
	f.resolvedBefore(time.Minute)
	f.start(nil)
	f.awaitOutcomes(map[string]int{"sent payments": 1})
	testkit.Equal(t, len(f.throttle.asked()), 2, "requests to the throttle")
	f.requireHistory("earlier", "send", "finish")
}

// TestOpenerMovesOn moves an undecided firing event on in the room, as a worker does when the event is due and Redis refuses it again. A resolved
// event that waits for it waits on, even behind other events. It does not wait for events that came later than its search.
func TestOpenerMovesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	stored := func(id string, origin uint64) (sequence uint64) {
		_, subject := testNames.Room().Schedule(room.Redis, "payments", id)
		return f.putInRoom(subject, room.Entry{
			Reason: room.Redis, Subject: "notify.payments", ID: id, Origin: room.Origin{Stream: testNames.Stream, Sequence: origin, Stored: time.Now()}, Since: time.Now(),
		}, `{"id": "`+id+`", "title": "an event", "status": "firing", "key": "k"}`)
	}
	at := w.streams.Layout()
	first := stored("firing", 1)
	to := openers.Reach{Until: 1, Behind: first}
	decided := func() bool {
		return openers.New(w.streams, testDecoder).AreDecided(t.Context(), &to, func() uint64 { return 1 })
	}
	testkit.Equal(t, decided(), false, "decided while the firing event waits")
	stored("later", 2)
	again := stored("firing again", 1)
	testkit.NoError(t, at.Room.Stream.DeleteMsg(t.Context(), first))
	testkit.Equal(t, decided(), false, "decided after the firing event has moved on")
	testkit.Equal(t, to.Behind, again, "sequence up to which the room has to be searched")
	testkit.NoError(t, at.Room.Stream.DeleteMsg(t.Context(), first+1))
	testkit.NoError(t, at.Room.Stream.DeleteMsg(t.Context(), again))
	stored("last", 3)
	testkit.Equal(t, decided(), true, "decided although a later event waits")
}

// TestKnownUnpaired drops a resolved event of a known closed pair without asking the throttle. A redelivery is not dropped: another
// worker may have had it.
func TestKnownUnpaired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(usualAckWait)
	f.known.unpaired["payments\nk"] = true
	f.status(event.StatusResolved)
	f.deliverOnce(found)
	f.publish("notify.payments", `{"id": "another", "title": "an event", "status": "resolved", "key": "k"}`)
	f.publish("notify.errors", `{"id": "of another category", "title": "an event", "status": "resolved", "key": "k"}`)
	f.start(nil)
	f.awaitOutcomes(map[string]int{"sent payments": 1, "dropped payments": 1, "sent errors": 1})
	f.requireHistory("another")
	testkit.Equal(t, f.metrics.Get("by unpaired payments"), 1, "drops by level")
}

// TestOpenerMovesToTheRoom moves firing events from the producers' stream to the room between the searches for two resolved events. The search
// for the second resolved event finds the event that has moved since the first search.
func TestOpenerMovesToTheRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	at := w.streams.Layout()
	for i := range uint64(2) {
		opener := f.publish("notify.payments", `{"title": "an event", "status": "firing", "key": "k"}`)
		_, subject := testNames.Room().Schedule(room.Redis, "payments", "opener")
		moved := f.putInRoom(subject, room.Entry{
			Reason: room.Redis, Subject: "notify.payments", ID: fmt.Sprint(i), Origin: room.Origin{Stream: testNames.Stream, Sequence: opener, Stored: time.Now()}, Since: time.Now(),
		}, `{"title": "an event", "status": "firing", "key": "k"}`)
		testkit.NoError(t, at.Stream.DeleteMsg(t.Context(), opener))
		var to openers.Reach
		search := openers.New(w.streams, testDecoder)
		testkit.Equal(t, search.AreDecided(t.Context(), &to, func() uint64 { return opener }), false, "decided while event %d waits", i)
		testkit.Equal(t, to.Behind, moved, "sequence up to which the room has to be searched")
		testkit.NoError(t, at.Room.Stream.DeleteMsg(t.Context(), moved))
	}
}

// TestUnpairedAfterTheStream has a resolved event wait for messages of a stream that was recreated. Its firing event can only be among the
// messages of the new stream.
func TestUnpairedAfterTheStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.answerUnpaired(nil)
	f.start(nil)
	old := room.Origin{Stream: testNames.Stream, Sequence: 1000, Stored: time.Now().Add(-10 * time.Second)}
	f.putInRoom(testNames.Room().Queue(room.Part, "payments"), room.Entry{
		Reason: room.Pair, Subject: "notify.payments", ID: "resolved", Origin: old, Since: old.Stored, Until: old.Sequence,
	}, `{"title": "an event", "status": "resolved", "key": "k"}`)
	f.eventually("it ends", func() bool { return f.metrics.ended() == 1 })
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": 1})
}

// TestUnpairedCrowd searches both streams for the first message that may open a pair, among many that cannot.
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
	group := f.publish("notify.payments", `{"alerts": [{"status": "resolved", "fingerprint": "a"}, {"status": "firing", "fingerprint": "b"}]}`)
	decided := func(search *openers.Search, until, behind uint64) bool {
		return search.AreDecided(t.Context(), &openers.Reach{Until: until, Behind: behind}, func() uint64 { return group })
	}
	search := openers.New(w.streams, testDecoder)
	f.eventually("the search reaches the group", func() bool { return decided(search, group-1, 0) })
	testkit.Equal(t, decided(openers.New(w.streams, testDecoder), group-1, 0), false, "decided after the first messages of the crowd")
	testkit.Equal(t, decided(search, group, 0), false, "decided before the group, which may open a pair")
	testkit.NoError(t, f.stream(testNames.Stream).DeleteMsg(t.Context(), group))

	entry := room.Entry{Reason: room.Part, Subject: "notify.payments", ID: "order-1", Origin: room.Origin{Stream: "S", Sequence: 1, Stored: time.Now()}, Since: time.Now()}
	_, body := resolved(0)
	f.putInRoom(testNames.Room().Queue(room.Part, "payments"), entry, body)
	f.putInRoom(testNames.Room().Channel(room.Token("payments"), "payments"), entry, `{"title": "firing, and decided"}`)
	testkit.Equal(t, decided(openers.New(w.streams, testDecoder), 1, 2), true, "decided, with 2 messages in the room that open no pair")
	f.putInRoom(testNames.Room().Queue(room.Part, "errors"), entry, `{"title": "firing"}`)
	testkit.Equal(t, decided(openers.New(w.streams, testDecoder), 1, 2), true, "decided before a later message of the room")
	testkit.Equal(t, decided(openers.New(w.streams, testDecoder), 1, 3), false, "decided while a message of the room may open a pair")
	f.event("security", "order-1")
	f.start(nil)
	f.awaitSettled(crowd + 3) // the two firing events have one ID
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": crowd + 1, "sent payments": 1, "sent security": 1})
}

// TestUnpairedFlood resolves what nobody opened. Most of these events are dropped at once, while a resolved event of another first level waits, and
// pairs.
func TestUnpairedFlood(t *testing.T) {
	t.Parallel()
	const flood, quota = 6, 2
	f := newFixture(t)
	f.answerUnpaired(nil)
	others := f.throttle.decideOne
	var asked atomic.Int64
	f.throttle.decideOne = func(ctx context.Context, c store.Request) (store.Decision, error) {
		if c.Category == "errors" && asked.Add(1) > 1 {
			return f.throttle.admit(c), nil
		}
		return others(ctx, c)
	}
	f.provision(usualAckWait)
	f.publishAsync(flood, func(i int) (subject, body string) {
		return "notify.payments", fmt.Sprintf(`{"title": "an event", "status": "resolved", "key": "%d"}`, i)
	})
	f.publish("notify.errors", `{"id": "of a neighbour", "title": "an event", "status": "resolved", "key": "k"}`)
	w := f.newWorker(nil)
	w.decider.pairs.begun.most, w.decider.pairs.begun.period = quota, time.Hour
	f.run(w)
	f.awaitSettled(flood + 1)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": flood, "sent errors": 1})
	testkit.Equal(t, f.metrics.Get("refused by the room: pair"), flood-quota, "events refused by the room")
}

// TestQuota counts events of each first level apart, and anew in each period.
func TestQuota(t *testing.T) {
	t.Parallel()
	q := quota{most: 2, period: pairPatience}
	now := time.Now()
	for range q.most {
		testkit.Equal(t, q.take("payments", now), true, "an event within the quota")
	}
	testkit.Equal(t, q.take("payments", now.Add(pairPatience-1)), false, "an event beyond the quota")
	testkit.Equal(t, q.take("errors", now), true, "an event of another first level")
	testkit.Equal(t, q.take("payments", now.Add(pairPatience)), true, "an event after the counts have ended")
}
