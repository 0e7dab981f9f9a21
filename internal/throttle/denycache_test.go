package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func denied(node limits.Node, limit limits.Limit, wait time.Duration) Decision {
	return Decision{Verdict: Denied, Node: node, Limit: limit, Wait: wait}
}

func TestDenyCache(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	cache := newDenyCache(time.Second, clock.Read)
	tree := newRoutes(newTree(t, "100/1h", "10/1h+3/1m", "a.b=5/1h"))
	route := tree.route("a.b")
	path := route.nodes
	want := func(category, node string) {
		t.Helper()
		got, full := cache.find(tree.route(category))
		if full != (node != "-") || full && got.Path != node {
			t.Errorf("%s is full at %+v, %v; want %q", category, got, full, node)
		}
	}
	want("a.b", "-")

	// A slot opens before the entry is too old, counted from when the question was asked.
	asked := clock.Read()
	clock.Advance(100 * time.Millisecond)
	cache.learn(asked, route, denied(path[1], path[1].Limits[1], 300*time.Millisecond), 1)
	want("a.b", "a")
	want("a", "a")
	want("a.x.y", "a")
	want("b", "-")
	clock.Set(asked.Add(300*time.Millisecond - time.Nanosecond))
	want("a", "a")
	clock.Advance(time.Nanosecond)
	want("a", "-")

	// The entry is too old before a slot opens.
	asked = clock.Read()
	cache.learn(asked, route, denied(path[2], path[2].Limits[0], time.Hour), 1)
	cache.learn(asked, route, denied(path[0], path[0].Limits[0], 500*time.Millisecond), 1)
	want("a.b", "")
	want("c", "")
	clock.Advance(500 * time.Millisecond)
	want("a.b", "a.b")
	want("a", "-")
	clock.Advance(500 * time.Millisecond)
	want("a.b", "-")

	// What never fits is full for as long as an entry lasts.
	cache.learn(clock.Read(), route, Decision{Verdict: ExceedsCapacity, Node: path[2], Limit: path[2].Limits[0]}, 1)
	want("a.b", "a.b")
	clock.Advance(time.Second)
	want("a.b", "-")

	// More slots than one may be too many where one fits.
	cache.learn(clock.Read(), route, denied(path[0], path[0].Limits[0], time.Hour), 2)
	cache.learn(clock.Read(), route, Decision{Verdict: ExceedsCapacity, Node: path[2], Limit: path[2].Limits[0]}, 6)
	want("a.b", "-")

	cache.learn(clock.Read(), route, denied(path[0], path[0].Limits[0], time.Hour), 1)
	want("a.b", "")
	cache.forget()
	want("a.b", "-")

	// A limit that was changed is asked about anew.
	cache.learn(clock.Read(), route, denied(path[0], path[0].Limits[0], time.Hour), 1)
	raised := newRoutes(newTree(t, "200/1h", "10/1h", ""))
	if node, full := cache.find(raised.route("a")); full {
		t.Errorf("the raised limit is full at %+v", node)
	}
	want("a.b", "")
}

func TestDenyCacheTurnedOff(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	cache := newDenyCache(0, clock.Read)
	route := newRoutes(newTree(t, "0/1h", "none", "")).route("a")
	node := route.nodes
	cache.learn(clock.Read(), route, denied(node[0], node[0].Limits[0], time.Hour), 1)
	cache.learn(clock.Read(), route, Decision{Verdict: ExceedsCapacity, Node: node[0], Limit: node[0].Limits[0]}, 1)
	if got, full := cache.find(route); full {
		t.Errorf("full at %+v", got)
	}
}

func TestDenyCacheIsBounded(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	cache := newDenyCache(time.Minute, clock.Read)
	tree := newRoutes(newTree(t, "none", "1/1h", ""))
	learn := func(name string, wait time.Duration) {
		node := tree.Path(name)[0]
		cache.learn(clock.Read(), tree.route(name), denied(node, node.Limits[0], wait), 1)
		if len(cache.full) > maxFull {
			t.Fatalf("%d entries", len(cache.full))
		}
		if _, full := cache.find(tree.route(name)); !full {
			t.Fatalf("%s was not learnt", name)
		}
	}
	for i := range maxFull - 1 {
		learn(fmt.Sprint("short", i), time.Second)
	}
	learn("long", time.Hour)
	clock.Advance(time.Second)
	learn("next", time.Hour) // what has ended makes room
	if _, full := cache.find(tree.route("long")); !full || len(cache.full) != 2 {
		t.Errorf("%d entries, long is full: %v", len(cache.full), full)
	}
	for i := range 2 * maxFull {
		learn(fmt.Sprint("more", i), time.Hour)
	}
}
