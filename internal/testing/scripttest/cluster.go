package scripttest

import (
	"slices"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
)

// StartPair starts a cluster of two nodes. Node home has the slot of a key.
func StartPair(t *testing.T, key string) (cluster *servertest.Cluster, slot int, home, other *servertest.Redis) {
	t.Helper()
	cluster = servertest.StartCluster(t, 2)
	slot = cluster.Slot(key)
	home = cluster.Owner(slot)
	return cluster, slot, home, cluster.Nodes[1-slices.Index(cluster.Nodes, home)]
}

// MoveKeys moves all keys of a migrating slot.
func MoveKeys(m *servertest.SlotMove) *servertest.SlotMove {
	const atOnce = 256
	for moved := true; moved; {
		moved = m.Keys(atOnce)
	}
	return m
}
