package throttle

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fullLimitsKit runs fullLimits with a log, in a bubble of synctest.
type fullLimitsKit struct {
	*fullLimits
	t     *testing.T
	log   *testkit.Log
	lines int // compared so far
}

func startFullLimits(t *testing.T) *fullLimitsKit {
	t.Helper()
	log := testkit.NewLog(t)
	kit := &fullLimitsKit{fullLimits: newFullLimits(log.Logger()), t: t, log: log}
	testkit.Run(t, kit.keepLogging)
	return kit
}

func limitOf(path string) store.LimitKey {
	return store.LimitKey{Path: path, Limit: limits.Limit{Count: 10, Window: time.Hour}}
}

// deny denies n events of a first-level path. The next slot opens after a wait.
func (k *fullLimitsKit) deny(path string, n int, wait time.Duration) {
	key := limitOf(path)
	for i := range n {
		if i%2 == 1 {
			k.deniedAgain(key)
			continue
		}
		d := denied(limits.Node{Path: path, Level: limits.LevelCategory}, key.Limit, wait)
		k.denied(key, &d, time.Now())
	}
}

// pass sleeps, and compares the new lines of the log.
func (k *fullLimitsKit) pass(d time.Duration, want ...string) {
	k.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	var got []string
	for _, r := range k.log.Records()[k.lines:] {
		line := r.Message
		for _, name := range []string{"path", "full_for", "denied", "limits", "opened_meanwhile", "denied_meanwhile"} {
			if value, has := r.Attributes[name]; has {
				line += " " + name + "=" + value
			}
		}
		got = append(got, line)
	}
	k.lines += len(got)
	testkit.EqualSlices(k.t, got, want, "logged")
}

func TestFullLimitsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := startFullLimits(t)
		k.deny("payments", 20, 10*time.Minute)
		k.pass(2*time.Second, "limit is full path=payments")
		testkit.Equal(t, strings.SplitN(k.log.String(), " level=", 2)[1],
			"INFO msg=\"limit is full\" limit_level=category path=payments limit=10/1h next_slot=9m59s\n", "the line")
		k.deny("payments", 20, 10*time.Minute)
		k.pass(9 * time.Minute)
		k.pass(2*time.Minute, "limit has slots again path=payments full_for=10m2s denied=40")
	})
}

// A level logs one line of each kind a minute, with the number of its paths.
func TestFullLimitsOfOneLevelShareLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := startFullLimits(t)
		for i := range 50 {
			k.deny(fmt.Sprintf("service-%02d", i), i+1, 10*time.Minute)
		}
		k.pass(2*time.Second, "limit is full path=service-00 limits=50")
		k.deny("late", 1, 10*time.Minute)
		k.pass(levelLineEvery - 2*time.Second)
		k.pass(2*time.Second, "limit is full path=late")
		k.pass(10*time.Minute, "limit has slots again path=service-49 full_for=10m0s denied=1275 limits=50",
			"limit has slots again path=late full_for=10m58s denied=1")
	})
}

// A limit that fills and opens often logs one line of each kind a minute. The lines count each denial, and the last line has the
// current state.
func TestFullLimitsThatOpenOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := startFullLimits(t)
		flicker := func(rounds int) {
			for range rounds {
				k.deny("payments", 10, 2500*time.Millisecond)
				time.Sleep(4 * time.Second)
			}
		}
		flicker(1)
		k.pass(0, "limit is full path=payments", "limit has slots again path=payments full_for=3s denied=10")
		flicker(13) // until second 56
		k.pass(0)
		k.deny("payments", 10, time.Hour)
		k.pass(6*time.Second, "limit is full path=payments opened_meanwhile=13 denied_meanwhile=130")
		k.pass(levelLineEvery)
		k.pass(time.Hour, "limit has slots again path=payments full_for=1h0m0s denied=10")
	})
}

// A limit that admits an event is no longer full, unless Redis may have admitted the event before the denial.
func TestFullLimitsThatAdmit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := startFullLimits(t)
		before := time.Now()
		k.pass(time.Second)
		k.deny("payments", 1, time.Hour)
		k.deny("basket", 1, time.Hour)
		k.admitted([]store.LimitKey{limitOf("payments")}, before)
		k.pass(2*time.Second, "limit is full path=basket limits=2")
		k.admitted([]store.LimitKey{limitOf(""), limitOf("payments")}, time.Now())
		k.pass(2*time.Second, "limit has slots again path=payments full_for=3s denied=1")
		testkit.Equal(t, k.opensAt(limitOf("basket")).After(time.Now()), true, "the other limit is full")
	})
}

