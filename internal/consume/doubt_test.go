package consume

import (
	"context"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// finds answers look-ups one after the other, and then with the last answer. A nil error answers with the finding.
func finds(answers ...any) func(context.Context, sink.Doubt) (sink.Finding, error) {
	asked := 0
	return func(context.Context, sink.Doubt) (sink.Finding, error) {
		answer := answers[min(asked, len(answers)-1)]
		asked++
		if err, failed := answer.(error); failed {
			return sink.Finding{}, err
		}
		finding, _ := answer.(sink.Finding)
		return finding, nil
	}
}

// keeps is the call that records the receipt of isPosted.
const keeps = "keep C1 123.456"

var (
	isPosted     = sink.Finding{Presence: sink.Present, Receipt: "C1 123.456"}
	absent       = sink.Finding{Presence: sink.Absent}
	unsearchable = sink.Finding{Presence: sink.Unsearchable}
	unreadable   = &sink.Error{Class: sink.Transient, Code: "503", Err: errScripted}
)

// TestDoubtOfAnEarlierWorker takes over an event that another worker may have posted. Redis knows of that worker, or it may have lost the record:
// then the redelivery says so. Nobody looks up a fresh event.
func TestDoubtOfAnEarlierWorker(t *testing.T) {
	t.Parallel()
	type doubtCase struct {
		before  func(*fixture, stream.Layout)
		answers []any
		history []string
	}
	inDoubt := func(f *fixture, _ stream.Layout) { f.admitInDoubt(true) }
	each(t, map[string]doubtCase{
		"it is posted":                   {inDoubt, []any{isPosted}, []string{"find", keeps, "finish"}},
		"it is posted, and not recorded": {(*fixture).deliverOnce, []any{isPosted}, []string{"find", keeps, "finish"}},
		"it is not posted":               {inDoubt, []any{absent}, []string{"find", "send", "finish"}},
		"nobody can look":                {inDoubt, []any{unsearchable}, []string{"find", "send", "finish"}},
		"known at the second look":       {inDoubt, []any{unreadable, isPosted}, []string{"find", "find", keeps, "finish"}},
		"it is fresh":                    {func(*fixture, stream.Layout) {}, []any{isPosted}, []string{"send", "finish"}},
	}, func(t *testing.T, f *fixture, test doubtCase) {
		found := f.provision(usualAckWait)
		f.event("payments", "order-1")
		test.before(f, found)
		f.sink.find = finds(test.answers...)
		f.start(nil)
		f.awaitSettled(1)
		f.requireHistory("order-1", test.history...)
		f.requireOutcomes(map[string]int{"sent payments": 1})
	})
}

// TestDoubtOfOwnAttempts has Slack answer a post in a way that says nothing. The worker looks before it posts again.
func TestDoubtOfOwnAttempts(t *testing.T) {
	t.Parallel()
	type attemptCase struct {
		sends   []sink.Class
		answers []any
		history []string
	}
	each(t, map[string]attemptCase{
		"it is posted":                         {[]sink.Class{sink.Unknown, sink.OK}, []any{isPosted}, []string{"send", "find", keeps, "finish"}},
		"it is not posted":                     {[]sink.Class{sink.Unknown, sink.OK}, []any{absent}, []string{"send", "find", "send", "finish"}},
		"the second attempt is posted":         {[]sink.Class{sink.Unknown, sink.Unknown}, []any{absent, isPosted}, []string{"send", "find", "send", "find", keeps, "finish"}},
		"nobody can look":                      {[]sink.Class{sink.Unknown, sink.Unknown, sink.OK}, []any{unsearchable}, []string{"send", "find", "send", "send", "finish"}},
		"rejected, and not posted before":      {[]sink.Class{sink.Unknown, sink.Rejected}, []any{absent}, []string{"send", "find", "send", "refund"}},
		"certainly not taken at the first try": {[]sink.Class{sink.Transient, sink.OK}, []any{isPosted}, []string{"send", "send", "finish"}},
	}, func(t *testing.T, f *fixture, test attemptCase) {
		f.sink.send = inTurn(test.sends...)
		f.sink.find = finds(test.answers...)
		f.start(nil)
		f.event("payments", "order-1")
		f.awaitSettled(1)
		f.requireHistory("order-1", test.history...)
	})
}

// TestLookUpsHoldNothing has more events in doubt about own attempts than a lane and the pool have places. Look-ups take long. A later event
// is posted meanwhile.
func TestLookUpsHoldNothing(t *testing.T) {
	t.Parallel()
	type holdCase struct {
		change func(*setup)
		events int
		other  string // category of the later event
	}
	each(t, map[string]holdCase{
		"a place in the lane":    {slow, 2 * lane.LeastPlaces, "payments"},
		"an element of the pool": {nil, stage.PoolSize + 8, "security"},
	}, func(t *testing.T, f *fixture, test holdCase) {
		f.sink.send = func(_ context.Context, e event.Event, attempt int) error {
			if attempt == 1 && e.ID != "later" {
				return &sink.Error{Class: sink.Unknown, Err: errScripted}
			}
			return nil
		}
		looked := newGate(t)
		f.sink.find = func(ctx context.Context, _ sink.Doubt) (sink.Finding, error) {
			await.Ready(ctx, looked.opened)
			return absent, nil
		}
		f.provision(usualAckWait)
		f.numbered("payments", test.events)
		f.event(test.other, "later")
		f.start(test.change)
		f.eventually("the later event is posted", func() bool { return f.calls.count("finish later") == 1 })
		looked.open()
		f.awaitSettled(test.events + 1)
		f.requireRoomEmpty()
	})
}

// TestDoubtThroughMoves redelivers an event that then waits in the room. Redis admits the event as a new one: only the room knows of the
// earlier delivery, which may have posted the event.
func TestDoubtThroughMoves(t *testing.T) {
	t.Parallel()
	each(t, map[string]store.Decision{
		"for a slot": denied(time.Second), "for a pair": {Verdict: store.Leased, Wait: time.Second},
	}, func(t *testing.T, f *fixture, first store.Decision) {
		found := f.provision(usualAckWait)
		f.publish("notify.payments", `{"id": "order-1", "title": "an event", "status": "resolved", "key": "k"}`)
		f.deliverOnce(found)
		f.throttle.answers(func(c store.Request) store.Decision {
			if len(f.throttle.asked()) > 1 {
				return f.throttle.admit(c)
			}
			return first
		})
		f.throttle.delay = comeBackIn(time.Second)
		f.sink.find = finds(isPosted)
		f.start(slowDelays)
		f.awaitSettled(1)
		f.requireHistory("order-1", "find", keeps, "finish")
	})
}

// TestDoubtInTheRoom moves an event to the room after an attempt that may have posted it. The look-up reaches back to that attempt.
func TestDoubtInTheRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.send = inTurn(sink.Unknown, sink.RateLimited, sink.OK)
	var since []time.Time
	f.sink.find = func(_ context.Context, d sink.Doubt) (sink.Finding, error) {
		since = append(since, d.First)
		if len(since) > 1 {
			return isPosted, nil
		}
		return unsearchable, nil
	}
	began := time.Now()
	f.start(slow)
	f.event("payments", "order-1")
	f.eventually("it is held", func() bool { return f.held("payments") == 1 })
	attempted := testkit.Must(room.Read(f.waiting(room.Channel)[0].Header, time.Now()))(t).Attempted
	f.pacer.Pause(t.Context(), "payments", 0)
	f.awaitSettled(1)
	f.requireHistory("order-1", "send", "find", "send", "release in doubt", "find", keeps, "finish")
	const clocks = 100 * time.Millisecond // by which the estimate of the server's clock may be wrong
	for _, at := range append(since, attempted) {
		if at.Before(began.Add(-clocks)) || at.After(since[0].Add(clocks)) {
			t.Errorf("time of the first attempt: got %v, want between %v and %v", at, began, since[0])
		}
	}
}

// TestDoubtOutlivesALook ends a worker whose look-up has failed. The next worker has to look too.
func TestDoubtOutlivesALook(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(usualAckWait)
	f.event("payments", "order-1")
	f.deliverOnce(found)
	f.sink.find = finds(&sink.Error{Class: sink.RateLimited, RetryAfter: patience, Err: errScripted})
	w := f.start(nil)
	f.eventually("it is looked up", func() bool { return len(f.calls.all()) > 0 })
	w.stop()
	f.requireHistory("order-1", "find", "release in doubt")
}
