package testkit

import (
	"errors"
	"fmt"
	"io"
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

func (l *listener) Fatal(arguments ...any) { l.failures = append(l.failures, fmt.Sprint(arguments...)) }

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

// TestDiffOfNil compares long values with a nil pointer to a type that prints itself, which a method of the type would dereference.
func TestDiffOfNil(t *testing.T) {
	t.Parallel()
	type entry struct {
		Text string
		At   *time.Time
		Wait time.Duration
	}
	fails := &listener{TB: t}
	long, at := strings.Repeat("a", 200), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	EqualDeeply(fails, entry{long, nil, time.Minute}, entry{long, &at, time.Minute}, "entries")
	Equal(t, len(fails.failures), 1, "failures")
	Contains(t, "difference", fails.failures[0], "\n- At:   \"2026-03-01 12:00:00 +0000 UTC\",\n+ At:   nil,\n  Wait: \"1m0s\"}")
}

// TestFailures wants that each wrong expectation fails its test.
func TestFailures(t *testing.T) {
	t.Parallel()
	fails, l := &listener{TB: t}, NewLog(t)
	Equal(fails, "a", "b", "letter")
	EqualSlices(fails, []string{"a b"}, []string{"a", "b"}, "words")
	EqualMaps(fails, map[string]int{"a": 1}, map[string]int{"a": 2}, "counts")
	AtMost(fails, 3, 2, "number")
	AtLeast(fails, 2, 3, "number")
	Between(fails, 1, 2, 4, "number")
	Between(fails, 5, 2, 4, "number")
	EqualDeeply(fails, []*int{new(int)}, []*int{nil}, "numbers")
	Fails(fails, "success", nil, nil)
	Fails(fails, "cause", errNotYet, io.EOF)
	Fails(fails, "text", errNotYet, errNotYet, "holds")
	Contains(fails, "text", "a b", "a", "c")
	Lacks(fails, "text", "a b", "c", "b")
	l.Want(fails, "absent")
	l.WantCount(fails, 1, "absent")
	Check(fails, false, "got %d, want %d", 1, 2)
	Require(fails, false, "got %d, want %d", 1, 2)
	Equal(t, len(fails.failures), 17, "failures %q", fails.failures)
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
	Equal(t, changes("a", "a"), "", "changes of equal texts")
}
