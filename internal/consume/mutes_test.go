package consume

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestMutedWhileWaiting mutes a category whose events wait for their channel. They are dropped at once, and their slots return.
func TestMutedWhileWaiting(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	held := newGate(t)
	f.holdPosts(held)
	w := f.newWorker(slow)
	f.run(w)
	ids := f.numbered("payments", 3)
	f.eventually("a post", func() bool { return len(f.calls.posted("")) == 1 })
	f.eventually("decisions", func() bool { return len(f.throttle.asked()) == len(ids) })
	f.mutes.mute("payments")
	w.DropMuted()
	f.eventually("the others are dropped", func() bool { return f.metrics.outcomes()["dropped payments"] == 2 })
	held.open()
	f.awaitOutcomes(map[string]int{"sent payments": 1, "dropped payments": 2})
	testkit.Equal(t, f.calls.count("refund payments-001")+f.calls.count("refund payments-002"), 2, "returned slots")
	f.requireEmpty()
}

// TestMutedBehindAPause mutes a category while a channel is paused for long. Its admitted event waits in the room, and is sent if the mute ends
// before the pause. Otherwise it is dropped at the end of the pause.
func TestMutedBehindAPause(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]string{"the mute ends first": "sent payments", "the pause ends first": "dropped payments"}, func(t *testing.T, outcome string) {
		f := newProvisioned(t)
		f.throttle.answers(func(c store.Request) store.Decision {
			if len(f.throttle.asked()) == 1 {
				f.mutes.mute("payments")
				f.pacer.Pause(t.Context(), "payments", time.Hour)
			}
			return f.throttle.admit(c)
		})
		w := f.start(nil)
		f.event("payments", "order-1")
		f.eventually("it waits in the room", func() bool { return len(f.inRoom(testNames.Room().All())) == 1 })
		w.DropMuted()
		if outcome == "sent payments" {
			f.mutes.mute("another")
		}
		f.pacer.Pause(t.Context(), "payments", 0)
		f.awaitOutcomes(map[string]int{outcome: 1})
		f.requireEmpty()
	})
}

// TestMutedBeforeThePost mutes a category after the decision about an event. A resolved event of that category is sent.
func TestMutedBeforeThePost(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	muting := &muteAtPost{fakeMutes: f.mutes}
	f.start(func(o *setup) { o.Limits.Mutes = muting })
	f.event("payments", "order-1")
	f.awaitOutcomes(map[string]int{"dropped payments": 1})
	testkit.Equal(t, len(f.calls.posted("")), 0, "posts of a muted event")
	testkit.Equal(t, f.calls.count("refund order-1"), 1, "returned slots")
	f.status(event.StatusResolved)
	f.awaitSettled(2)
	testkit.Equal(t, len(f.calls.posted("")), 1, "posts of a resolved event")
}

// muteAtPost learns of a mute when it is asked right before a post.
type muteAtPost struct{ *fakeMutes }

func (m *muteAtPost) CheckMute(ctx context.Context, category string, severity event.Severity) (time.Time, error) {
	m.mute(category)
	return m.fakeMutes.CheckMute(ctx, category, severity)
}

// TestBoundOfThePost compares by when a post must begin: while the mutes are confirmed, and before the lease ends.
func TestBoundOfThePost(t *testing.T) {
	t.Parallel()
	ends := time.Now().Add(time.Second)
	type boundCase struct {
		status    event.Status
		confirmed time.Time
		want      time.Time
	}
	testkit.Each(t, map[string]boundCase{
		"the mutes are confirmed for longer": {event.StatusFiring, ends.Add(time.Second), ends},
		"the lease lasts longer":             {event.StatusFiring, ends.Add(-time.Second), ends.Add(-time.Second)},
		"nothing was confirmed":              {event.StatusFiring, time.Time{}, ends},
		"it resolves":                        {event.StatusResolved, ends.Add(-time.Second), ends},
	}, func(t *testing.T, test boundCase) {
		d := &delivery{message: new(received.Message), event: event.Event{Key: "k", Status: test.status}}
		d.message.Lease.Extend(ends, 0)
		check, _ := muteCheck{mutes: &fakeMutes{confirmed: test.confirmed}}.ofPost(d)
		testkit.Equal(t, testkit.Must(check(t.Context()))(t), test.want, "by when the post must begin")
	})
}

// TestSuspendedAtThePost ends the lease while a worker confirms the mutes, as if the process were suspended meanwhile. It does not post the event.
func TestSuspendedAtThePost(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	suspended := &suspendedAtPost{fakeMutes: f.mutes}
	w := f.prepared(func(o *setup) { o.Limits.Mutes = suspended })
	f.event("payments", "order-1")
	d := &delivery{
		message: f.taken(w, usualAckWait), event: event.Event{ID: "order-1"},
		admission: outcome.Admission{Grant: &fakeGrant{id: "order-1", calls: f.calls}}, place: w.lanes.Enter(lane.Delivery{Channel: "C1"}),
	}
	suspended.of = d.message
	receipt, failure, _ := w.decider.deliverer.attempt(t.Context(), d)
	testkit.Check(t, failure != nil, "got a post with the receipt %q, want none", receipt)
	f.requireHistory("order-1")
}

// suspendedAtPost ends the lease of a message.
type suspendedAtPost struct {
	*fakeMutes
	of *received.Message
}

func (s *suspendedAtPost) CheckMute(context.Context, string, event.Severity) (by time.Time, err error) {
	s.of.Lease.Extend(time.Now(), -time.Millisecond)
	return time.Time{}, nil
}

// TestUnconfirmedLimits has the worker unable to confirm its limits before the first attempt at a post. The event goes out later.
func TestUnconfirmedLimits(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	f.mutes.failing = errors.New("nobody answers")
	f.start(nil)
	f.event("payments", "order-1")
	f.eventually("another decision", func() bool { return len(f.throttle.asked()) > 2 })
	testkit.Equal(t, len(f.calls.posted("")), 0, "posts by unconfirmed limits")
	f.mutes.confirm()
	f.awaitOutcomes(map[string]int{"sent payments": 1})
}

// TestResolvedUnderPastMutes resolves a key after the end of a mute. The report about the mute learns of it.
func TestResolvedUnderPastMutes(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	f.mutes.past = []string{"a past mute"}
	counted := make(chan []summary.Drop, 1)
	f.start(func(o *setup) { o.Drops = func(drops []summary.Drop) int64 { counted <- drops; return 1 } })
	f.status(event.StatusResolved)
	drops := receive(f, "the drops", counted)
	last := drops[len(drops)-1]
	testkit.Check(t, last.Mute == "a past mute" && last.N == 0 && len(last.Keys) == 1 && !last.Keys[0].Firing && last.Keys[0].Name == "payments k",
		"got %+v, want a key of the mute that does not fire", drops)
}
