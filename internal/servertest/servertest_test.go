package servertest_test

import (
	"bufio"
	"context"
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

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait bounds what a test waits for, and is no expectation of how long it takes.
const wait = 30 * time.Second

func TestRedisForgetsWhenKilled(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)
	if got, want := r.URL(), "redis://"+r.Addr+"/0"; got != want {
		t.Errorf("URL = %q, want %q", got, want)
	}
	r.CLI("set", "key", "value")
	r.Kill()
	if _, err := net.Dial("tcp", r.Addr); err == nil {
		t.Error("a killed server accepts connections")
	}
	r.Restart()
	testkit.Equal(t, r.CLI("get", "key"), "(nil)", "get after a restart without a disk")
}

func TestRedisArgumentsWin(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	r.CLI("rpush", "list", "a", "b")
	r.Restart()
	testkit.Equal(t, r.CLI("lrange", "list", "0", "-1"), "a\nb", "list after a restart with an append-only file, want a and b")
	files, err := os.ReadDir(r.Dir)
	if err != nil || len(files) == 0 {
		t.Errorf("folder of the server: %d files, error %v; want its append-only file", len(files), err)
	}
}

func TestRedisPause(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)
	connection := dial(t, r.Addr)
	r.Pause()
	send(t, connection, "PING\r\n")
	requireSilence(t, connection)
	r.Resume()
	requireLine(t, connection, "+PONG")
}

func TestServersAreIndependent(t *testing.T) {
	t.Parallel()
	first, second := servertest.StartRedis(t), servertest.StartRedis(t)
	first.CLI("set", "key", "value")
	testkit.Equal(t, second.CLI("get", "key"), "(nil)", "the second server has the first one's key")
	first.Kill()
	testkit.Equal(t, second.CLI("ping"), "PONG", "ping of the second server")
}

func TestReservedPortsDiffer(t *testing.T) {
	t.Parallel()
	taken := make(map[int]bool)
	for range 50 {
		port := servertest.ReservePort(t)
		if taken[port] {
			t.Fatalf("port %d was given twice", port)
		}
		taken[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatalf("a reserved port cannot be used: %v", err)
		}
		_ = listener.Close()
	}
}

func TestNATSKeepsItsStreams(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *servertest.NATS{
		"in process": func(t testing.TB) *servertest.NATS { return servertest.StartNATS(t) },
		"a process":  func(t testing.TB) *servertest.NATS { return servertest.StartNATSProcess(t, "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			stream := jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}
			testkit.Must(servertest.JetStream(t, n.URL).CreateStream(ctx, stream))(t)
			testkit.Must(servertest.JetStream(t, n.URL).Publish(ctx, "s", []byte("hello")))(t)
			n.Kill()
			if connection, err := nats.Connect(n.URL); err == nil {
				connection.Close()
				t.Error("a killed server accepts clients")
			}
			n.Restart()
			found := testkit.Must(servertest.JetStream(t, n.URL).Stream(ctx, "S"))(t)
			testkit.Equal(t, found.CachedInfo().State.Msgs, 1, "messages after a restart")
			if entries, err := os.ReadDir(n.Dir); err != nil || len(entries) == 0 {
				t.Errorf("store of the server: %d entries, error %v", len(entries), err)
			}
		})
	}
}

func TestNATSOptions(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t, func(o *server.Options) { o.Authorization = "secret" })
	if connection, err := nats.Connect(n.URL); err == nil {
		connection.Close()
		t.Error("a client without the token got in")
	}
	connection := testkit.Must(nats.Connect(n.URL, nats.Token("secret")))(t)
	connection.Close()
}

func TestNATSProcessConfiguration(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, "authorization { user: u, password: p }")
	if connection, err := nats.Connect(n.URL); err == nil {
		connection.Close()
		t.Error("a client without a user got in")
	}
	connection := testkit.Must(nats.Connect(n.URL, nats.UserInfo("u", "p")))(t)
	connection.Close()
}

func TestNATSPause(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, "")
	connection := dial(t, strings.TrimPrefix(n.URL, "nats://"))
	if line, err := connection.reader.ReadString('\n'); err != nil || !strings.HasPrefix(line, "INFO ") {
		t.Fatalf("greeting of the server = %q, %v", line, err)
	}
	n.Pause()
	send(t, connection, "CONNECT {\"verbose\":false}\r\nPING\r\n")
	requireSilence(t, connection)
	n.Resume()
	requireLine(t, connection, "PONG")
}

