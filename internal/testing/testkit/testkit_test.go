package testkit

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// listener keeps the failures of a test.
type listener struct {
	testing.TB
	failures []string
}

func (l *listener) Errorf(format string, arguments ...any) {
	l.failures = append(l.failures, fmt.Sprintf(format, arguments...))
}

func TestPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, looks := time.Now(), 0
		Await(t, "the third look", func() error {
			if looks++; looks < 3 {
				return errNotYet
			}
			return nil
		})
		Equal(t, time.Since(begin), 3*time.Millisecond, "time until the third look, after pauses of 1 ms and 2 ms")
		errLast := errors.New("last")
		begin = time.Now()
		err := poll(time.Second, func() error { return errLast })
		if took := time.Since(begin); !errors.Is(err, errLast) || took < time.Second || took > time.Second+lastPause {
			t.Errorf("a condition that never holds ends with %v after %v, want its error after a second", err, took)
		}
	})
}

func TestLog(t *testing.T) {
	t.Parallel()
	l := NewLog(t)
	l.Logger().Debug("begun")
	l.Logger().With("channel", "ops").Warn("full", "left", 0)
	l.Want(t, "begun", "full")
	l.WantCount(t, 1, "level=WARN")
	got := l.Records()[1]
	if got.Level != slog.LevelWarn || !maps.Equal(got.Attributes, map[string]string{"channel": "ops", "left": "0"}) {
		t.Errorf("the second record is %+v", got)
	}
	if lines := l.Lines("full"); len(lines) != 1 || !strings.HasSuffix(lines[0], "level=WARN msg=full channel=ops left=0\n") {
		t.Errorf("lines with a text: %q", lines)
	}
	fails := &listener{TB: t}
	l.Want(fails, "begun")
	l.WantCount(fails, 2, "full")
	Equal(t, len(fails.failures), 2, "failures of two wrong expectations")
}

func TestEqual(t *testing.T) {
	t.Parallel()
	fails := &listener{TB: t}
	Equal(fails, 1, 1, "the same number")
	EqualSlices(fails, nil, []string{}, "no words")
	EqualMaps(fails, map[string]int{"a": 1}, map[string]int{"a": 1}, "the same counts")
	EqualDeeply(fails, []*int{new(int)}, []*int{new(int)}, "the same numbers")
	AtMost(fails, 2, 2, "the bound")
	if len(fails.failures) > 0 {
		t.Errorf("equal values: %q", fails.failures)
	}
	Equal(fails, "a", "b", "letter %d", 1)
	EqualSlices(fails, []string{"a b"}, []string{"a", "b"}, "words")
	EqualMaps(fails, map[string]int{"a": 1}, map[string]int{"a": 2}, "counts")
	AtMost(fails, 3, 2, "number %d", 1)
	EqualDeeply(fails, []*int{new(int)}, []*int{nil}, "numbers")
	want := []string{`letter 1: got "a", want "b"`, `words: got ["a b"], want ["a" "b"]`, "counts: got map[a:1], want map[a:2]",
		"number 1: got 3, want 2 at most"}
	if len(fails.failures) != 5 || !slices.Equal(fails.failures[:4], want) {
		t.Errorf("failures %q, want %q and one more", fails.failures, want)
	}
}

// TestDifferences compares long values: a failure has the lines that differ, and a few lines around them.
func TestDifferences(t *testing.T) {
	t.Parallel()
	type setting struct {
		Name  string
		Value time.Duration
	}
	var want, got []setting
	for i := range 20 {
		want, got = append(want, setting{fmt.Sprint("setting ", i), time.Minute}), append(got, setting{fmt.Sprint("setting ", i), time.Minute})
	}
	got[10].Value = time.Hour
	fails := &listener{TB: t}
	EqualSlices(fails, got, want, "settings")
	text := strings.Repeat("a line of the page\n", 30)
	Equal(fails, text+"the end\n", text, "page")
	wants := []string{
		"settings differ (- want, + got):\n  … 18 equal lines\n",
		"-  Value: \"1m0s\"},\n+  Value: \"1h0m0s\"},\n",
		"page differ (- want, + got):\n  … 27 equal lines\n a line of the page\n a line of the page\n a line of the page\n+the end\n",
	}
	for i, in := range []int{0, 0, 1} {
		Contains(t, "failure", fails.failures[in], wants[i])
	}
	AtMost(t, strings.Count(fails.failures[0], "\n"), 12, "lines of the failure")
	if same := changes("a", "a"); same != "" {
		t.Errorf("equal texts: got %q, want no change", same)
	}
}

func TestGolden(t *testing.T) {
	file := filepath.Join(t.TempDir(), "golden")
	NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	Equal(t, Golden(t, file, "new"), "old", "golden file")
	*update = true
	defer func() { *update = false }()
	Equal(t, Golden(t, file, "new"), "new", "golden file after -update")
}
