package throttle

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// observed is what a client was told of one event, at a time in microseconds.
type observed struct {
	id       string
	category string
	at       int64
	cost     int64
	denied   string // the path of the node that denied it; "-" if it was admitted
	count    int64  // of the limit that denied
	window   int64  // likewise, in microseconds
}

// checkWindows looks at admissions alone: for every node and every instant t, those in (t − window, t] are no more than
// the limit allows. The count changes only where one comes in, so those instants are all that need to be looked at.
func checkWindows(admissions []observed, limits map[string]Limits) error {
	slices.SortFunc(admissions, func(a, b observed) int { return cmp.Compare(a.at, b.at) })
	for path, all := range limits {
		var at []int64
		for _, a := range admissions {
			if path == "" || a.category == path || strings.HasPrefix(a.category, path+".") {
				for range a.cost {
					at = append(at, a.at)
				}
			}
		}
		for _, limit := range all {
			oldest, window := 0, limit.Window.Microseconds()
			for i, t := range at {
				for at[oldest] <= t-window {
					oldest++
				}
				if n := int64(i - oldest + 1); n > limit.Count {
					return fmt.Errorf("%d slots of %q were taken in the %v up to %d, at most %d may be", n, path, limit.Window, t, limit.Count)
				}
			}
		}
	}
	return nil
}

// checkDenials looks whether the limit that denied an event had no room for it.
func checkDenials(all []observed) error {
	for _, d := range all {
		if d.denied == "-" {
			continue
		}
		taken := int64(0)
		for _, a := range all {
			inside := d.denied == "" || a.category == d.denied || strings.HasPrefix(a.category, d.denied+".")
			if a.denied == "-" && inside && a.at > d.at-d.window && a.at <= d.at {
				taken += a.cost
			}
		}
		if taken+d.cost <= d.count {
			return fmt.Errorf("%s of cost %d was denied by %q at %d, where %d slots of %d were taken", d.id, d.cost, d.denied, d.at, taken, d.count)
		}
	}
	return nil
}

func TestCheckWindowsFindsWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	limits := map[string]Limits{"": {{Count: 3, Window: 10 * time.Microsecond}}, "a": {{Count: 2, Window: 5 * time.Microsecond}}}
	admitted := func(category string, at, cost int64) observed {
		return observed{category: category, at: at, cost: cost, denied: "-"}
	}
	for name, c := range map[string]struct {
		admissions []observed
		wrong      bool
	}{
		"full":           {[]observed{admitted("a", 100, 1), admitted("a.b", 101, 1), admitted("b", 109, 1), admitted("a", 110, 1)}, false},
		"category over":  {[]observed{admitted("a", 100, 1), admitted("a.b", 101, 1), admitted("a", 104, 1)}, true},
		"other category": {[]observed{admitted("a", 100, 1), admitted("a.b", 101, 1), admitted("ab", 104, 1)}, false},
		"global over":    {[]observed{admitted("b", 109, 1), admitted("b", 100, 2), admitted("b", 104, 1)}, true},
		"cost":           {[]observed{admitted("b", 100, 4)}, true},
	} {
		if err := checkWindows(c.admissions, limits); (err != nil) != c.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExactUnderConcurrency has many clients ask at once, on the server's own clock, and counts from outside.
func TestExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limits := map[string]Limits{
		"": parseLimits(t, "60/200ms"), "a": parseLimits(t, "25/150ms+40/1s"), "a.b": parseLimits(t, "10/100ms"),
		"c": parseLimits(t, "30/300ms"), "d": parseLimits(t, "30/300ms"),
	}
	tree := newTree(t, limits[""].String(), limits["c"].String(), "a="+limits["a"].String()+",a.b="+limits["a.b"].String())
	const (
		clients   = 4
		perClient = 3
		calls     = 60
	)
	var (
		mu   sync.Mutex
		all  []observed
		work sync.WaitGroup
	)
	for c := range clients {
		client := newClient(t, redis.Options{Addr: server.Addr})
		limiter := newRedis(client, "exact", Settings{Tree: tree, Lease: testLease, Retention: testRetention})
		for g := range perClient {
			work.Go(func() {
				for call := range calls {
					requests := make([]Request, 1+rand.IntN(8))
					for i := range requests {
						category := []string{"a", "a.b", "a.b.x", "c", "d"}[rand.IntN(5)]
						requests[i] = request(fmt.Sprint(c, "-", g, "-", call, "-", i), category).withCost(1 + rand.IntN(2))
					}
					before := time.Now()
					ruling, err := limiter.Decide(t.Context(), requests)
					after := time.Now()
					if err != nil {
						t.Error(err)
						return
					}
					if at := time.UnixMicro(ruling.At); at.Before(before.Add(-time.Second)) || at.After(after.Add(time.Second)) {
						t.Errorf("decided at %v, asked between %v and %v", at, before, after)
					}
					mu.Lock()
					for i, d := range ruling.Decisions {
						o := observed{id: requests[i].ID, category: requests[i].Category, at: ruling.At, cost: int64(requests[i].Cost), denied: "-"}
						if d.Verdict == Denied {
							o.denied, o.count, o.window = d.Node.Path, d.Limit.Count, d.Limit.Window.Microseconds()
						} else if d.Verdict != Admitted {
							t.Errorf("%q: %+v", requests[i].ID, d)
						}
						all = append(all, o)
					}
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				}
			})
		}
	}
	work.Wait()
	admissions := slices.DeleteFunc(slices.Clone(all), func(o observed) bool { return o.denied != "-" })
	if len(admissions) == 0 || len(admissions) == len(all) {
		t.Fatalf("%d events of %d were admitted: that says nothing about the limits", len(admissions), len(all))
	}
	if err := checkWindows(admissions, limits); err != nil {
		t.Error(err)
	}
	if err := checkDenials(all); err != nil {
		t.Error(err)
	}
}