func TestProxy(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)

	t.Run("passes on", func(t *testing.T) {
		t.Parallel()
		connection := dial(t, servertest.StartProxy(t, r.Addr).Addr)
		send(t, connection, "PING\r\n")
		requireLine(t, connection, "+PONG")
	})
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		p := servertest.StartProxy(t, r.Addr)
		connection := dial(t, p.Addr)
		send(t, connection, "PING\r\n")
		requireLine(t, connection, "+PONG")
		p.Cut()
		requireBroken(t, connection)
		connection = dial(t, p.Addr)
		send(t, connection, "PING\r\n")
		requireLine(t, connection, "+PONG")
	})
	t.Run("refuse", func(t *testing.T) {
		t.Parallel()
		p := servertest.StartProxy(t, r.Addr)
		open := dial(t, p.Addr)
		send(t, open, "PING\r\n")
		requireLine(t, open, "+PONG")
		p.Refuse(true)
		p.Refuse(true)
		if _, err := net.Dial("tcp", p.Addr); err == nil {
			t.Error("the proxy accepts connections")
		}
		send(t, open, "PING\r\n")
		requireLine(t, open, "+PONG")
		p.Refuse(false)
		p.Refuse(false)
		again := dial(t, p.Addr)
		send(t, again, "PING\r\n")
		requireLine(t, again, "+PONG")
	})
	t.Run("drop replies", func(t *testing.T) {
		t.Parallel()
		p := servertest.StartProxy(t, r.Addr)
		connection := dial(t, p.Addr)
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
		p := servertest.StartProxy(t, r.Addr)
		connection := dial(t, p.Addr)
		happened := p.CutAfterRequest("INCR")
		send(t, connection, "PING\r\n")
		requireLine(t, connection, "+PONG")
		send(t, connection, "INCR lost\r\n")
		<-happened
		requireBroken(t, connection)
		if got := r.CLI("get", "lost"); got != "1" {
			t.Errorf("the request behind the lost reply was run %s times, want 1", got)
		}
		connection = dial(t, p.Addr)
		send(t, connection, "INCR lost\r\n")
		requireLine(t, connection, ":2")
	})
	t.Run("delay", func(t *testing.T) {
		t.Parallel()
		p := servertest.StartProxy(t, r.Addr)
		connection := dial(t, p.Addr)
		p.Delay(time.Hour)
		send(t, connection, "PING\r\n")
		requireSilence(t, connection)
		p.Delay(0)
		quick := dial(t, p.Addr)
		send(t, quick, "PING\r\n")
		requireLine(t, quick, "+PONG")
	})
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		p := servertest.StartProxy(t, fmt.Sprintf("127.0.0.1:%d", servertest.ReservePort(t)))
		requireBroken(t, dial(t, p.Addr))
	})
}

// A failed start must say what to do, and end the test.
func TestFailures(t *testing.T) {
	t.Run("no server program", func(t *testing.T) {
		t.Setenv("REDIS_SERVER", filepath.Join(t.TempDir(), "absent"))
		requireFatal(t, "apt-get install -y redis-server", func(t testing.TB) { servertest.StartRedis(t) })
	})
	t.Run("bad argument", func(t *testing.T) {
		requireFatal(t, "Bad directive", func(t testing.TB) { servertest.StartRedis(t, "--no-such-setting", "1") })
	})
	t.Run("bad command", func(t *testing.T) {
		r := servertest.StartRedis(t)
		requireFatal(t, "unknown command", func(tb testing.TB) { servertest.StartRedis(tb).CLI("nonsense") })
		r.CLI("ping")
	})
	t.Run("pause of what is gone", func(t *testing.T) {
		requireFatal(t, "already finished", func(t testing.TB) {
			r := servertest.StartRedis(t)
			r.Kill()
			r.Pause()
		})
	})
	t.Run("bad NATS configuration", func(t *testing.T) {
		requireFatal(t, "read the NATS configuration", func(t testing.TB) { servertest.StartNATSProcess(t, "authorization {") })
	})
	t.Run("pause in process", func(t *testing.T) {
		requireFatal(t, "StartNATSProcess", func(t testing.TB) { servertest.StartNATS(t).Pause() })
	})
}

// recorder is a test that may fail.
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
			t.Error("the test went on")
		} else if _, ok := failure.(fatal); !ok {
			panic(failure)
		}
		if !strings.Contains(r.message, want) {
			t.Errorf("message = %q, want it to say %q", r.message, want)
		}
	}()
	run(r)
}

type client struct {
	net.Conn
	reader *bufio.Reader
}

func dial(t *testing.T, address string) *client {
	t.Helper()
	connection := testkit.Must(net.DialTimeout("tcp", address, wait))(t)
	t.Cleanup(func() { _ = connection.Close() })
	return &client{Conn: connection, reader: bufio.NewReader(connection)}
}

func send(t *testing.T, c *client, request string) {
	t.Helper()
	testkit.Must(io.WriteString(c, request))(t)
}

func requireLine(t *testing.T, c *client, want string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(wait))
	line, err := c.reader.ReadString('\n')
	if got := strings.TrimRight(line, "\r\n"); err != nil || got != want {
		t.Fatalf("answer = %q, %v; want %q", got, err, want)
	}
}

// requireSilence waits a moment for an answer that must not come.
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
	_ = c.SetReadDeadline(time.Now().Add(wait))
	if line, err := c.reader.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("answer = %q, %v; want a broken connection", line, err)
	}
}
