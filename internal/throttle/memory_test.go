package throttle

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestMemoryIsBoundedByWhatItAdmits lets paths and events come and go for a long time.
func TestMemoryIsBoundedByWhatItAdmits(t *testing.T) {
	t.Parallel()
	clock := newFakeClock(nil)
	m := NewMemory(Settings{Tree: newTree(t, "10000/1m", "10/1m", ""), Lease: time.Second, Retention: time.Minute}, clock.read, nil)
	for round := range 50 {
		requests := make([]Request, 200)
		for i := range requests {
			requests[i] = request(fmt.Sprint(round, "-", i), fmt.Sprintf("c%d-%d", round, i))
		}
		ruling, err := m.Decide(t.Context(), requests)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = m.Finish(t.Context(), leasesOf(ruling.Decisions[:1]))
		m.Follow(requests[:1])
		clock.advance(time.Minute)
	}
	if n := len(m.records) + len(m.inForce.meters); n > 2*minSweep {
		t.Errorf("%d records and %d meters are kept of 200 a minute", len(m.records), len(m.inForce.meters))
	}
	if n := len(m.calls); n > 2 {
		t.Errorf("%d calls are kept of one a minute", n)
	}
}

func TestMemoryDeniedPathsLeaveNothing(t *testing.T) {
	t.Parallel()
	m := NewMemory(Settings{Tree: newTree(t, "1/1h", "10/1h", ""), Lease: time.Second, Retention: time.Minute}, newFakeClock(nil).read, nil)
	for i := range 5000 {
		if _, err := m.Decide(t.Context(), []Request{request(fmt.Sprint("e", i), fmt.Sprint("c", i))}); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.records) != 1 || len(m.inForce.meters) != 2 {
		t.Errorf("%d records and %d meters are kept of one admission", len(m.records), len(m.inForce.meters))
	}
}

func TestMemoryFollow(t *testing.T) {
	t.Parallel()
	clock := newFakeClock(nil)
	tree := newTree(t, "10/1h", "5/1h", "")
	m := NewMemory(Settings{Tree: tree, Lease: time.Second, Retention: time.Minute}, clock.read, nil)
	used := func(want int64) {
		t.Helper()
		if got := m.Usage(tree.Path("a")); got[0][0] != want || got[1][0] != want {
			t.Errorf("slots taken: %v, want %d", got, want)
		}
	}
	at := m.Follow([]Request{request("1", "a"), request("2", "a").withCost(3)})
	if !at.Equal(start) {
		t.Errorf("followed at %v, want %v", at, start)
	}
	used(4)
	clock.advance(time.Second)
	ruling, err := m.Decide(t.Context(), several(2, "e", "a"))
	if err != nil || ruling.Decisions[0].Verdict != Admitted || ruling.Decisions[1].Verdict != Denied {
		t.Fatalf("%+v, %v", ruling, err)
	}
	m.Unfollow(Lease{Request: request("2", "a").withCost(3)}, at)
	used(2)
	m.Unfollow(Lease{Request: request("3", "a").withCost(100)}, at)
	used(1)
	clock.advance(time.Hour)
	used(0)
}

func TestMemoryShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		count, instances int
		admitted         int
	}{{10, 1, 10}, {10, 0, 10}, {10, -1, 10}, {10, 3, 3}, {10, 10, 1}, {10, 11, 1}, {1, 5, 1}, {0, 5, 0}, {0, 1, 0}} {
		tree := newTree(t, fmt.Sprintf("%d/1h", c.count), "none", "")
		m := NewMemory(Settings{Tree: tree, Lease: time.Second, Retention: time.Minute}, newFakeClock(nil).read, func() int { return c.instances })
		ruling, err := m.Decide(t.Context(), several(20, "e", "a"))
		if err != nil {
			t.Fatal(err)
		}
		admitted := 0
		for _, d := range ruling.Decisions {
			if d.Verdict == Admitted {
				admitted++
			}
		}
		if admitted != c.admitted {
			t.Errorf("%d of %d for %d instances: %d were admitted, want %d", c.count, c.count, c.instances, admitted, c.admitted)
		}
	}
}

// TestMemoryShareHoldsAnyEventThatFitsTheLimit shows that an event of several slots is not denied for ever by a small share.
func TestMemoryShareHoldsAnyEventThatFitsTheLimit(t *testing.T) {
	t.Parallel()
	m := NewMemory(Settings{Tree: newTree(t, "10/1h", "none", ""), Lease: time.Second, Retention: time.Minute},
		newFakeClock(nil).read, func() int { return 5 })
	ruling, err := m.Decide(t.Context(), []Request{
		request("1", "a").withCost(7), request("2", "a"), request("3", "a").withCost(7), request("4", "a").withCost(11),
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Verdict{Admitted, Denied, Denied, NeverFits} {
		if got := ruling.Decisions[i].Verdict; got != want {
			t.Errorf("event %d: verdict %d, want %d", i+1, got, want)
		}
	}
}

func TestMemoryConcurrently(t *testing.T) {
	t.Parallel()
	tree := newTree(t, "100/1h", "60/1h", "")
	m := NewMemory(Settings{Tree: tree, Lease: time.Hour, Retention: time.Hour}, time.Now, nil)
	var (
		mu       sync.Mutex
		admitted = make(map[string]int)
		work     sync.WaitGroup
	)
	for worker := range 8 {
		work.Go(func() {
			for i := range 50 {
				category := fmt.Sprint("c", i%3)
				ruling, err := m.Decide(t.Context(), []Request{request(fmt.Sprint(worker, "-", i), category)})
				if err != nil {
					t.Error(err)
				}
				if ruling.Decisions[0].Verdict == Admitted {
					mu.Lock()
					admitted[category]++
					mu.Unlock()
				}
				m.Usage(tree.Path(category))
			}
		})
	}
	work.Wait()
	total := 0
	for category, n := range admitted {
		if total += n; n > 60 {
			t.Errorf("%d admitted in %s", n, category)
		}
	}
	if total != 100 {
		t.Errorf("%d admitted in all, want 100", total)
	}
}
