package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// keyConformance has the cases of limits of each key.
var keyConformance = []conformanceCase{
	{name: "key: each key has slots of its own, below the slots of the path", global: "20/1h", category: "5/1h", rules: "a@key=1/1h", run: func(s *subject) {
		s.admit(request("1", "a").ofKey("x"), request("2", "a").ofKey("y"), request("3", "a"), request("4", "b").ofKey("x"))
		s.takenOfKey("a", "x", 4, 3, 1)
		s.takenOfKey("a", "y", 4, 3, 1)
		s.takenOfKey("b", "x", 4, 1)
		s.clock.Advance(time.Minute)
		want := Decision{
			Verdict: Denied, Limit: limits.Limit{Count: 1, Window: time.Hour}, Wait: 59 * time.Minute,
			Node: limits.Node{Path: "a", Key: limits.HashOfKey("x"), Level: "a@key", Limits: limits.Limits{{Count: 1, Window: time.Hour}}},
		}
		testkit.EqualDeeply(s.t, s.decide(request("5", "a").ofKey("x"))[0], want, "denied as")
		s.admit(request("6", "a"), request("7", "a").ofKey("z"))
		s.takenOfKey("a", "x", 6, 5, 1)
		s.deny(limits.LevelCategory, 59*time.Minute-time.Microsecond, request("8", "a").ofKey("w"))
		s.takenOfKey("a", "w", 6, 5, 0)
	}},
	{name: "key: the events below the path count with its keys", category: "9/1h", rules: "a@key=2/1h,a.b=9/1h,a.*@key=1/1h,a.c@key=none", run: func(s *subject) {
		s.admit(request("1", "a.b").ofKey("x"))
		s.clock.Advance(time.Second)
		s.deny("a.*@key", time.Hour-time.Second, request("2", "a.b").ofKey("x"))
		s.admit(request("3", "a.c").ofKey("x"))
		s.clock.Advance(time.Second)
		for _, category := range []string{"a", "a.b", "a.b.d", "a.c", "a.d"} {
			s.deny("a@key", time.Hour-2*time.Second, request("4", category).ofKey("x"))
		}
		s.takenOfKey("a.b", "x", 2, 2, 1, 1)
	}},
	{name: "key: a slot returns to its key, by every algorithm", rules: withEach("@key", "1/1h"), run: func(s *subject) {
		for _, a := range algorithm.All() {
			kind := a.String()
			lease := s.admit(request("1"+kind, kind).ofKey("x"))
			s.admit(request("2"+kind, kind).ofKey("y"))
			s.clock.Advance(time.Second)
			s.want(Denied, request("3"+kind, kind).ofKey("x"))
			s.refund(true, lease...)
			s.admit(request("4"+kind, kind).ofKey("x"))
			s.want(Denied, request("5"+kind, kind).ofKey("x"), request("6"+kind, kind).ofKey("y"))
		}
	}},
	{name: "key: counts stay where another rule limits the keys of a path", category: "9/1h", rules: "*@key=2/1h", run: func(s *subject) {
		lease := s.admit(request("1", "a").ofKey("x"))
		s.change(newPlan(s.t, "none", "9/1h", "a@key=1/1h,*@key=2/1h"))
		s.takenOfKey("a", "x", 1, 1)
		s.want(Denied, request("2", "a").ofKey("x"))
		s.change(newPlan(s.t, "none", "9/1h", ""))
		s.admit(request("3", "a").ofKey("x"))
		s.change(newPlan(s.t, "none", "9/1h", "a@key=1/1h"))
		s.takenOfKey("a", "x", 2, 1)
		s.refund(true, lease...)
		s.takenOfKey("a", "x", 1, 0)
	}},
	{name: "key: shadow limits of keys that have none", category: "9/1h", shadow: "a@key=1/1h", run: func(s *subject) {
		s.shadowed([]string{"", "", "", ""}, request("1", "a").ofKey("x"), request("2", "a").ofKey("y"), request("3", "a"), request("4", "b").ofKey("x"))
		s.clock.Advance(time.Second)
		s.shadowed([]string{"a@key", "", ""}, request("5", "a").ofKey("x"), request("6", "a"), request("7", "a").ofKey("z"))
		s.taken("a", 6)
	}},
}

