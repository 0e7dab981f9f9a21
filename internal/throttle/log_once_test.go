package throttle

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestRefusalsAreToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r logOnce
		logs := testkit.NewLog(t)
		logger := logs.Logger()
		tooLarge := Decision{Verdict: ExceedsCapacity, Limit: limits.Limit{Count: 3, Window: time.Hour}}
		for range 3 {
			for i := range maxNoted + 10 {
				r.exceedsCapacity(logger, request("e", fmt.Sprint("c", i)), tooLarge)
			}
			r.exceedsCapacity(logger, request("e", "off"), Decision{Verdict: ExceedsCapacity, Limit: limits.Limit{Count: 0, Window: time.Hour}})
		}
		logs.WantCount(t, maxNoted, "")

		logs = testkit.NewLog(t)
		logger = logs.Logger()
		for range 10 {
			r.report(logger, "a", errors.New("wrong type"))
			time.Sleep(reportEvery / 5)
		}
		logs.Want(t, "event cannot be evaluated", "event cannot be evaluated")
	})
}

func TestNextSlot(t *testing.T) {
	t.Parallel()
	u := newUsage(compile(limits.Ruleset{Tree: newTree(t, "10/1h", "5/1h", "a=1/1h")}), new(fakeMetrics))
	want := func(now time.Time, level string, wait time.Duration) {
		t.Helper()
		if gotLevel, gotWait := u.nextSlot(now); gotLevel != level || gotWait != wait {
			t.Errorf("the next slot is of %q in %v, want %q in %v", gotLevel, gotWait, level, wait)
		}
	}
	want(start, "", 0)
	u.denied(denied(limits.Node{Path: "a", Level: "a"}, limits.Limit{}, time.Minute), start)
	u.denied(denied(limits.Node{Path: "b", Level: limits.LevelCategory}, limits.Limit{}, time.Second), start)
	want(start, limits.LevelCategory, time.Second)
	want(start.Add(time.Second), "a", 59*time.Second)
	u.denied(denied(limits.Node{Level: limits.LevelGlobal}, limits.Limit{}, time.Hour), start)
	want(start.Add(time.Second), limits.LevelGlobal, time.Hour-time.Second)
	want(start.Add(time.Hour), "", 0)
}
