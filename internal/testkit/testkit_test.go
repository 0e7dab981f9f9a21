package testkit

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
