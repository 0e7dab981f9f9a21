package servertest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// NATSCluster is a cluster of real NATS servers with JetStream, each in a process of its own.
type NATSCluster struct {
	Nodes []*NATS
	URL   string // the URLs of all nodes

	t testing.TB
}

// StartNATSCluster starts the servers, and returns when they have elected a JetStream leader, which takes some seconds. The servers end
// with the test. Their names are node-0, node-1 and so on. Every server's configuration includes all configs. They must let clients without
// a user call JetStream.
func StartNATSCluster(t testing.TB, nodes int, configs ...string) *NATSCluster {
	t.Helper()
	c := &NATSCluster{t: t}
	var routes []string
	for range nodes {
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", ReservePort(t)))
	}
	var urls []string
	for i, route := range routes {
		node := StartNATSProcess(t, fmt.Sprintf("server_name: node-%d\ncluster { name: test, listen: %q, routes: [ nats://%s ] }\n%s",
			i, route, strings.Join(routes, ", nats://"), strings.Join(configs, "\n")))
		c.Nodes = append(c.Nodes, node)
		urls = append(urls, node.URL)
	}
	c.URL = strings.Join(urls, ",")
	c.AwaitReady()
	return c
}

// AwaitReady returns when JetStream answers on every node that runs.
func (c *NATSCluster) AwaitReady() {
	c.t.Helper()
	for _, node := range c.Nodes {
		await(c.t, "JetStream to answer on "+node.URL, func() (bool, string) {
			conn, err := nats.Connect(node.URL)
			if err != nil {
				return false, err.Error()
			}
			defer conn.Close()
			answer, err := conn.Request("$JS.API.INFO", nil, startTimeout/10)
			if err != nil {
				return false, err.Error()
			}
			return !strings.Contains(string(answer.Data), `"error"`), string(answer.Data)
		})
	}
}

// Named is the node of that name.
func (c *NATSCluster) Named(name string) *NATS {
	c.t.Helper()
	var place int
	testkit.Must(fmt.Sscanf(name, "node-%d", &place))(c.t)
	return c.Nodes[place]
}

// LoseDisk kills a node and takes all that it has stored.
func (c *NATSCluster) LoseDisk(node *NATS) {
	c.t.Helper()
	node.Kill()
	testkit.NoError(c.t, os.RemoveAll(node.Dir)) // the server recreates the folder
}