// TestExactWithRefunds takes and returns slots in turn: what is kept never exceeds a limit.
func TestExactWithRefunds(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limits := map[string]Limits{"": parseLimits(t, "40/1h"), "a": parseLimits(t, "25/1h"), "b": parseLimits(t, "25/1h")}
	tree := newTree(t, "40/1h", "25/1h", "")
	var (
		mu   sync.Mutex
		kept []observed
		work sync.WaitGroup
	)
	for c := range 6 {
		client := newClient(t, redis.Options{Addr: server.Addr})
		limiter := newRedis(client, "refunds", Settings{Tree: tree, Lease: testLease, Retention: testRetention})
		work.Go(func() {
			for call := range 80 {
				r := request(fmt.Sprint(c, "-", call), []string{"a", "b"}[rand.IntN(2)]).withCost(1 + rand.IntN(3))
				ruling, err := limiter.Decide(t.Context(), []Request{r})
				if err != nil {
					t.Error(err)
					return
				}
				d := ruling.Decisions[0]
				if d.Verdict != Admitted {
					continue
				}
				if rand.IntN(3) > 0 {
					if returned, err := limiter.Refund(t.Context(), []Lease{d.Lease}); err != nil || !returned[0] {
						t.Errorf("refund: %v, %v", returned, err)
					}
					continue
				}
				mu.Lock()
				kept = append(kept, observed{id: r.ID, category: r.Category, at: ruling.At, cost: int64(r.Cost), denied: "-"})
				mu.Unlock()
			}
		})
	}
	work.Wait()
	if err := checkWindows(kept, limits); err != nil {
		t.Error(err)
	}
	used := int64(0)
	for _, k := range kept {
		used += k.cost
	}
	counts, err := newRedis(newClient(t, redis.Options{Addr: server.Addr}), "refunds", Settings{Tree: tree}).Usage(t.Context(), tree.Path("a"))
	if err != nil || counts[0][0] != used {
		t.Errorf("%v slots are taken, %d were kept, %v", counts, used, err)
	}
}

// TestOneEventManyClients has everybody ask for the same messages at once: each is leased to one of them.
func TestOneEventManyClients(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	tree := newTree(t, "1000/1h", "1000/1h", "")
	var (
		mu     sync.Mutex
		leased = make(map[string]int)
		work   sync.WaitGroup
	)
	requests := several(50, "e", "a")
	for range 8 {
		client := newClient(t, redis.Options{Addr: server.Addr})
		limiter := newRedis(client, "same", Settings{Tree: tree, Lease: time.Hour, Retention: testRetention})
		work.Go(func() {
			mine := slices.Clone(requests)
			rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			for batch := range slices.Chunk(mine, 7) {
				ruling, err := limiter.Decide(t.Context(), batch)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i, d := range ruling.Decisions {
					if d.Verdict == Admitted {
						leased[batch[i].ID]++
					} else if d.Verdict != Leased {
						t.Errorf("%q: %+v", batch[i].ID, d)
					}
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	for _, r := range requests {
		if leased[r.ID] != 1 {
			t.Errorf("%q was leased %d times", r.ID, leased[r.ID])
		}
	}
}
