package simulate

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestMute replays events before, in and after the window of a recurring mute. The muted event takes no slot.
func TestMute(t *testing.T) {
	t.Parallel()
	plan := testkit.Must(limits.NewTree(limits.Plan{Global: testkit.Must(limits.Parse("2/1d"))(t)}))(t)
	l := NewLimiter(Options{Tree: plan, Retention: time.Hour, PairTTL: time.Hour})
	l.Mute([]Mute{testkit.Must(ParseMute("db=Tue 02:00-04:00 UTC"))(t)})
	begin := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	for i, c := range []struct {
		after time.Duration
		want  Verdict
	}{
		{-time.Second, Verdict{Outcome: Sent}}, {0, Verdict{Outcome: Dropped, Level: limits.LevelMute}}, {2 * time.Hour, Verdict{Outcome: Sent}},
		{3 * time.Hour, Verdict{Outcome: Dropped, Level: limits.LevelGlobal}},
	} {
		e := Event{Number: uint64(i + 1), At: begin.Add(c.after), Identity: "db " + c.after.String(), Category: "db.replica", Cost: 1}
		got := testkit.Must(l.Evaluate(t.Context(), []Event{e}))(t)
		testkit.Equal(t, got[0], c.want, "the event %v after the begin", c.after)
	}
	for _, text := range []string{"Not A Path", "db=Tue"} {
		_, err := ParseMute(text)
		testkit.Fails(t, text, err, nil)
	}
}
