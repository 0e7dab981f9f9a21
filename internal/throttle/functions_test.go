package throttle

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestLimiterWithoutRightsOfFunctions asks as a user who may not load functions. The failure policy does not act.
func TestLimiterWithoutRightsOfFunctions(t *testing.T) {
	t.Parallel()
	if !servertest.HasFunctions(t) {
		return // TestServerWithoutFunctions of the store has what such a server answers
	}
	options := optionsOf(scripttest.SetUser(t, servertest.StartRedis(t), "without", append(scripttest.Rights(), "fcall")), scripttest.UserPrefix)
	options.Scripting = script.Functions
	asked := countCommands(options.Client)
	redisStore := store.NewRedis(script.NewRunner(options), store.Settings{Tree: newTree(t, "6/1h", "5/1h", ""), Lease: testLease, Retention: testRetention})
	limiter := newLimiterKit(t, "", LimiterOptions{Redis: redisStore, Policy: Local, Grace: time.Nanosecond})
	limiter.run()
	testkit.Eventually(t, "the limiter to be refused three times", func() bool { return asked.Load() >= 6 })
	limiter.logs.Want(t, "redis refuses this worker")
	_, err := limiter.Decide(t.Context(), several(1, "e", "a"))
	for _, err := range []error{err, limiter.Ready()} {
		testkit.Fails(t, "error", err, script.ErrUnavailable, "lacks the right +function|load ")
	}
}

// TestFunctionsNeedTheOwnerAlone starts a limiter while a primary without keys of the deployment is down. The global limit is full: a
// limiter that did not ask the owner of the slot would admit its share again.
func TestFunctionsNeedTheOwnerAlone(t *testing.T) {
	t.Parallel()
	if !servertest.HasFunctions(t) {
		return // TestServerWithoutFunctions of the store has what such a server answers
	}
	cluster := servertest.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
	owner := cluster.Owner(cluster.Slot(limiterKey("")))
	settings := store.Settings{Tree: newTree(t, "20/1h", "none", ""), Lease: testLease, Retention: testRetention}
	newStore := func() *store.Redis {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Nodes[0].Addr}})
		t.Cleanup(func() { _ = client.Close() })
		return store.NewRedis(script.NewRunner(script.Options{Client: client, Prefix: "limiter", Timeout: 10 * time.Second, Scripting: script.Functions}), settings)
	}
	for _, d := range testkit.Must(newStore().Decide(t.Context(), several(20, "old", "a")))(t).Decisions {
		testkit.Equal(t, d.Verdict, store.Admitted, "verdict of an old event")
	}
	libraries := make(map[string]int)
	for _, node := range cluster.Nodes {
		libraries[node.Addr] = strings.Count(node.CLI("FUNCTION", "LIST"), "library_name")
	}
	// A new client does not know the owner: it may ask another node, and is redirected.
	if libraries[owner.Addr] != 1 || libraries[cluster.Nodes[0].Addr]+libraries[cluster.Nodes[1].Addr]+libraries[cluster.Nodes[2].Addr] == 3 {
		t.Errorf("the nodes have so many libraries: %v, want one at the owner %s, and not everywhere", libraries, owner.Addr)
	}
	dead := cluster.Nodes[(slices.Index(cluster.Nodes, owner)+1)%3]
	dead.Kill()

	limiter := newLimiterKit(t, "", LimiterOptions{Redis: newStore(), Policy: Local, Grace: time.Nanosecond, Settings: settings, Instances: func() int { return 2 }})
	limiter.start()
	limiter.want(map[store.Verdict]int{store.Denied: 20}, several(20, "new", "a")...)
	limiter.metrics.wantDecisions(t, map[string]int{"denied by redis": 20})
}
