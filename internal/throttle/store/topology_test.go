package store

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// newWorkerClient returns a client as the worker's: with a master's name for Sentinel, else for Cluster. The pool is large, because a
// pool with more failed connections than its size leaves a goroutine for a second.
func newWorkerClient(t *testing.T, addresses []string, master string) redis.UniversalClient {
	t.Helper()
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: addresses, MasterName: master, IsClusterMode: master == "", PoolSize: 1000,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, ContextTimeoutEnabled: true,
		MaxRetries: 2, MinRetryBackoff: 8 * time.Millisecond, MaxRetryBackoff: 128 * time.Millisecond, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// crowd has workers that decide their own events, and repeat a call until Redis answers, as redeliveries do. It records the answers.
type crowd struct {
	t        *testing.T
	settings Settings
	refunds  bool // workers return some events

	leave func() // ends the workers after their last answer
	stop  chan struct{}
	work  sync.WaitGroup

	mu          sync.Mutex
	admissions  map[string][]observed // not returned, by ID
	untimed     map[string]bool       // IDs of events admitted by a call whose reply was lost
	finished    map[string]bool
	decided     int // events
	unavailable int // calls
}

// crowdLimits returns short limits, which admit events at all times, and the given limit for c.
func crowdLimits(t *testing.T, c string) (map[string]limits.Limits, *limits.Tree) {
	t.Helper()
	limits := map[string]limits.Limits{
		"": parseLimits(t, "80/200ms"), "c": parseLimits(t, c),
		"a": parseLimits(t, "30/150ms"), "b": parseLimits(t, "30/150ms"),
	}
	return limits, newTree(t, limits[""].String(), limits["a"].String(), "c="+c)
}

func newCrowd(t *testing.T, s Settings) *crowd {
	c := &crowd{
		t: t, settings: s, stop: make(chan struct{}),
		admissions: make(map[string][]observed), untimed: make(map[string]bool), finished: make(map[string]bool),
	}
	c.leave = sync.OnceFunc(func() {
		close(c.stop)
		c.work.Wait()
	})
	t.Cleanup(c.leave)
	return c
}

// joinBoth adds a worker with scripts and a worker with functions, and returns the store of the latter.
func (c *crowd) joinBoth(prefix string, addresses []string, master string) (store *Redis) {
	for _, way := range []script.Scripting{script.Eval, script.Functions} {
		client := newWorkerClient(c.t, addresses, master)
		o := script.Options{Client: client, Prefix: prefix, Timeout: time.Second, Scripting: way}
		store = NewRedis(script.NewRunner(o), c.settings)
		c.join(string(way), store)
	}
	return store
}

// join adds a worker with three goroutines.
func (c *crowd) join(name string, r *Redis) {
	for g := range 3 {
		c.work.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-c.stop:
					return
				default:
				}
				requests := make([]Request, 1+rand.IntN(3))
				for i := range requests {
					category := []string{"a", "b", "b.deep", "c"}[rand.IntN(4)]
					requests[i] = request(fmt.Sprint(name, "-", g, "-", n, "-", i), category).withCost(1 + rand.IntN(2))
				}
				c.decide(r, requests)
				time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond) // the pace of a worker
			}
		})
	}
}

// decide asks until each event has a verdict, and delivers admitted events.
func (c *crowd) decide(r *Redis, requests []Request) {
	deadline := time.Now().Add(patience)
	for len(requests) > 0 && !c.t.Failed() {
		if time.Now().After(deadline) {
			c.t.Errorf("%q and others have no verdict", requests[0].ID)
			return
		}
		var result BatchResult
		c.insist(func() (err error) { result, err = r.Decide(c.t.Context(), requests); return err })
		var leased []Request
		for i, d := range result.Decisions {
			switch d.Verdict {
			case Admitted, Reclaimed:
				c.admitted(d)
				c.deliver(r, d.Lease)
			case Denied:
			case Leased: // by an own call whose reply was lost
				leased = append(leased, requests[i])
				continue
			default:
				c.t.Errorf("%q: %+v", requests[i].ID, d)
			}
			c.note(func() { c.decided++ })
		}
		requests = leased
	}
}

