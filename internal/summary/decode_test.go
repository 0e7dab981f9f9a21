package summary

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestWhatIsNotShown(t *testing.T) {
	t.Parallel()
	shown := []Path{{Path: "a", Dropped: 5}, {Path: "b", Rest: true, Dropped: 3}}
	for name, test := range map[string]struct {
		dropped     int64
		named       int
		morePaths   int
		moreDropped int64
	}{
		"nothing":                     {10, 1, 0, 0},
		"paths that have a name":      {17, 4, 3, 7},
		"paths that have none":        {11, 1, 1, 1},
		"a name whose count is shown": {10, 0, 0, 0},
	} {
		d := Digest{Dropped: test.dropped, Unpaired: 2, Paths: shown}
		d.countOthers(test.named)
		testkit.Check(t, d.MorePaths == test.morePaths && d.MoreDropped == test.moreDropped,
			"%s: %d more paths with %d drops, want %d with %d", name, d.MorePaths, d.MoreDropped, test.morePaths, test.moreDropped)
	}
}

func TestMalformedDigests(t *testing.T) {
	t.Parallel()
	const head = "abc posting 1 0\n1 1 1 0 0 0 0 0 0 1 1\nworker-1 3 5"
	now := testkit.Start.UnixMicro()
	for name, reply := range map[string][]any{
		"nothing":                  {},
		"half a digest":            {now, head},
		"a doubt without a time":   {now, head, "abc"},
		"a time that is none":      {"now", head, int64(0)},
		"a text that is none":      {now, now, int64(0)},
		"no counts":                {now, "abc posting 1 0", int64(0)},
		"too few words":            {now, "abc posting 1\n1 1 1 0 0 0 0 0 0 1 1\n", int64(0)},
		"failures that are none":   {now, "abc posting 1 x\n1 1 1 0 0 0 0 0 0 1 1\n", int64(0)},
		"too few numbers":          {now, "abc posting 1 0\n1 1 1 0 0 0 0 0 0 1\n", int64(0)},
		"a number that is too big": {now, "abc posting 1 0\n99999999999999999999 1 1 0 0 0 0 0 0 1 1\n", int64(0)},
		"half the rounds":          {now, head + " worker-2 4", int64(0)},
		"a round that is none":     {now, head + " worker-2 4 x", int64(0)},
		"no rounds":                {now, "abc posting 1 0\n1 1 1 0 0 0 0 0 0 1 1", int64(0)},
		"half an entry":            {now, head + "\na\t1\t", int64(0)},
		"half a level":             {now, head + "\na\t1\t0\ttitle\tglobal\t", int64(0)},
		"a count that is none":     {now, head + "\na\tx\t0\ttitle\t", int64(0)},
		"a level's that is none":   {now, head + "\na\t1\t0\ttitle\tglobal\tx\t", int64(0)},
	} {
		if claimed, err := decodeClaim("#a", append(reply, "")); !errors.Is(err, script.ErrReply) || claimed != (Claimed{}) {
			t.Errorf("%s: got %+v and %v, want %v", name, claimed, err, script.ErrReply)
		}
	}
}

func TestQuiet(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]time.Duration{
		time.Second: 2 * time.Second, 30 * time.Second: 3 * time.Second, 30 * time.Minute: time.Minute, 24 * time.Hour: time.Minute,
	} {
		testkit.Equal(t, quiet(interval), want, "quiet interval of %v", interval)
	}
}

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
		limits.LevelRoom:     "could not wait: too many waited already",
		limits.LevelClosed:   "the limits could not be asked",
	} {
		testkit.Equal(t, NewReporter(Options{LimitOf: limitOf, Logger: slog.New(slog.DiscardHandler)}).describe("payments", level), want, "level %s", level)
	}
}
