package servertest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRedisForgetsWhenKilled(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)
	testkit.Equal(t, r.URL(), "redis://"+r.Addr+"/0", "URL")
	r.CLI("set", "key", "value")
	r.Kill()
	if _, err := net.Dial("tcp", r.Addr); err == nil {
		t.Error("got a connection to a killed server, want none")
	}
	r.Restart()
	testkit.Equal(t, r.CLI("get", "key"), "(nil)", "get after a restart without a disk")
}

func TestRedisPause(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)
	other := servertest.StartRedis(t)
	connection := dial(t, r.Addr)
	r.Pause()
	send(t, connection, "PING\r\n")
	requireSilence(t, connection)
	testkit.Equal(t, other.CLI("ping"), "PONG", "answer of another server")
	r.Resume()
	requireLine(t, connection, "+PONG")
}

func TestReservedPortsDiffer(t *testing.T) {
	t.Parallel()
	taken := make(map[int]bool)
	for range 50 {
		port := servertest.ReservePort(t)
		if taken[port] {
			t.Fatalf("got the port %d twice", port)
		}
		taken[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatalf("got %v on a reserved port, want a listener", err)
		}
		_ = listener.Close()
	}
}

func TestNATSKeepsItsStreams(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *servertest.NATS{
		"in process": func(t testing.TB) *servertest.NATS { return servertest.StartNATS(t, func(*server.Options) {}) },
		"a process":  func(t testing.TB) *servertest.NATS { return servertest.StartNATSProcess(t, "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			ctx := testkit.Context(t)
			stream := jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}
			testkit.Must(servertest.JetStream(t, n.URL).CreateStream(ctx, stream))(t)
			testkit.Must(servertest.JetStream(t, n.URL).Publish(ctx, "s", []byte("hello")))(t)
			n.Kill()
			if connection, err := nats.Connect(n.URL); err == nil {
				connection.Close()
				t.Error("got a client of a killed server, want none")
			}
			n.Restart()
			found := testkit.Must(servertest.JetStream(t, n.URL).Stream(ctx, "S"))(t)
			testkit.Equal(t, found.CachedInfo().State.Msgs, 1, "messages after a restart")
			if entries, err := os.ReadDir(n.Dir); err != nil || len(entries) == 0 {
				t.Errorf("got %d entries of the store and %v, want some", len(entries), err)
			}
		})
	}
}

func TestNATSPause(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, "")
	connection := dial(t, strings.TrimPrefix(n.URL, "nats://"))
	if line, err := connection.reader.ReadString('\n'); err != nil || !strings.HasPrefix(line, "INFO ") {
		t.Fatalf("got the greeting %q and %v, want INFO", line, err)
	}
	n.Pause()
	send(t, connection, "CONNECT {\"verbose\":false}\r\nPING\r\n")
	requireSilence(t, connection)
	n.Resume()
	requireLine(t, connection, "PONG")
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

func TestProxyConnections(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		p, connection := dialProxy(t, r.Addr)
		ping(t, connection)
		p.Cut()
		requireBroken(t, connection)
		ping(t, dial(t, p.Addr))
	})
	t.Run("refuse", func(t *testing.T) {
		t.Parallel()
		p, open := dialProxy(t, r.Addr)
		ping(t, open)
		p.Refuse(true)
		p.Refuse(true)
		if _, err := net.Dial("tcp", p.Addr); err == nil {
			t.Error("got a connection to a refusing proxy, want none")
		}
		ping(t, open)
		p.Refuse(false)
		p.Refuse(false)
		ping(t, dial(t, p.Addr))
	})
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		_, connection := dialProxy(t, fmt.Sprintf("127.0.0.1:%d", servertest.ReservePort(t)))
		requireBroken(t, connection)
	})
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
	t.Run("delay", func(t *testing.T) {
		t.Parallel()
		p, connection := dialProxy(t, r.Addr)
		p.Delay(time.Hour)
		send(t, connection, "PING\r\n")
		requireSilence(t, connection)
		p.Delay(0)
		ping(t, dial(t, p.Addr))
	})
}

// A failed start ends the test with a message that says what to do.
func TestFailures(t *testing.T) {
	t.Setenv("NATS_SERVER", "") // another program has other words for a bad configuration
	for _, test := range []struct {
		name, says string
		fail       func(testing.TB)
	}{
		{"bad argument", "Bad directive", func(t testing.TB) { servertest.StartRedis(t, "--no-such-setting", "1") }},
		{"bad command", "unknown command", func(t testing.TB) { servertest.StartRedis(t).CLI("nonsense") }},
		{"pause of what is gone", "already finished", func(t testing.TB) {
			r := servertest.StartRedis(t)
			r.Kill()
			r.Pause()
		}},
		{"bad NATS configuration", "read the NATS configuration", func(t testing.TB) { servertest.StartNATSProcess(t, "authorization {") }},
		{"pause in process", "StartNATSProcess", func(t testing.TB) { servertest.StartNATS(t, func(*server.Options) {}).Pause() }},
	} {
		t.Run(test.name, func(t *testing.T) { requireFatal(t, test.says, test.fail) })
	}
	t.Run("no server program", func(t *testing.T) {
		t.Setenv("REDIS_SERVER", filepath.Join(t.TempDir(), "absent"))
		requireFatal(t, "apt-get install -y redis-server", func(t testing.TB) { servertest.StartRedis(t) })
	})
}

// recorder keeps the message that ends a test.
type recorder struct {
	testing.TB
	message string
}

type fatal struct{}

func (r *recorder) Fatal(args ...any) { r.message = fmt.Sprint(args...); panic(fatal{}) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	panic(fatal{})
}

func requireFatal(t *testing.T, want string, run func(testing.TB)) {
	t.Helper()
	r := &recorder{TB: t}
	defer func() {
		if failure := recover(); failure == nil {
			t.Error("got no fatal failure, want one")
		} else if _, ok := failure.(fatal); !ok {
			panic(failure)
		}
		testkit.Contains(t, "message", r.message, want)
	}()
	run(r)
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
	if got := strings.TrimRight(line, "\r\n"); err != nil || got != want {
		t.Fatalf("answer = %q, %v; want %q", got, err, want)
	}
}

// requireSilence waits a moment and fails on an answer.
func requireSilence(t *testing.T, c *client) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	line, err := c.reader.ReadString('\n')
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("answer = %q, %v; want none", line, err)
	}
}

func requireBroken(t *testing.T, c *client) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
	if line, err := c.reader.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("answer = %q, %v; want a broken connection", line, err)
	}
}
