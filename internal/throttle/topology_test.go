package throttle

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
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// newWorkerClient makes a client as the notifier's worker does, for Sentinel if there is the name of a master, else for
// Cluster. A pool that fails to connect more often than it is large leaves a goroutine for a second: it is larger here.
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

// crowd is several workers that ask for events of their own, again and again while there is no answer, as JetStream's
// redeliveries make them do. It keeps what they were told.
type crowd struct {
	t        *testing.T
	settings Settings
	refunds  bool // some of the events are returned

	leave func() // returns when everybody has an answer to what was asked
	stop  chan struct{}
	work  sync.WaitGroup

	mu          sync.Mutex
	changed     chan struct{}         // closed and replaced when there is more to see
	admissions  map[string][]observed // what is not returned, by ID
	untimed     map[string]bool       // IDs that were admitted by a call whose answer was lost
	finished    map[string]bool
	decided     int // events
	unavailable int // calls
}

// crowdLimits are such that events go on to be admitted at all times, and remain in the one of c.
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
		t: t, settings: s, stop: make(chan struct{}), changed: make(chan struct{}),
		admissions: make(map[string][]observed), untimed: make(map[string]bool), finished: make(map[string]bool),
	}
	c.leave = sync.OnceFunc(func() {
		close(c.stop)
		c.work.Wait()
	})
	t.Cleanup(c.leave)
	return c
}

// join lets a store's worker in, for so many goroutines.
func (c *crowd) join(name string, r *Redis, goroutines int) {
	for g := range goroutines {
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

// decide asks until every event has a verdict, and delivers those that are to be.
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
			case Leased: // by a call of ours whose answer was lost
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
			c.untimed[d.Lease.ID] = true
			return
		}
		// A call that the client repeated may have been answered later than it was decided.
		at := d.Lease.End - c.settings.Lease.Microseconds()
		o := observed{id: d.Lease.ID, category: d.Lease.Category, at: at, cost: int64(d.Lease.Cost), denied: "-"}
		c.admissions[o.id] = append(c.admissions[o.id], o)
	})
}

func (c *crowd) deliver(r *Redis, lease Lease) {
	switch fate := rand.IntN(3); {
	case fate == 0:
		c.insist(func() error { return finish(c.t.Context(), r, lease) })
		c.note(func() { c.finished[lease.ID] = true })
	case fate == 1 && c.refunds:
		var returned []bool
		c.insist(func() (err error) { returned, err = r.Refund(c.t.Context(), []Lease{lease}); return err })
		if len(returned) != 1 || !returned[0] {
			c.t.Errorf("%q is not returned", lease.ID)
		}
		c.note(func() { delete(c.admissions, lease.ID) })
	default: // left to lapse
	}
}

// insist makes a call until there is an answer. Only Redis being unavailable may be in the way.
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
	close(c.changed)
	c.changed = make(chan struct{})
}

// until waits for what the crowd has been told. The condition is read under the lock.
func (c *crowd) until(what string, condition func() bool) {
	c.t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		met, changed := condition(), c.changed
		c.mu.Unlock()
		if met {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			c.t.Fatalf("wait for %s: nothing after %v", what, patience)
		}
	}
}

// more is a condition: so many events were decided since it was made.
func (c *crowd) more(n int) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.decided
	return func() bool { return c.decided >= before+n }
}

// taken is how many slots of a category were ever taken. The caller holds the lock.
func (c *crowd) taken(category string) int64 {
	slots := int64(0)
	for _, o := range c.all() {
		if o.category == category {
			slots += o.cost
		}
	}
	return slots
}

// all lists the admissions whose time is known. The caller holds the lock.
func (c *crowd) all() []observed { return slices.Concat(slices.Collect(maps.Values(c.admissions))...) }

// TestClusterReshard moves the slot of a deployment from node to node, key by key, while events are decided, finished and
// returned.
func TestClusterReshard(t *testing.T) {
	t.Parallel()
	cluster := servertest.StartCluster(t, 3)
	limits, tree := crowdLimits(t, "40/1h")
	workers := newCrowd(t, Settings{Tree: tree, Lease: testLease, Retention: testRetention})
	workers.refunds = true
	var store *Redis
	for _, scripting := range []script.Scripting{script.Eval, script.Functions} {
		client := newWorkerClient(t, cluster.Addrs(), "")
		o := script.Options{Client: client, Prefix: "reshard", Timeout: time.Second, Scripting: scripting}
		store = NewRedis(script.NewRunner(o), workers.settings)
		workers.join(string(scripting), store, 3)
	}
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
		// A destination that rests has a key of its own. With it the node can go on until the first key moves.
		pause(t, store, "#here", time.Hour)
	}
	workers.leave()

	if len(workers.untimed) > 0 {
		t.Errorf("%d events were admitted by calls that failed", len(workers.untimed))
	}
	if err := checkWindows(workers.all(), limits); err != nil {
		t.Error(err)
	}
	used, err := store.Usage(t.Context(), tree.Path("c"))
	if want := workers.taken("c"); err != nil || used[1][0] != want || want == 0 {
		t.Errorf("%v slots are taken, %d were kept, %v", used, want, err)
	}
	workers.wantKnown(store)
}

