package throttle

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		want := func(destination string, d time.Duration) {
			t.Helper()
			if got := p.left(destination); got != d {
				t.Errorf("%s rests for %v, want %v", destination, got, d)
			}
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
		if len(p.until) != 1 {
			t.Errorf("%v is remembered", p.until)
		}
		for i := range 3 * maxPauses {
			p.learn(time.Now(), map[string]time.Duration{fmt.Sprint("#", i): time.Hour})
			if len(p.until) > maxPauses {
				t.Fatalf("%d destinations are remembered", len(p.until))
			}
		}
		want(fmt.Sprint("#", 3*maxPauses-1), time.Hour)
	})
}

func TestRefusalsAreToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			r    refusals
			logs logRecorder
		)
		logger := slog.New(&logs)
		tooLarge := Decision{Verdict: NeverFits, Limit: Limit{Count: 3, Window: time.Hour}}
		for range 3 {
			for i := range maxNoted + 10 {
				r.neverFits(logger, request("e", fmt.Sprint("c", i)), tooLarge)
			}
			r.neverFits(logger, request("e", "off"), Decision{Verdict: NeverFits, Limit: Limit{Count: 0, Window: time.Hour}})
		}
		if len(logs.messages) != maxNoted {
			t.Errorf("%d lines for %d categories", len(logs.messages), maxNoted)
		}

		logs.messages = nil
		for range 10 {
			r.report(logger, "a", errors.New("wrong type"))
			time.Sleep(reportEvery / 5)
		}
		logs.want(t, "event cannot be judged", "event cannot be judged")
	})
}

func TestNextSlot(t *testing.T) {
	t.Parallel()
	u := newUsage(&Ruleset{Tree: newTree(t, "10/1h", "5/1h", "a=1/1h")}, newFakeMetrics())
	want := func(now time.Time, level string, wait time.Duration) {
		t.Helper()
		if gotLevel, gotWait := u.nextSlot(now); gotLevel != level || gotWait != wait {
			t.Errorf("the next slot is of %q in %v, want %q in %v", gotLevel, gotWait, level, wait)
		}
	}
	want(start, "", 0)
	u.denied(denied(Node{Path: "a", Level: "a"}, Limit{}, time.Minute), start)
	u.denied(denied(Node{Path: "b", Level: LevelCategory}, Limit{}, time.Second), start)
	want(start, LevelCategory, time.Second)
	want(start.Add(time.Second), "a", 59*time.Second)
	u.denied(denied(Node{Level: LevelGlobal}, Limit{}, time.Hour), start)
	want(start.Add(time.Second), LevelGlobal, time.Hour-time.Second)
	want(start.Add(time.Hour), "", 0)
}