func (c *crowd) admitted(d Decision) {
	c.note(func() {
		if d.Verdict == Reclaimed {
			c.untimed[d.Lease.Request.ID] = true
			return
		}
		// The time of the lease, not of the reply: the client may have repeated the call.
		at := d.Lease.End - c.settings.Lease.Microseconds()
		o := observed{id: d.Lease.Request.ID, category: d.Lease.Request.Category, at: at, cost: int64(d.Lease.Request.Cost)}
		c.admissions[o.id] = append(c.admissions[o.id], o)
	})
}

func (c *crowd) deliver(r *Redis, lease Lease) {
	switch fate := rand.IntN(3); {
	case fate == 0:
		c.insist(func() error { return finish(c.t.Context(), r, lease) })
		c.note(func() { c.finished[lease.Request.ID] = true })
	case fate == 1 && c.refunds:
		var returned []bool
		c.insist(func() (err error) { returned, err = r.Refund(c.t.Context(), []Lease{lease}); return err })
		if len(returned) != 1 || !returned[0] {
			c.t.Errorf("%q is not returned", lease.Request.ID)
		}
		c.note(func() { delete(c.admissions, lease.Request.ID) })
	default: // left to lapse
	}
}

// insist repeats a call until Redis answers. The only permitted error is an unavailable Redis.
func (c *crowd) insist(call func() error) {
	deadline := time.Now().Add(patience)
	for {
		err := call()
		switch {
		case err == nil, c.t.Failed():
			return
		case !errors.Is(err, script.ErrUnavailable) || errors.Is(err, script.ErrRefused):
			c.t.Errorf("error %v, want none but %v", err, script.ErrUnavailable)
			return
		case time.Now().After(deadline):
			c.t.Errorf("no answer for %v, last error: %v", patience, err)
			return
		}
		c.note(func() { c.unavailable++ })
		time.Sleep(time.Duration(5+rand.IntN(10)) * time.Millisecond) // the pace at which a worker tries again
	}
}

func (c *crowd) note(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what()
}

// until waits for a condition, which runs under the lock.
func (c *crowd) until(what string, condition func() bool) {
	c.t.Helper()
	testkit.Eventually(c.t, what, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return condition()
	})
}

// more returns a condition: n more events are decided.
func (c *crowd) more(n int) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.decided
	return func() bool { return c.decided >= before+n }
}

// taken returns the slots of a category that were taken and not returned. The caller holds the lock.
func (c *crowd) taken(category string) int64 {
	slots := int64(0)
	for _, o := range c.all() {
		if o.category == category {
			slots += o.cost
		}
	}
	return slots
}

// all returns the admissions with known times. The caller holds the lock.
func (c *crowd) all() []observed { return slices.Concat(slices.Collect(maps.Values(c.admissions))...) }

// TestClusterReshard moves the slot of a deployment between nodes, key by key, while workers decide, finish and refund events.
func TestClusterReshard(t *testing.T) {
	t.Parallel()
	cluster := servertest.StartCluster(t, 3)
	limits, tree := crowdLimits(t, "40/1h")
	workers := newCrowd(t, Settings{Tree: tree, Lease: testLease, Retention: testRetention})
	workers.refunds = true
	store := workers.joinBoth("reshard", cluster.Addrs(), "")
	workers.until("the first events", workers.more(50))

	slot := cluster.Slot("{reshard}")
	goOn := func(when string) {
		t.Helper()
		calls := func() int { return workers.decided + workers.unavailable }
		workers.mu.Lock()
		before := calls()
		workers.mu.Unlock()
		workers.until("calls "+when, func() bool { return calls() >= before+2 })
	}
	for round := range 3 {
		to := cluster.Nodes[(slices.Index(cluster.Nodes, cluster.Owner(slot))+1)%len(cluster.Nodes)]
		move := cluster.MoveSlot(slot, to)
		goOn("while no key has moved")
		for move.Keys(1 + round) {
			goOn("while some keys have moved")
		}
		goOn("while all keys have moved")
		move.End()
		workers.until("decisions at the new node", workers.more(50))
		// A pause has its own key. With all keys present the node answers until the first key moves.
		pause(t, store, "#here", time.Hour)
	}
	workers.leave()

	testkit.Equal(t, len(workers.untimed), 0, "events admitted by calls that failed")
	testkit.NoError(t, checkWindows(workers.all(), limits))
	used, err := store.Readings.Usage(t.Context(), tree.Path("c"))
	if want := workers.taken("c"); err != nil || used[1][0] != want || want == 0 {
		t.Errorf("%v slots are taken, %d were kept, %v", used, want, err)
	}
	workers.wantKnown(store)
}

