package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fakeFolds has one message for each pair, into which everything is folded.
type fakeFolds struct {
	mu        sync.Mutex
	uncounted func() ([]store.Uncounted, error)
	count     *store.Count   // answer of BeginCount; nil: the pair has no such message
	asked     testkit.Counts // calls of Uncounted, by pair
	givenUp   testkit.Counts // by receipt
	giveUp    error
}

func (f *fakeFolds) Uncounted(_ context.Context, requests []store.Request) ([][]store.Uncounted, error) {
	found := make([][]store.Uncounted, len(requests))
	for i, request := range requests {
		f.asked.Add(request.Pair, 1)
		f.mu.Lock()
		messages, err := f.uncounted()
		f.mu.Unlock()
		if err != nil {
			return nil, err
		}
		found[i] = messages
	}
	return found, nil
}

func (f *fakeFolds) BeginCount(context.Context, store.Request, string) (*store.Count, time.Duration, error) {
	if f.count == nil {
		return nil, 0, nil
	}
	return f.count, 0, nil
}

func (f *fakeFolds) GiveUp(_ context.Context, request store.Request, receipt string) error {
	f.givenUp.Add(request.Pair+" "+receipt, 1)
	return f.giveUp
}

// shown has a worker fold events into messages that show them.
func (f *fakeFolds) shown(o *setup) {
	o.Limits.Folds, o.ShowsFolds = f, true
	o.Fold = func(string) time.Duration { return time.Hour }
}

// TestFoldedEventComesBack folds an event while the update of its message cannot be stored. The event comes back, and has its outcome once.
func TestFoldedEventComesBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	failed := false
	folding := &fakeFolds{uncounted: func() ([]store.Uncounted, error) {
		if !failed {
			failed = true
			return nil, errors.New("redis is away")
		}
		return nil, nil
	}}
	f.throttle.decideOne = func(_ context.Context, r store.Request) (store.Decision, error) {
		testkit.Check(t, r.Pair == "payments\ndisk" && r.Fold.Within == time.Hour && r.Fold.Severity == event.SeverityError.Rank(),
			"got the request %+v, want one that may be folded", r)
		return store.Decision{Verdict: store.Folded, Fold: &store.Fold{Number: 37, Posted: time.Unix(0, 0)}}, nil
	}
	f.start(folding.shown)
	f.publish("notify.payments", `{"id": "1", "title": "disk is full", "severity": "error", "key": "disk"}`)
	f.requireOutcome("folded payments")
	testkit.Equal(t, folding.asked.Get("payments\ndisk"), 2, "attempts")
}

// TestAwaitingHasItsShare fills the room with events of a first level. An event that waits for the message of its key stays all the same, and is
// folded. Its stay ends with it.
func TestAwaitingHasItsShare(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.room.enter = func(stay store.Stay) bool { return stay.First == "payments folds" }
	awaited := false
	f.throttle.decideOne = func(context.Context, store.Request) (store.Decision, error) {
		if !awaited {
			awaited = true
			return store.Decision{Verdict: store.Leased, Awaits: true, Wait: time.Millisecond}, nil
		}
		return store.Decision{Verdict: store.Folded, Fold: &store.Fold{Number: 2, Posted: time.Unix(0, 0)}}, nil
	}
	f.start(func(o *setup) { o.Fold = func(string) time.Duration { return time.Hour } })
	f.publish("notify.payments", `{"id": "1", "title": "disk is full", "key": "disk"}`)
	f.requireOutcome("folded payments")
	f.eventually("the stay ends", func() bool { return len(f.room.inRoom()) == 0 })
}

// foldsInto folds each event into a message of its key. Until an update is stored for it, each message of receipts is uncounted, and may be
// updated after a time.
func (f *fixture) foldsInto(wait time.Duration, receipts ...string) *fakeFolds {
	f.throttle.decideOne = func(context.Context, store.Request) (store.Decision, error) {
		return store.Decision{Verdict: store.Folded, Fold: &store.Fold{Number: 2, Posted: time.Unix(0, 0)}}, nil
	}
	return &fakeFolds{uncounted: func() (messages []store.Uncounted, err error) {
		for _, receipt := range receipts {
			messages = append(messages, store.Uncounted{Receipt: receipt, Folded: 1, Wait: wait})
		}
		return messages, nil
	}}
}

// TestFoldedEventWaitsForPlace has the room refuse the update that shows folded events. One of them comes back until the update is stored. The
// others are settled meanwhile.
func TestFoldedEventWaitsForPlace(t *testing.T) {
	t.Parallel()
	const events = 20
	f := newFixture(t)
	var full atomic.Bool
	full.Store(true)
	f.room.enter = func(stay store.Stay) bool { return stay.First != "payments updates" || !full.Load() }
	folding := f.foldsInto(time.Hour, "r1")
	f.start(folding.shown)
	for i := range events {
		f.publish("notify.payments", fmt.Sprintf(`{"id": "%d", "title": "disk is full", "key": "disk"}`, i))
	}
	f.eventually("all events but one end", func() bool { return f.metrics.ended() == events-1 })
	testkit.Equal(t, len(f.waiting(room.Update)), 0, "updates")
	full.Store(false)
	f.eventually("the last event ends", func() bool { return f.metrics.ended() == events })
	f.requireOutcomes(map[string]int{"folded payments": events})
	testkit.Equal(t, len(f.waiting(room.Update)), 1, "updates")
}

// TestEachMessageIsUpdated folds an event into a message while the update of another message of the key is in the room. Both have one.
func TestEachMessageIsUpdated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	folding := f.foldsInto(time.Hour, "r1")
	f.start(folding.shown)
	f.publish("notify.payments", `{"id": "1", "title": "disk is full", "key": "disk"}`)
	f.eventually("the event ends", func() bool { return f.metrics.ended() == 1 })
	folding.mu.Lock()
	folding.uncounted = f.foldsInto(time.Hour, "r2").uncounted // a worse event was posted
	folding.mu.Unlock()
	f.publish("notify.payments", `{"id": "2", "title": "disk is full", "key": "disk"}`)
	f.eventually("the next event ends", func() bool { return f.metrics.ended() == 2 })
	testkit.Equal(t, len(f.waiting(room.Update)), 2, "updates")
}
