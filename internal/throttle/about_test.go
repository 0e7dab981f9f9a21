package throttle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// useOf is what is used of the only limit that a node has, or of one of several.
func useOf(t *testing.T, node, limit string, used int64) NodeUse {
	t.Helper()
	return NodeUse{Node: node, Limit: parseLimits(t, limit)[0], Used: used}
}

// wantUses compares what is told of a category.
func (k *gateKit) wantUses(category string, want ...NodeUse) {
	k.t.Helper()
	if got := k.Uses(k.t.Context(), category); !slices.Equal(got, want) {
		k.t.Errorf("uses of %q: %+v, want %+v", category, got, want)
	}
}

// told makes what was told of a category as old as this.
func (k *gateKit) told(category string, ago time.Duration) {
	k.usage.uses.mu.Lock()
	defer k.usage.uses.mu.Unlock()
	known := k.usage.uses.known[category]
	known.asked = time.Now().Add(-ago)
	k.usage.uses.known[category] = known
}

func TestGateUses(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{Settings: Settings{Tree: newTree(t, "100/1h", "10/1h+20/2h", "a.b=4/1h,free=none")}})
	gate.want(map[Verdict]int{Admitted: 3}, append(several(2, "ab", "a.b"), request("a", "a"))...)
	before := []NodeUse{useOf(t, "global", "100/1h", 3), useOf(t, "a", "10/1h", 3), useOf(t, "a", "20/2h", 3), useOf(t, "a.b", "4/1h", 2)}
	gate.wantUses("a.b", before...)
	gate.wantUses("a.c", before[:3]...)
	gate.wantUses("free", before[0])

	gate.one(Admitted, request("more", "a.b"))
	gate.told("a.b", -time.Hour) // fresh, however long the test takes
	gate.wantUses("a.b", before...)
	gate.told("a.b", usesKept)
	after := []NodeUse{useOf(t, "global", "100/1h", 4), useOf(t, "a", "10/1h", 4), useOf(t, "a", "20/2h", 4), useOf(t, "a.b", "4/1h", 3)}
	gate.wantUses("a.b", after...)

	gate.told("a.b", -time.Hour)
	gate.Adopt(Ruleset{Tree: newTree(t, "100/1h", "none", "a.b=5/1h")})
	adopted := []NodeUse{after[0], useOf(t, "a.b", "5/1h", 3)}
	gate.wantUses("a.b", adopted...)
	gate.Adopt(Ruleset{Tree: newTree(t, "none", "none", "")})
	gate.wantUses("a.b")
	gate.Adopt(Ruleset{Tree: newTree(t, "100/1h", "none", "a.b=5/1h")})

	gate.wantUses("a.b", adopted...)
	gate.told("a.b", -time.Hour)
	gate.lose(server)
	gate.wantUses("a.b", adopted...)
	gate.told("a.b", usesKept)
	gate.wantUses("a.b")
	gate.wantUses("a.c")
}

func TestGateUsesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{})
	server.CLI("SET", gateKey("log:a"), "text")
	gate.wantUses("a")
	gate.wantUses("b", useOf(t, "global", "100/1h", 0), useOf(t, "b", "10/1h", 0))
	server.CLI("DEL", gateKey("log:a"))
	gate.wantUses("a", useOf(t, "global", "100/1h", 0), useOf(t, "a", "10/1h", 0))
}

func TestGateUsesAreBounded(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{})
	gate.wantUses("a", useOf(t, "global", "100/1h", 0), useOf(t, "a", "10/1h", 0))
	for i := range maxTouched {
		gate.usage.uses.known[fmt.Sprint("a", i)] = knownUses{}
	}
	gate.wantUses("b", useOf(t, "global", "100/1h", 0), useOf(t, "b", "10/1h", 0))
	if n := len(gate.usage.uses.known); n > maxTouched {
		t.Errorf("the uses of %d categories are kept", n)
	}
}

func TestGateLimitOf(t *testing.T) {
	t.Parallel()
	gate := newGateKit(t, "127.0.0.1:1", GateOptions{Settings: Settings{Tree: newTree(t, "100/1h", "10/30m+3/1m", "a.*=4/1h,free=none")}})
	for _, test := range []struct{ category, level, want string }{
		{"a.b", LevelGlobal, "100/1h"},
		{"a.b", LevelCategory, "10/30m+3/1m"},
		{"a.b", "a.*", "4/1h"},
		{"a", "a.*", ""},
		{"b.c", "a.*", ""},
		{"free", LevelCategory, ""},
		{"a.b", "unpaired", ""},
		{"a.b", LevelClosed, ""},
		{"a.b", "", ""},
	} {
		if got := gate.LimitOf(test.category, test.level); got != test.want {
			t.Errorf("%q at the level %q: %q, want %q", test.category, test.level, got, test.want)
		}
	}
	gate.Adopt(Ruleset{Tree: newTree(t, "none", "7/1h", "")})
	if global, category := gate.LimitOf("a.b", LevelGlobal), gate.LimitOf("a.b", LevelCategory); global != "" || category != "7/1h" {
		t.Errorf("by other limits: %q, %q", global, category)
	}
}

func TestGateTellsWhenSlotsOpen(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Settings: Settings{Tree: newTree(t, "none", "2/1h", "a.b=1/3h,c=none")}})
	want := func(category string, in time.Duration) {
		t.Helper()
		opens := gate.Opens(category)
		if in == 0 && opens.IsZero() {
			return
		}
		if in == 0 || !within(time.Until(opens), in) {
			t.Errorf("the next slot of %q opens at %v, want in %v", category, opens, in)
		}
	}
	want("a.b", 0)
	gate.want(map[Verdict]int{Admitted: 1, Denied: 1}, several(2, "ab", "a.b")...)
	want("a.b", 3*time.Hour)
	want("a.b.c", 3*time.Hour)
	want("a", 0)
	want("a.c", 0)
	gate.want(map[Verdict]int{Admitted: 1, Denied: 2}, several(3, "a", "a")...)
	want("a", time.Hour)
	want("a.c", time.Hour)
	want("a.b", 3*time.Hour) // of the limits that are full the one that opens last
	want("c", 0)

	a := gate.rules.Load().Tree.Path("a")[0]
	gate.usage.denied(Decision{Node: a, Wait: time.Hour}, time.Now().Add(-time.Hour))
	want("a", 0)
	gate.Adopt(Ruleset{Tree: newTree(t, "none", "2/1h", "")})
	want("a.b", 0)
}