// wantKnown decides each event again. Each was admitted once, and is leased or done.
func (c *crowd) wantKnown(store *Redis) {
	c.t.Helper()
	for id, admissions := range c.admissions {
		if len(admissions) != 1 {
			c.t.Errorf("%q was admitted %d times", id, len(admissions))
			continue
		}
		want := Leased
		if c.finished[id] {
			want = Done
		}
		a := admissions[0]
		d := decisionsOf(c.t, store, request(id, a.category).withCost(int(a.cost)))[0]
		testkit.Equal(c.t, d.Verdict, want, "verdict of %q, asked for again", id)
	}
}

// TestClusterReshardWithEveryKey decides events on a node whose slot is migrating and whose keys all exist, while the script empties a
// log. The call must do all or nothing.
func TestClusterReshardWithEveryKey(t *testing.T) {
	t.Parallel()
	cluster, slot, _, other := scripttest.StartPair(t, "{limiter}:")
	// The sliding counter, the shadow, live overrides and a pause have their own keys.
	tree := newTree(t, "100/1h+counter:100/1h", "5/20ms", "")
	settings := Settings{Tree: tree, Shadow: tree, Lease: testLease, Retention: testRetention}
	store := newRedis(newWorkerClient(t, cluster.Addrs(), ""), "limiter", settings)
	store.Adopt(limits.Ruleset{Tree: tree, Shadow: tree, Position: limits.Position{Generation: 1, Revision: 1}})
	testkit.NoError(t, finish(t.Context(), store, wantAdmitted(t, store, several(2, "old", "a")...)[0]))
	pause(t, store, "#here", time.Hour)
	wantUsed := func(want ...[]int64) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%v slots to be taken", want), func() bool {
			used, err := store.Readings.Usage(t.Context(), tree.Path("a"))
			return err == nil && reflect.DeepEqual(used, want)
		})
	}
	wantUsed([]int64{2, 2}, []int64{0})

	move := cluster.MoveSlot(slot, other)
	_, err := store.Decide(t.Context(), several(3, "new", "a"))
	if err != nil && (!errors.Is(err, script.ErrUnavailable) || errors.Is(err, script.ErrRefused)) {
		t.Errorf("error %v, want none but %v", err, script.ErrUnavailable)
	}
	scripttest.MoveKeys(move).End()
	testkit.Must(store.Decide(t.Context(), several(3, "new", "a")))(t)
	wantUsed([]int64{5, 5}, []int64{0})
}

// TestSentinelFailover kills the primary under load. Only admissions missing on the promoted replica are lost: each limit is exceeded at
// most once more by its own count.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]bool{"replicas keep up": false, "replicas are cut off before": true}, func(t *testing.T, cut bool) {
		testFailover(t, cut)
	})
}

