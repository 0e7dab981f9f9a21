package summary

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	limitOf := func(_, level string) string {
		if level == limits.LevelCategory {
			return "10/30m"
		}
		return ""
	}
	for level, want := range map[string]string{
		limits.LevelCategory: "category 10/30m",
		limits.LevelGlobal:   "global",
		throttle.LevelRoom:   "could not wait: too many waited already",
		throttle.LevelClosed: "the limits could not be asked",
	} {
		testkit.Equal(t, NewKeeper(Options{LimitOf: limitOf}).describe("payments", level), want, "level %s", level)
	}
	if got := NewKeeper(Options{}).describe("payments", limits.LevelCategory); got != limits.LevelCategory {
		t.Errorf("a level of which nobody knows its limit is %q", got)
	}
}
