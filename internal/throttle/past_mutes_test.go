package throttle

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

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
