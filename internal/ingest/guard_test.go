package ingest

import (
	"net"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pipes is a listener whose connections are pipes.
type pipes struct{ net.Listener }

func (pipes) Accept() (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

// TestAllAtWork fills a guard with requests under way. A new connection is closed itself, since a complete request is never interrupted.
func TestAllAtWork(t *testing.T) {
	t.Parallel()
	counts := new(Counts)
	g := &guard{Listener: pipes{}, most: 2, metrics: counts}
	accept := func() *guarded {
		return testkit.Must(g.Accept())(t).(*guarded) //nolint:errcheck // a guard accepts nothing else
	}
	first, second := accept(), accept()
	first.work()
	second.work()
	testkit.Equal(t, accept().closed, true, "the new connection is closed")
	testkit.Equal(t, first.closed || second.closed, false, "a request under way is interrupted")
	testkit.Equal(t, counts.Get("connections"), 2, "connections")
	first.answered()
	testkit.Equal(t, accept().closed, false, "the next connection is closed")
	testkit.Equal(t, first.closed, true, "the connection with an answer is closed")
}
