package throttle

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestRefusalsAreToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logs := testkit.NewLog(t)
		r := logOnce{logger: logs.Logger(), tooLarge: make(map[string]bool)}
		tooLarge := store.Decision{Verdict: store.ExceedsCapacity, Limit: limits.Limit{Count: 3, Window: time.Hour}}
		for range 3 {
			for i := range maxNoted + 10 {
				r.exceedsCapacity(request("e", fmt.Sprint("c", i)), tooLarge)
			}
			r.exceedsCapacity(request("e", "off"), store.Decision{Verdict: store.ExceedsCapacity, Limit: limits.Limit{Count: 0, Window: time.Hour}})
		}
		logs.WantCount(t, maxNoted, "")

		logs = testkit.NewLog(t)
		r.logger = logs.Logger()
		for range 10 {
			r.report("a", errors.New("wrong type"))
			time.Sleep(oplog.Every / 5)
		}
		logs.Want(t, "event cannot be evaluated", "event cannot be evaluated")
	})
}
