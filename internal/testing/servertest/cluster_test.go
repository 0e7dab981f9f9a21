package servertest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func newClient(t *testing.T, address string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// requireError sends a command to one node and compares the start of its error.
func requireError(t *testing.T, node *servertest.Redis, begins string, command ...any) {
	t.Helper()
	err := newClient(t, node.Addr).Do(t.Context(), command...).Err()
	if err == nil || !strings.HasPrefix(err.Error(), begins) {
		t.Errorf("%v at %s: error %v, want one that begins with %s", command, node.Addr, err, begins)
	}
}

func TestClusterMovesASlot(t *testing.T) {
	t.Parallel()
	c := servertest.StartCluster(t, 3)
	if len(c.Nodes) != 3 || !slices.Equal(c.Addrs(), []string{c.Nodes[0].Addr, c.Nodes[1].Addr, c.Nodes[2].Addr}) {
		t.Fatalf("got %d nodes at %q, want 3 and their addresses", len(c.Nodes), c.Addrs())
	}
	slot := c.Slot("{tag}a")
	home := c.Owner(slot)
	others := slices.DeleteFunc(slices.Clone(c.Nodes), func(r *servertest.Redis) bool { return r == home })
	for n := range 3 {
		home.CLI("SET", fmt.Sprintf("{tag}%c", 'a'+n), fmt.Sprint(n))
	}
	requireError(t, others[0], "MOVED ", "GET", "{tag}a")

	move := c.MoveSlot(slot, others[0])
	testkit.Equal(t, home.CLI("GET", "{tag}a"), "0", "a key that has not moved")
	requireError(t, home, "ASK ", "GET", "{tag}absent")
	if !move.Keys(1) {
		t.Error("got no moved key, want one")
	}
	if here, there := home.CLI("DBSIZE"), others[0].CLI("DBSIZE"); here != "2" || there != "1" {
		t.Errorf("got %s keys at the source and %s at the target, want 2 and 1", here, there)
	}
	if !move.Keys(5) || move.Keys(1) {
		t.Error("got keys left after the second step, want none")
	}
	requireError(t, home, "ASK ", "GET", "{tag}a")
	move.End()

	if c.Owner(slot) != others[0] {
		t.Error("got another owner of the slot than the target")
	}
	requireError(t, home, "MOVED ", "GET", "{tag}a")
	for n := range 3 {
		testkit.Equal(t, others[0].CLI("GET", fmt.Sprintf("{tag}%c", 'a'+n)), fmt.Sprint(n), "key %d after the move", n)
	}
	c.AwaitOK()
}