// wantKnown asks for every event again: each was admitted once, and is known to be leased or done.
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
		result, err := store.Decide(c.t.Context(), []Request{request(id, a.category).withCost(int(a.cost))})
		if err != nil || result.Decisions[0].Verdict != want {
			c.t.Errorf("%q is asked for again: %+v, %v", id, result.Decisions, err)
		}
	}
}

// TestClusterReshardWithEveryKey asks a node that is about to give its slot away, and still has every key that there can
// be, for what has the script empty a log on its way. Nothing may be done by halves.
func TestClusterReshardWithEveryKey(t *testing.T) {
	t.Parallel()
	cluster, slot, _, other := startPair(t)
	// The sliding counter, the shadow, live overrides and a destination that rests each have keys of their own.
	tree := newTree(t, "100/1h+counter:100/1h", "5/20ms", "")
	settings := Settings{Tree: tree, Shadow: tree, Lease: testLease, Retention: testRetention}
	store := newRedis(newWorkerClient(t, cluster.Addrs(), ""), "limiter", settings)
	store.Adopt(limits.Ruleset{Tree: tree, Shadow: tree, Position: limits.Position{Generation: 1, Revision: 1}})
	result := testkit.Must(store.Decide(t.Context(), several(2, "old", "a")))(t)
	testkit.NoError(t, finish(t.Context(), store, result.Decisions[0].Lease))
	pause(t, store, "#here", time.Hour)
	wantUsed := func(want ...[]int64) {
		t.Helper()
		poll(t, fmt.Sprintf("%v slots to be taken", want), func() bool {
			used, err := store.Usage(t.Context(), tree.Path("a"))
			return err == nil && reflect.DeepEqual(used, want)
		})
	}
	wantUsed([]int64{2, 2}, []int64{0})

	move := cluster.MoveSlot(slot, other)
	_, err := store.Decide(t.Context(), several(3, "new", "a"))
	if err != nil && (!errors.Is(err, script.ErrUnavailable) || errors.Is(err, script.ErrRefused)) {
		t.Errorf("error %v, want none but %v", err, script.ErrUnavailable)
	}
	moveKeys(move).End()
	testkit.Must(store.Decide(t.Context(), several(3, "new", "a")))(t)
	wantUsed([]int64{5, 5}, []int64{0})
}

// TestSentinelFailover kills the primary under load. What had not reached the replica that takes over is forgotten, and
// nothing else: each limit may be taken once more for it, and no more.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]bool{"replicas keep up": false, "replicas are cut off before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFailover(t, cut)
		})
	}
}

func testFailover(t *testing.T, cut bool) {
	t.Helper()
	sentinel := servertest.StartSentinel(t)
	limits, tree := crowdLimits(t, "100/1h")
	workers := newCrowd(t, Settings{Tree: tree, Lease: 300 * time.Millisecond, Retention: testRetention})
	var store *Redis
	for _, scripting := range []script.Scripting{script.Eval, script.Functions} {
		client := newWorkerClient(t, sentinel.Addrs, servertest.SentinelMaster)
		o := script.Options{Client: client, Prefix: "failover", Timeout: time.Second, Scripting: scripting}
		store = NewRedis(script.NewRunner(o), workers.settings)
		workers.join(string(scripting), store, 3)
	}

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
		t.Fatalf("there were %d failovers, the test is about one", n)
	}

	testkit.Eventually(t, "the short limits are free", func() bool {
		return testkit.Must(store.Usage(t.Context(), tree.Path("")))(t)[0][0] == 0
	})
	before := workers.all()
	remembered, after, forgotten := workers.askAgain(store, failover{safe: safe, safelyFinished: safelyFinished, finishedByOld: finishedByOld, killed: killed})
	if cut && (forgotten < 30 || len(after) < 10) {
		t.Errorf("only %d events were forgotten and %d admitted again: that says nothing about a loss", forgotten, len(after))
	}
	wantOneLoss(t, limits, before, remembered, after, killed)
}

// failover is what was known before the primary was killed, by the IDs of events.
type failover struct {
	safe, safelyFinished, finishedByOld map[string]bool
	killed                              int64
}

// askAgain delivers everything once more, as if nothing had been acknowledged: the new primary shows what it remembers.
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
			// Who took over may have been told of the delivery alone: whether it knows the slot does not show.
		case verdict == Reclaimed || verdict == Leased || verdict == Done:
			remembered = append(remembered, o)
		case f.safe[o.id] || o.at > f.killed:
			c.t.Errorf("%q was admitted by who takes over, or known to it: verdict %d", o.id, verdict)
		case verdict == Admitted:
			after = append(after, observed{id: o.id, category: o.category, at: result.At, cost: o.cost, denied: "-"})
			fallthrough
		default:
			forgotten++
		}
	}
	return remembered, after, forgotten
}

// wantOneLoss shows that no limit was exceeded by what one primary knows, and by both together no more than twice.
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