// A changed limit is logged as changed. An unchanged limit stays full.
func TestFullLimitsThatChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := startFullLimits(t)
		k.deny("payments", 5, time.Hour)
		k.deny("basket", 7, time.Hour)
		k.pass(2*time.Second, "limit is full path=basket limits=2")
		k.adopt(newTree(t, "100/1h", "10/1h", "payments=20/1h"))
		k.pass(0, "limit was changed while it was full path=payments full_for=2s denied=5")
		k.pass(2*time.Hour, "limit has slots again path=basket full_for=1h0m0s denied=7")
	})
}

// A limiter logs denials by Redis and by its cache.
func TestLimiterLogsFullLimits(t *testing.T) {
	t.Parallel()
	kit := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "100/1h", "1/4s", "")}, DenyCacheTTL: time.Minute})
	kit.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1}, request("sent", "payments"), request("dropped", "payments"))
	for range 10 {
		testkit.Require(t, kit.Full("payments", "") != nil, "the cache does not know of the denial")
	}
	testkit.Eventually(t, "a line", func() bool { return kit.fullLogs.Count("limit is full") == 1 })
	testkit.Eventually(t, "another one", func() bool { return kit.fullLogs.Count("limit has slots again") == 1 })
	kit.fullLogs.WantCount(t, 1, "denied=11")
}

// TestLimiterFreeSlotsAreNotFull has a limit that denies an event, and gets slots back long before they expire.
func TestLimiterFreeSlotsAreNotFull(t *testing.T) {
	t.Parallel()
	for limit, free := range map[string]func(store.Grant){
		"2/1h":          func(g store.Grant) { g.Refund(t.Context()) },
		"inflight:2/1h": func(g store.Grant) { _, _ = g.Finish(t.Context(), "") },
	} {
		kit := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", limit, "")}})
		sent := kit.want(map[store.Verdict]int{store.Admitted: 2, store.Denied: 1}, several(3, "a e", "a")...) // with IDs as of workers: a late recall tracks their category
		testkit.Equal(t, kit.Usage().Opens("a").IsZero(), false, "%s is full", limit)
		free(sent[0].Grant)
		free(sent[1].Grant)
		kit.one(store.Admitted, request("later", "a"))
		testkit.Equal(t, kit.Usage().Opens("a"), time.Time{}, "next slot of %s, which has one", limit)
		testkit.EqualSlices(t, kit.refresh(), []limits.Use{useOf(t, "a", limit, 1)}, "uses of %s", limit)
	}
}

// TestLimiterCostlyDenialIsNotFull has a limit without room for a costly event. The limit has free slots, so it is not full.
func TestLimiterCostlyDenialIsNotFull(t *testing.T) {
	t.Parallel()
	kit := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "10/1h", "none", "")}})
	costly := request("costly", "payments")
	costly.Cost = 10
	kit.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1}, request("sent", "payments"), costly)
	testkit.EqualSlices(t, kit.refresh(), []limits.Use{useOf(t, "", "10/1h", 1)}, "uses")
}

// TestByPathSharesItsRoom puts invented categories below one first level. Other first levels have room, which a removal returns.
func TestByPathSharesItsRoom(t *testing.T) {
	t.Parallel()
	b := newByPath[int]()
	for i := range maxPaths {
		testkit.Equal(t, b.put(fmt.Sprint("payments.", i), i), i < maxPaths/2, "category %d is put", i)
	}
	testkit.Equal(t, b.put("payments.1", 7), true, "a new value is put")
	for i := range maxPaths {
		testkit.Equal(t, b.put(fmt.Sprint("first-", i), i), i < maxPaths/2, "first level %d is put", i)
	}
	b.remove("payments.1")
	b.remove("payments.1")
	testkit.Equal(t, b.put("payments.new", 1), true, "a category is put after a removal")
	testkit.Equal(t, b.put("another", 1), false, "a category is put where there is no room")
	testkit.Equal(t, len(b.values), maxPaths, "values")
}
