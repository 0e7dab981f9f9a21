package servertest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReservedPortsDiffer(t *testing.T) {
	t.Parallel()
	taken := make(map[int]bool)
	for range 50 {
		port := servertest.ReservePort(t)
		testkit.Require(t, !taken[port], "got the port %d twice", port)
		taken[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		testkit.Require(t, err == nil, "got %v on a reserved port, want a listener", err)
		_ = listener.Close()
	}
}

// dialProxy starts a proxy to a server, and connects to it.
func dialProxy(t *testing.T, target string) (*servertest.Proxy, *client) {
	t.Helper()
	p := servertest.StartProxy(t, target)
	return p, dial(t, p.Addr)
}

func ping(t *testing.T, c *client) {
	t.Helper()
	send(t, c, "PING\r\n")
	requireLine(t, c, "+PONG")
}

func TestProxyReplies(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)
	t.Run("drop replies", func(t *testing.T) {
		t.Parallel()
		p, connection := dialProxy(t, r.Addr)
		p.DropReplies(true)
		send(t, connection, "INCR dropped\r\n")
		requireSilence(t, connection)
		testkit.Eventually(t, "the request behind a dropped reply is run", func() bool { return r.CLI("get", "dropped") == "1" })
		p.DropReplies(false)
		send(t, connection, "GET dropped\r\n")
		requireLine(t, connection, "$1")
	})
	t.Run("cut after a request", func(t *testing.T) {
		t.Parallel()
		p, connection := dialProxy(t, r.Addr)
		happened := p.CutAfterRequest("INCR")
		ping(t, connection)
		send(t, connection, "INCR lost\r\n")
		<-happened
		requireBroken(t, connection)
		testkit.Equal(t, r.CLI("get", "lost"), "1", "runs of the request behind the lost reply")
		connection = dial(t, p.Addr)
		send(t, connection, "INCR lost\r\n")
		requireLine(t, connection, ":2")
	})
}

type client struct {
	net.Conn
	reader *bufio.Reader
}

func dial(t *testing.T, address string) *client {
	t.Helper()
	connection := testkit.Must(net.DialTimeout("tcp", address, testkit.Patience))(t)
	t.Cleanup(func() { _ = connection.Close() })
	return &client{Conn: connection, reader: bufio.NewReader(connection)}
}

func send(t *testing.T, c *client, request string) {
	t.Helper()
	testkit.Must(io.WriteString(c, request))(t)
}

func requireLine(t *testing.T, c *client, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
	line, err := c.reader.ReadString('\n')
	got := strings.TrimRight(line, "\r\n")
	testkit.Require(t, err == nil && got == want, "answer = %q, %v; want %q", got, err, want)
}

// requireSilence waits a moment and fails on an answer.
func requireSilence(t *testing.T, c *client) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	line, err := c.reader.ReadString('\n')
	testkit.Require(t, errors.Is(err, os.ErrDeadlineExceeded), "answer = %q, %v; want none", line, err)
}

func requireBroken(t *testing.T, c *client) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
	line, err := c.reader.ReadString('\n')
	testkit.Require(t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "answer = %q, %v; want a broken connection", line, err)
}

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
	testkit.Check(t, move.Keys(1) && move.Keys(5) && !move.Keys(1), "got other steps of the move, want two")
	requireError(t, home, "ASK ", "GET", "{tag}a")
	move.End()
	requireError(t, home, "MOVED ", "GET", "{tag}a")
	testkit.Equal(t, others[0].CLI("MGET", "{tag}a", "{tag}b"), "1\n2", "keys after the move")
	c.AwaitOK()
}

// TestSentinelFailover wants that a primary that is cut off takes its last write with it.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := servertest.StartSentinel(t)
	primary := s.Primary()
	primary.CLI("SET", "kept", "1")
	s.AwaitReplicas()
	s.CutReplicas()
	primary.CLI("SET", "lost", "1")
	next := s.AwaitFailover(s.KillPrimary())
	if kept, lost := next.CLI("GET", "kept"), next.CLI("GET", "lost"); next == primary || kept != "1" || lost != "(nil)" {
		t.Errorf("got the replicated value %q and the other value %q, want 1 and (nil)", kept, lost)
	}
}
