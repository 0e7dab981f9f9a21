package pacing

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &newLocal(Budgets{}).pauses
		want := func(destination string, d time.Duration) {
			t.Helper()
			testkit.Equal(t, p.left(time.Now(), destination), d, "%s is paused for", destination)
		}
		want("#a", 0)
		p.learn(time.Now(), map[string]time.Duration{"#a": time.Minute, "#b": time.Second})
		p.learn(time.Now(), map[string]time.Duration{"#a": time.Second, "#b": 2 * time.Second})
		p.learn(time.Now(), nil)
		want("#a", time.Minute)
		want("#b", 2*time.Second)
		time.Sleep(2 * time.Second)
		want("#b", 0)
		want("#a", 58*time.Second)
		testkit.Equal(t, len(p.until), 1, "destinations that are remembered")
		for i := range 3 * maxPauses {
			p.learn(time.Now(), map[string]time.Duration{fmt.Sprint("#", i): time.Hour})
			testkit.Require(t, len(p.until) <= maxPauses, "got %d destinations, want %d at most", len(p.until), maxPauses)
		}
		want(fmt.Sprint("#", 3*maxPauses-1), time.Hour)
	})
}

func TestLocalIsBounded(t *testing.T) {
	t.Parallel()
	l := newLocal(Budgets{Channel: Pace{time.Second, 1}, Workspace: Window{1, time.Second}})
	size := func() int { return max(len(l.tats), len(l.askers), len(l.line), len(l.mentions.byPath)) }
	at := testkit.Start
	for i := range maxPauses + 10 {
		at = at.Add(time.Second)
		l.post(at, "one", Ask{Channel: fmt.Sprint("posts", i)}, 0)
		l.post(at, "one", Ask{Channel: fmt.Sprint("waits", i), MaxWait: time.Hour}, 0)
		l.mentions.take(at, fmt.Sprint(i), "id", time.Hour)
		testkit.AtMost(t, size(), maxPauses, "channels and paths")
	}
	for i := range maxPauses + 10 {
		l.setTAT(at, fmt.Sprint("busy", i), at.Add(time.Hour))
		testkit.AtMost(t, size(), maxPauses, "channels and paths")
	}
}
