package throttle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// muted are limits with a mute of the category a, as a change with a revision.
func muted(t *testing.T, revision uint64) limits.Ruleset {
	t.Helper()
	return limits.Ruleset{
		Tree: newTree(t, "100/1h", "10/1h", ""), Position: limits.Position{Generation: 1, Revision: revision},
		Mutes: []*limits.Mute{{Path: "a", Reason: "migration", Spare: "critical", Generation: 1, Revision: revision}},
	}
}

// TestMuted drops a flood of a muted category without asking Redis, and spares critical events.
func TestMuted(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{DenyCacheTTL: time.Hour})
	testkit.Equal(t, limiter.Mutes.Muted("a", event.SeverityInfo) == nil, true, "a category is not muted")
	limiter.Adopt(muted(t, 1))
	d := limiter.decide(request("e", "a"))[0]
	testkit.Require(t, d.Verdict == store.Denied && d.Muted != nil && d.Grant == nil, "a muted event: %+v, want it denied by the mute", d)
	testkit.Equal(t, limiter.Mutes.Muted("a.b", event.SeverityInfo) != nil, true, "a path below is muted")
	testkit.Equal(t, limiter.Mutes.Muted("a", event.SeverityCritical) == nil, true, "critical events are sent")
	testkit.Equal(t, limiter.Full("a", "") == nil, true, "a mute is no full limit")
	testkit.Equal(t, limiter.Mutes.Ended(muted(t, 1).Mutes[0]), false, "the mute has ended")
	limiter.wantLogged("a", 0)
	limiter.fullLogs.Want(t)
}

// TestCheckMuteAsksFirst mutes a path without a limiter's knowledge. The limiter has decided an event before, and asks Redis before its post.
func TestCheckMuteAsksFirst(t *testing.T) {
	t.Parallel()
	var limiter *limiterKit
	limiter = startLimiter(t, LimiterOptions{Refresh: func(context.Context) error {
		limiter.Adopt(muted(t, 1))
		return nil
	}})
	limiter.one(store.Admitted, request("e", "a"))
	asked := *limiter.staleness.asked.Load()
	by, err := limiter.Mutes.CheckMute(t.Context(), "a", event.SeverityInfo)
	testkit.NoError(t, err)
	testkit.Equal(t, by.Sub(asked), postedWithin, "time for the post")

	testkit.Must(store.NewRedis(script.NewRunner(limiter.options), limiter.o.Settings).Positions.Advance(t.Context(), muted(t, 1).Position))(t)
	limiter.staleness.asked.Store(nil) // as after a while without a decision
	_, err = limiter.Mutes.CheckMute(t.Context(), "a", event.SeverityInfo)
	testkit.Equal(t, errors.Is(err, ErrMuted), true, "the path is muted")
	testkit.Must(limiter.Mutes.CheckMute(t.Context(), "b", event.SeverityInfo))(t)
}

// TestMuteWithoutRedis has the failure policies respect a mute. They ask for the newest limits before a post.
func TestMuteWithoutRedis(t *testing.T) {
	t.Parallel()
	for policy, other := range map[Policy]store.Verdict{Open: store.Admitted, Local: store.Admitted, Closed: store.Denied} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			refreshed := 0
			limiter := startLimiter(t, LimiterOptions{Policy: policy, Refresh: func(context.Context) error { refreshed++; return nil }})
			limiter.Adopt(muted(t, 1))
			limiter.loseAndAct()
			d := limiter.decide(request("e", "a"))[0]
			testkit.Require(t, d.Verdict == store.Denied && d.Node.Level == limits.LevelMute && d.Muted != nil,
				"a muted event: %+v, want it denied by the mute", d)
			limiter.one(other, request("other", "b"))
			limiter.staleness.asked.Store(nil)
			_, err := limiter.Mutes.CheckMute(t.Context(), "a", event.SeverityInfo)
			testkit.Equal(t, errors.Is(err, ErrMuted), true, "the path is muted")
			testkit.Equal(t, refreshed, 1, "the newest limits were read")
		})
	}
}

// TestPastMutes replaces a mute and lets both end. They are remembered until an hour after the end of the second one.
func TestPastMutes(t *testing.T) {
	t.Parallel()
	mute := func(path string, revision uint64) *limits.Mute {
		return &limits.Mute{Path: path, Reason: "migration", Generation: 1, Revision: revision}
	}
	first, second, other := mute("a", 1), mute("a", 2), mute("b", 3)
	var p pastMutes
	adopt := func(after time.Duration, revision uint64, mutes ...*limits.Mute) {
		p.adopt(limits.Ruleset{Mutes: mutes, Position: limits.Position{Generation: 1, Revision: revision}}, testkit.Start.Add(after))
	}
	want := func(after time.Duration, what string, texts ...string) {
		t.Helper()
		testkit.EqualSlices(t, p.covering("a.b", testkit.Start.Add(after)), texts, "past mutes: %s", what)
	}
	adopt(0, 1, first)
	want(0, "a mute is in force")
	adopt(time.Second, 2, second)
	want(time.Second, "it was replaced", first.Text())
	adopt(5*reportedWithin, 3, second, other)
	want(5*reportedWithin, "the newer mute is in force for long", first.Text())
	adopt(6*reportedWithin, 4)
	want(7*reportedWithin, "both have ended", first.Text(), second.Text())
	want(7*reportedWithin+1, "both are reported")
	adopt(6*reportedWithin+1, 5, second)
	want(6*reportedWithin+1, "the second one is in force again", first.Text())
	third := mute("a", 5)
	p.note(second, limits.Ruleset{}, testkit.Start)
	p.note(third, limits.Ruleset{}, testkit.Start)
	want(6*reportedWithin+1, "another one is due", first.Text(), third.Text())
	for i := range uint64(2 * maxPast) {
		adopt(6*reportedWithin, 6+i, mute("a", 6+i))
	}
	testkit.Equal(t, len(p.past), maxPast, "past mutes")
}