// TestKeysInRedis checks that no Redis key shows an event's key or stays for ever.
func TestKeysInRedis(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	tree := newTree(t, "100/1h", "50/1h", "*@key=1/1h,a.b@key=token:5/1h")
	store := newRedis(client, "keys", Settings{Tree: tree, Shadow: newTree(t, "none", "none", "a@key=1/2h"), Lease: testLease, Retention: testRetention})
	s := subjectOf(t, store, Settings{Tree: tree})
	s.admit(request("1", "a.b").ofKey("secret-host"))
	d := s.want(Denied, request("2", "a.b").ofKey("secret-host"))[0]
	p := postponed(request("2", "a.b").ofKey("secret-host"))
	p.Node, p.Limit = d.Node, d.Limit
	verdict, _, err := store.Queues.Delay(t.Context(), p, 10)
	testkit.Require(t, err == nil && verdict == ComesBack, "delayed: verdict %d, %v", verdict, err)
	names := client.Keys(t.Context(), "*").Val()
	hashed := 0
	for _, name := range names {
		testkit.Lacks(t, "key in Redis", name, "secret")
		if strings.HasSuffix(name, "@"+limits.HashOfKey("secret-host")) {
			hashed++
		}
		if ttl := client.PTTL(t.Context(), name).Val(); ttl <= 0 && !strings.HasSuffix(name, ":limits") {
			t.Errorf("the Redis key %q stays for %v", name, ttl)
		}
	}
	testkit.Equal(t, hashed, 4, "Redis keys of the key: a log, a token bucket, a log of the shadow and a queue, of %q", names)
}

// TestKeysInUse counts the keys of each rule, without naming them. A user that may not SCAN sees the use of the reported paths, and learns
// which use is not known.
func TestKeysInUse(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	store := newRedis(client, "in use", Settings{Tree: newTree(t, "100/1h", "3/1h", "*@key=1/1h+token:9/1h,b@key=2/1h,c=5/1h"), Lease: testLease, Retention: testRetention})
	testkit.NoError(t, decide(t.Context(), store, request("1", "a").ofKey("x"), request("2", "a").ofKey("y"), request("3", "d").ofKey("x"),
		request("4", "b").ofKey("x"), request("5", "c")))
	levels := func(reported ...string) (keys map[string]int, unknown []string, ofCategories limits.Use) {
		keys = make(map[string]int)
		for _, use := range testkit.Must(store.Readings.LevelUsage(t.Context(), reported))(t) {
			keys[use.Level] = use.Keys
			testkit.Equal(t, use.OfKeys, strings.HasSuffix(use.Level, "@key"), "%s is of each key", use.Level)
			if use.Unknown {
				unknown = append(unknown, use.Level)
			}
			if use.Level == limits.LevelCategory {
				ofCategories = use.Use
			}
		}
		return keys, unknown, ofCategories
	}
	keys, unknown, ofCategories := levels()
	testkit.EqualMaps(t, keys, map[string]int{"global": 0, "category": 0, "c": 0, "*@key": 3, "b@key": 1}, "keys in use")
	testkit.EqualSlices(t, unknown, nil, "levels whose use is not known")
	testkit.Equal(t, ofCategories.Path, "a", "fullest category")

	testkit.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-scan").Err())
	_, unknown, _ = levels()
	testkit.EqualSlices(t, unknown, []string{"category", "*@key", "b@key"}, "levels whose use is not known without SCAN and workers")
	_, unknown, ofCategories = levels("a", "d")
	testkit.EqualSlices(t, unknown, []string{"*@key", "b@key"}, "levels whose use is not known without SCAN")
	testkit.Equal(t, fmt.Sprint(ofCategories.Path, ofCategories.Used), "a2", "fullest category that workers report")
}

