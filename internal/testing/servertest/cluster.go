package servertest

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// clusterSlots is how many hash slots a Redis Cluster has.
const clusterSlots = 16384

// busOffset is the default distance from a node's port to its bus port. Only servers newer than Redis 6.2 can change it.
const busOffset = 10000

// Cluster is a Redis Cluster of primaries only. Each node is a real redis-server. Its methods are for one goroutine at a time.
type Cluster struct {
	Nodes []*Redis

	t     testing.TB
	ids   map[*Redis]string // the node IDs within the cluster
	owner [clusterSlots]*Redis
}

// StartCluster starts the nodes, distributes the slots evenly, and returns when every node reports a healthy cluster, which takes some two
// seconds. The arguments go to [StartRedis]. The nodes end with the test.
func StartCluster(t testing.TB, nodes int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, ids: make(map[*Redis]string)}
	for n := range nodes {
		port := reservePorts(t, firstPort-busOffset, 0, busOffset)
		// This port replaces the port that StartRedis chose: the last argument wins.
		node := StartRedis(t, append([]string{"--cluster-enabled", "yes", "--port", strconv.Itoa(port)}, args...)...)
		node.Addr = fmt.Sprintf("127.0.0.1:%d", port)
		c.Nodes = append(c.Nodes, node)
		c.ids[node] = node.CLI("CLUSTER", "MYID")
		node.CLI("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(n+1))

		command := []string{"CLUSTER", "ADDSLOTS"}
		for slot := n * clusterSlots / nodes; slot < (n+1)*clusterSlots/nodes; slot++ {
			c.owner[slot] = node
			command = append(command, strconv.Itoa(slot))
		}
		node.CLI(command...)
		if n > 0 {
			host, port := c.Nodes[0].hostAndPort()
			node.CLI("CLUSTER", "MEET", host, port)
		}
	}
	c.AwaitOK()
	return c
}

// Addrs lists the addresses of the nodes.
func (c *Cluster) Addrs() (addresses []string) {
	for _, node := range c.Nodes {
		addresses = append(addresses, node.Addr)
	}
	return addresses
}

// AwaitOK returns when every node knows all of them and finds the cluster in order.
func (c *Cluster) AwaitOK() {
	c.t.Helper()
	known := fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.Nodes))
	for _, node := range c.Nodes {
		await(c.t, "the cluster to be in order", func() (done bool, state string) {
			state = node.CLI("CLUSTER", "INFO")
			return strings.Contains(state, "cluster_state:ok") && strings.Contains(state, known), state
		})
	}
}

// Slot is the hash slot of a key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	return testkit.Must(strconv.Atoi(c.Nodes[0].CLI("CLUSTER", "KEYSLOT", key)))(c.t)
}

// Owner returns the latest owner of a slot.
func (c *Cluster) Owner(slot int) *Redis { return c.owner[slot] }

// SlotMove is a slot on its way from one node to another. During the move, either node serves a client's call, or the client gets ASK or
// TRYAGAIN.
type SlotMove struct {
	cluster  *Cluster
	slot     int
	from, to *Redis
}

// MoveSlot begins to move a slot to another node: both know of it, no key has moved. Go on with [SlotMove.Keys] until
// there are no more, and then with [SlotMove.End].
func (c *Cluster) MoveSlot(slot int, to *Redis) *SlotMove {
	c.t.Helper()
	m := &SlotMove{cluster: c, slot: slot, from: c.owner[slot], to: to}
	to.CLI("CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", c.ids[m.from])
	m.from.CLI("CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", c.ids[to])
	return m
}

// Keys moves up to n keys, and reports whether there were any.
func (m *SlotMove) Keys(n int) (moved bool) {
	m.cluster.t.Helper()
	keys := m.from.CLI("CLUSTER", "GETKEYSINSLOT", strconv.Itoa(m.slot), strconv.Itoa(n))
	if keys == "" {
		return false
	}
	host, port := m.to.hostAndPort()
	command := []string{"MIGRATE", host, port, "", "0", strconv.Itoa(int(startTimeout.Milliseconds())), "KEYS"}
	m.from.CLI(append(command, strings.Split(keys, "\n")...)...)
	return true
}

// End assigns the slot to the new node. The old node must have no keys of the slot any more.
func (m *SlotMove) End() {
	m.cluster.t.Helper()
	// The new owner learns of the move first, so that the slot always has an owner.
	others := append([]*Redis{m.to, m.from}, m.cluster.Nodes...)
	for _, node := range others {
		node.CLI("CLUSTER", "SETSLOT", strconv.Itoa(m.slot), "NODE", m.cluster.ids[m.to])
	}
	m.cluster.owner[m.slot] = m.to
}

func (r *Redis) hostAndPort() (host, port string) {
	r.t.Helper()
	host, port, err := net.SplitHostPort(r.Addr)
	testkit.NoError(r.t, err)
	return host, port
}

// await polls until something is so, and says what was in its place if it does not come to be.
func await(t testing.TB, what string, look func() (done bool, state string)) {
	t.Helper()
	testkit.Await(t, what, func() error {
		done, state := look()
		if !done {
			return errors.New(state)
		}
		return nil
	})
}
