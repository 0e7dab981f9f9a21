package store

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
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

// newWorkers returns two workers: one with functions, if the server has them, and else both with scripts.
func newWorkers(t *testing.T, addresses []string, master, limit string) []*Redis {
	t.Helper()
	settings := Settings{Tree: newTree(t, limit, "none", ""), Lease: time.Hour, Retention: testRetention}
	ways := scripttest.Ways(t)
	var workers []*Redis
	for i := range 2 {
		o := script.Options{Client: newWorkerClient(t, addresses, master), Prefix: "workers", Timeout: time.Second, Scripting: ways[i%len(ways)]}
		workers = append(workers, NewRedis(script.NewRunner(o), settings))
	}
	return workers
}

// answered reports whether Redis answered a call. The only permitted error is an unavailable Redis.
func answered(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && (!errors.Is(err, script.ErrUnavailable) || errors.Is(err, script.ErrRefused)) {
		t.Fatalf("error %v, want none but %v", err, script.ErrUnavailable)
	}
	return err == nil
}

// TestClusterAsksTheOwner has a node without keys refuse to return the time, as a node that hangs would.
func TestClusterAsksTheOwner(t *testing.T) {
	t.Parallel()
	cluster, _, _, other := scripttest.StartPair(t, "{workers}")
	other.CLI("ACL", "SETUSER", "default", "-time")
	for _, worker := range newWorkers(t, cluster.Addrs(), "", "10/1h") {
		for range 20 {
			testkit.Must(worker.Queues.Plans(t.Context(), several(1, "e", "a")))(t)
			testkit.Must(worker.Queues.Stays(t.Context(), "a"))(t)
		}
	}
}

// TestClusterReshard moves the slot of a deployment between nodes, key by key. At each step the workers decide events, finish one and return
// one. The next step repeats what Redis did not answer.
func TestClusterReshard(t *testing.T) {
	t.Parallel()
	cluster := servertest.StartCluster(t, 3)
	workers := newWorkers(t, cluster.Addrs(), "", "100000/1h")
	const perStep = 3
	var (
		undecided, all       []Request
		finishing, returning []Lease
	)
	goOn := func() {
		t.Helper()
		worker, events := workers[len(all)/perStep%len(workers)], several(perStep, fmt.Sprint("e", len(all), "-"), "a")
		all, undecided = append(all, events...), append(undecided, events...)
		result, err := worker.Decide(t.Context(), undecided)
		if answered(t, err) {
			for i, d := range result.Decisions {
				testkit.Equal(t, d.Verdict, Admitted, "verdict of %s", undecided[i].ID)
			}
			finishing, returning = append(finishing, result.Decisions[0].Lease), append(returning, result.Decisions[1].Lease)
			undecided = nil
		}
		if answered(t, finish(t.Context(), worker, finishing...)) {
			finishing = nil
		}
		returned, err := worker.Refund(t.Context(), returning)
		if answered(t, err) {
			testkit.Equal(t, slices.Contains(returned, false), false, "an event is not returned")
			returning = nil
		}
	}
	goOn()
	slot := cluster.Slot("{workers}")
	for round := range 3 {
		to := cluster.Nodes[(slices.Index(cluster.Nodes, cluster.Owner(slot))+1)%len(cluster.Nodes)]
		move := cluster.MoveSlot(slot, to)
		goOn()
		for move.Keys(1 + round) {
			goOn()
		}
		move.End()
		testkit.Eventually(t, "the new node has answered all calls", func() bool {
			goOn()
			return len(undecided)+len(finishing)+len(returning) == 0
		})
		pause(t, workers[1], "#here", time.Hour) // with another key, the node answers until its first key has moved
	}
	used := testkit.Must(workers[0].usedSlots(t.Context(), workers[0].d.settings.Tree.Path("a")))(t)
	kinds := make(map[Verdict]int)
	for _, d := range decisionsOf(t, workers[0], all...) {
		kinds[d.Verdict]++
	}
	// Each answered batch has one finished and one returned event.
	testkit.Equal(t, used[0][0], int64(len(all)-kinds[Admitted]), "slots taken before the returned events were asked for again")
	testkit.EqualMaps(t, kinds, map[Verdict]int{Admitted: kinds[Done], Done: kinds[Done], Leased: len(all) - 2*kinds[Done]}, "verdicts, asked for again")
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
			used, err := store.usedSlots(t.Context(), tree.Path("a"))
			return err == nil && reflect.DeepEqual(used, want)
		})
	}
	wantUsed([]int64{2, 2}, []int64{0})

	move := cluster.MoveSlot(slot, other)
	_, err := store.Decide(t.Context(), several(3, "new", "a"))
	answered(t, err)
	scripttest.MoveKeys(move).End()
	testkit.Must(store.Decide(t.Context(), several(3, "new", "a")))(t)
	wantUsed([]int64{5, 5}, []int64{0})
}

// TestSentinelFailover kills the primary. Only the admissions that the promoted replica lacks are lost: the limit is exceeded by their number.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]bool{"replicas keep up": false, "replicas are cut off before": true}, func(t *testing.T, cut bool) {
		sentinel := servertest.StartSentinel(t)
		workers := newWorkers(t, sentinel.Addrs, servertest.SentinelMaster, "100/1h")
		early, late := several(40, "early", "a"), several(60, "late", "a")
		deliver := func(worker *Redis, events []Request) {
			t.Helper()
			testkit.NoError(t, finish(t.Context(), worker, wantAdmitted(t, worker, events...)[0]))
		}
		deliver(workers[0], early)
		sentinel.AwaitReplicas()
		if cut {
			sentinel.CutReplicas()
		}
		deliver(workers[1], late)
		wantVerdicts(t, decisionsOf(t, workers[0], request("more", "a")), Denied)
		if !cut {
			sentinel.AwaitReplicas()
		}
		sentinel.AwaitFailover(sentinel.KillPrimary())
		for worker, events := range [][]Request{early, late} {
			var result BatchResult
			testkit.Eventually(t, "the new primary answers", func() bool {
				var err error
				result, err = workers[worker].Decide(t.Context(), events)
				return answered(t, err)
			})
			for i, d := range result.Decisions {
				want := Leased
				if i == 0 {
					want = Done
				}
				if cut && worker == 1 {
					want = Admitted // its admission is lost
				}
				testkit.Equal(t, d.Verdict, want, "verdict of %s, asked for again", events[i].ID)
			}
		}
		wantVerdicts(t, decisionsOf(t, workers[0], request("more", "a")), Denied)
		testkit.Equal(t, sentinel.Failovers(), 1, "failovers")
	})
}
