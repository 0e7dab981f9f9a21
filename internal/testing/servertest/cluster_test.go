package servertest_test

import (
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

// TestClusterMovesASlot wants the redirections of a slot that moves. Without them, tests of a move would show nothing.
func TestClusterMovesASlot(t *testing.T) {
	t.Parallel()
	c := servertest.StartCluster(t, 3)
	slot := c.Slot("{tag}a")
	home := c.Owner(slot)
	others := slices.DeleteFunc(slices.Clone(c.Nodes), func(r *servertest.Redis) bool { return r == home })
	home.CLI("MSET", "{tag}a", "1", "{tag}b", "2")
	move := c.MoveSlot(slot, others[0])
	requireError(t, home, "ASK ", "GET", "{tag}absent")
	if !move.Keys(1) || !move.Keys(5) || move.Keys(1) {
		t.Error("got other steps of the move, want two")
	}
	requireError(t, home, "ASK ", "GET", "{tag}a")
	move.End()
	requireError(t, home, "MOVED ", "GET", "{tag}a")
	testkit.Equal(t, others[0].CLI("MGET", "{tag}a", "{tag}b"), "1\n2", "keys after the move")
	c.AwaitOK()
}