func testFailover(t *testing.T, cut bool) {
	t.Helper()
	sentinel := servertest.StartSentinel(t)
	limits, tree := crowdLimits(t, "100/1h")
	workers := newCrowd(t, Settings{Tree: tree, Lease: 300 * time.Millisecond, Retention: testRetention})
	store := workers.joinBoth("failover", sentinel.Addrs, servertest.SentinelMaster)

	workers.until("part of the long limit to be taken", func() bool { return workers.taken("c") >= 50 })
	workers.mu.Lock()
	safelyFinished, safe := maps.Clone(workers.finished), make(map[string]bool)
	for _, o := range workers.all() {
		safe[o.id] = true
	}
	workers.mu.Unlock()
	sentinel.AwaitReplicas()
	if cut {
		sentinel.CutReplicas()
	}
	workers.until("the long limit to be full", func() bool { return workers.taken("c") >= 99 })
	workers.until("more events", workers.more(50))
	workers.mu.Lock()
	finishedByOld := maps.Clone(workers.finished)
	workers.mu.Unlock()
	old := sentinel.KillPrimary()
	killed := time.Now().UnixMicro()
	workers.until("the primary to be missed", func() bool { return workers.unavailable > 0 })
	sentinel.AwaitFailover(old)
	workers.until("decisions of the new primary", workers.more(50))
	workers.leave()
	if n := sentinel.Failovers(); n != 1 {
		t.Fatalf("got %d failovers, want 1", n)
	}

	testkit.Eventually(t, "the short limits are free", func() bool {
		return testkit.Must(store.Readings.Usage(t.Context(), tree.Path("")))(t)[0][0] == 0
	})
	before := workers.all()
	remembered, after, forgotten := workers.askAgain(store, failover{safe: safe, safelyFinished: safelyFinished, finishedByOld: finishedByOld, killed: killed})
	if cut && (forgotten < 30 || len(after) < 10) {
		t.Errorf("only %d events were forgotten and %d admitted again: that says nothing about a loss", forgotten, len(after))
	}
	wantOneLoss(t, limits, before, remembered, after, killed)
}

// failover holds what was known before the primary was killed, by event ID.
type failover struct {
	safe, safelyFinished, finishedByOld map[string]bool
	killed                              int64
}

// askAgain decides all events again, as if no message were acknowledged, and returns what the new primary remembers.
func (c *crowd) askAgain(store *Redis, f failover) (remembered, after []observed, forgotten int) {
	c.t.Helper()
	for _, o := range c.all() {
		var result BatchResult
		c.insist(func() (err error) {
			result, err = store.Decide(c.t.Context(), []Request{request(o.id, o.category).withCost(int(o.cost))})
			return err
		})
		switch verdict := result.Decisions[0].Verdict; {
		case f.safelyFinished[o.id] && verdict != Done:
			c.t.Errorf("%q was delivered and known to the replicas: verdict %d", o.id, verdict)
		case verdict == Done && o.at <= f.killed && !f.safe[o.id] && !f.finishedByOld[o.id]:
			// The new primary may know the delivery without the slot.
		case verdict == Reclaimed || verdict == Leased || verdict == Done:
			remembered = append(remembered, o)
		case f.safe[o.id] || o.at > f.killed:
			c.t.Errorf("%q was admitted by who takes over, or known to it: verdict %d", o.id, verdict)
		case verdict == Admitted:
			after = append(after, observed{id: o.id, category: o.category, at: result.At, cost: o.cost})
			fallthrough
		default:
			forgotten++
		}
	}
	return remembered, after, forgotten
}

// wantOneLoss checks the limits for each primary alone, and twice the limits for both together.
func wantOneLoss(t *testing.T, byPath map[string]limits.Limits, before, remembered, after []observed, killed int64) {
	t.Helper()
	byOld := slices.DeleteFunc(slices.Clone(before), func(o observed) bool { return o.at > killed })
	if err := checkWindows(byOld, byPath); err != nil {
		t.Errorf("before the failover: %v", err)
	}
	known := slices.Concat(remembered, after)
	if err := checkWindows(known, byPath); err != nil {
		t.Errorf("what the new primary knows: %v", err)
	}
	for path, all := range byPath {
		doubled := slices.Clone(all)
		for i := range doubled {
			doubled[i].Count *= 2
		}
		byPath[path] = doubled
	}
	if err := checkWindows(slices.Concat(before, after), byPath); err != nil {
		t.Errorf("more than one limit was lost: %v", err)
	}
}
