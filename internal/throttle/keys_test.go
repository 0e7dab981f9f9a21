package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// ofKey returns the same event with the key of a limit of each key.
func ofKey(key string, r store.Request) store.Request {
	r.Key = key
	return r
}

// TestLimiterFullForAKey denies only the events of a full key without asking Redis.
func TestLimiterFullForAKey(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "3/1h", "a@key=1/1h")}, DenyCacheTTL: time.Hour})
	limiter.one(store.Admitted, ofKey("x", request("1", "a")))
	limiter.one(store.Denied, ofKey("x", request("2", "a")))
	limiter.wantFull("a", "")
	limiter.wantFullFor("a", "x", "a@key")
	limiter.wantFullFor("a", "y", "")
	testkit.Equal(t, limiter.Full("a", "x").Key, limits.HashOfKey("x"), "key of the denial")
	limiter.one(store.Admitted, ofKey("y", request("3", "a")))
	limiter.one(store.Admitted, request("4", "a"))
	limiter.one(store.Denied, ofKey("z", request("5", "a")))
	limiter.wantFullFor("a", "x", limits.LevelCategory)
	limiter.wantFullFor("a", "new", limits.LevelCategory)
	limiter.wantFull("a", limits.LevelCategory)
	limiter.metrics.wantDecisions(t, map[string]int{"admitted by redis": 3, "denied by redis": 2, "denied by cache": 5})
	limiter.full.logDue(time.Now())
	testkit.Equal(t, limiter.logs.Count(`"limit_level":"a@key"`), 0, "lines about the limits of keys")
	testkit.Equal(t, limiter.Usage().LimitOf("a.b", "a@key"), "1/1h", "limit of the rule")
	testkit.Equal(t, limiter.Usage().LimitOf("b", "a@key"), "", "limit of the rule for another category")
}

// TestDenyCacheIsBounded invents categories and then keys. Each entry is learned, and entries of keys evict no entry of a path.
func TestDenyCacheIsBounded(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	cache := newDenyCache(time.Minute, clock.Read)
	routes := newRoutes(newTree(t, "none", "1/1h", "a@key=1/1h"))
	learn := func(category, key string, node limits.Node) {
		t.Helper()
		cache.learn(clock.Read(), routes.Route(category, key), denied(node, node.Limits[0], time.Hour), 1)
		testkit.Require(t, cache.find(routes.Route(category, key)) != nil && cache.find(routes.Route("a", "")) == nil,
			"%s, %q was not learned, or was learned for all keys", category, key)
	}
	for i := range 2 * maxFull {
		category := fmt.Sprint("b", i)
		learn(category, "", routes.Path(category)[0])
	}
	testkit.Equal(t, cache.full.Len(), maxFull, "entries of paths")
	for i := range 2 * maxFull {
		key := fmt.Sprint("k", i)
		learn("a", key, routes.PathOfKey("a", limits.HashOfKey(key))[1])
	}
	testkit.Equal(t, cache.keys.Len(), maxFull, "entries of keys")
	testkit.Equal(t, cache.full.Len(), maxFull, "entries of paths beside those of keys")
	cache.clear()
	testkit.Equal(t, cache.isEmpty(), true, "the cache is empty")
}

// TestLimiterCountsKeysWithoutRedis has the instance count the keys that Redis admitted, and restores in Redis the keys that it admitted itself.
func TestLimiterCountsKeysWithoutRedis(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{
		Settings: store.Settings{Tree: newTree(t, "100/1h", "none", "a@key=1/1h")}, Policy: Local, Grace: time.Nanosecond,
	})
	limiter.one(store.Admitted, ofKey("x", request("1", "a")))
	limiter.loseAndAct()
	limiter.one(store.Denied, ofKey("x", request("2", "a")))
	limiter.one(store.Admitted, ofKey("y", request("3", "a")))
	limiter.one(store.Denied, ofKey("y", request("4", "a")))
	limiter.one(store.Admitted, ofKey("z", request("5", "a"))).Refund(t.Context())
	limiter.one(store.Admitted, request("6", "a"))
	limiter.regain()
	for key, slots := range map[string]int{"x": 1, "y": 1, "z": 0} {
		testkit.Equal(t, len(scores(t, limiter.server, "{limiter}:log:a@"+limits.HashOfKey(key))), slots, "slots of the key %s in Redis", key)
	}
	limiter.one(store.Denied, ofKey("y", request("7", "a")))
	limiter.one(store.Admitted, ofKey("z", request("8", "a")))
}