// TestDelaysOfKeys keeps the events of each key in a queue of their own: no key waits for another one.
func TestDelaysOfKeys(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	k.Adopt(limits.Ruleset{Tree: newTree(t, "none", "none", "a@key=1/1h")})
	for i, key := range []string{"x", "y"} {
		k.want(Admitted, request("first of "+key, "a").ofKey(key).inMessage(uint64(10*i+1)))
	}
	delayed := func(key string, sequence uint64, want time.Duration) Postponement {
		r := request(fmt.Sprint(key, sequence), "a").ofKey(key).inMessage(sequence)
		d := k.want(Denied, r)[0]
		p := Postponement{Request: r, Wait: d.Wait, Longest: 4 * time.Hour, Node: d.Node, Limit: d.Limit}
		testkit.Equal(t, k.delay(p, mostDelayed, ComesBack).Round(time.Second), want, "%s comes back in", r.ID)
		return p
	}
	x := delayed("x", 2, time.Hour)
	delayed("x", 3, 2*time.Hour)
	delayed("y", 12, time.Hour)
	k.waits([]time.Duration{0}, Postponement{Request: request("new", "a").ofKey("z").inMessage(20)})
	turns := testkit.Must(k.Queues.Turns(t.Context(), []Request{request("late", "a").ofKey("x").inMessage(4), request("none", "a").inMessage(5)}))(t)
	testkit.Equal(t, turns[0].Node.Place(), "a@"+limits.HashOfKey("x"), "a later event of the key waits at")
	testkit.Equal(t, turns[1].Wait, 0, "wait of an event without a key")
	k.clock.Advance(time.Hour)
	k.leaves(x)
	k.want(Admitted, x.comeBack().Request)
}

// TestTurnsNameTheFullLimit has an event wait at a path with two limits. A later event waits for the limit that is full, whichever it is.
func TestTurnsNameTheFullLimit(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	k.Adopt(limits.Ruleset{Tree: newTree(t, "none", "5/1h+2/10s", "")})
	sequence := uint64(0)
	next := func() Request {
		sequence++
		return request(fmt.Sprint(sequence), "a").inMessage(sequence)
	}
	for _, full := range []struct {
		admitted int
		limit    string
	}{{2, "2/10s"}, {2, "2/10s"}, {1, "5/1h"}} {
		for range full.admitted {
			k.want(Admitted, next())
		}
		waiting := next()
		d := k.want(Denied, waiting)[0]
		p := Postponement{Request: waiting, Wait: d.Wait, Longest: 4 * time.Hour, Node: d.Node, Limit: d.Limit}
		k.delay(p, mostDelayed, ComesBack)
		for _, turn := range testkit.Must(k.Queues.Turns(t.Context(), []Request{next(), next()}))(t) {
			testkit.Equal(t, turn.Limit.String(), full.limit, "limit for which a later event waits")
		}
		k.leaves(p)
		k.clock.Advance(10 * time.Second)
	}
}

// TestMemoryIsBoundedByKeys invents keys. The store forgets the keys of long ago, and no path.
func TestMemoryIsBoundedByKeys(t *testing.T) {
	t.Parallel()
	m := newMemory(Settings{Tree: newTree(t, "100000/1h", "none", "a@key=1/1h"), Lease: time.Second, Retention: time.Minute}, testkit.NewClock(nil).Read, nil)
	const most = 100
	m.KeepKeys(most)
	for i := range 10 * most {
		wantAdmitted(t, m, request(fmt.Sprint("e", i), "a").ofKey(fmt.Sprint("k", i)))
		wantVerdicts(t, decisionsOf(t, m, request(fmt.Sprint("f", i), "a").ofKey(fmt.Sprint("k", i))), Denied)
	}
	testkit.Equal(t, m.inForce.ofKeys.Len(), most, "keys")
	testkit.Equal(t, m.Usage(m.rules.Tree.Path(""))[0][0], 10*most, "slots of the root")
}

// TestRoutesOfKeysAreNotCached: no invented key takes the place of a category.
func TestRoutesOfKeysAreNotCached(t *testing.T) {
	t.Parallel()
	tree := newRoutes(newTree(t, "1/1h", "1/1h", "a@key=1/1h+token:2/1h"))
	plain := tree.Route("b", "x")
	testkit.Equal(t, plain, tree.Route("b", ""), "route of a key that no rule limits")
	for i := range 100 {
		route := tree.Route("a", fmt.Sprint("k", i))
		hash := limits.HashOfKey(fmt.Sprint("k", i))
		var names []string
		for _, b := range route.buckets {
			names = append(names, b.name)
		}
		testkit.EqualSlices(t, names, []string{"log", "log:a", "log:a@" + hash, "token:3600000:a@" + hash}, "buckets")
		testkit.EqualDeeply(t, route.nodes, tree.PathOfKey("a", hash), "nodes")
		keys := slices.Clone(route.Keys)
		testkit.Equal(t, keys[3].Key, hash, "key of the limit %+v", keys[3])
	}
	testkit.Equal(t, len(tree.cached), 2, "cached routes")
	testkit.Equal(t, len(tree.Route("a", "").buckets), 2, "buckets of an event without a key")
}
