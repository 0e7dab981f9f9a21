//go:build !nodev

package devstack

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// address is where a server listens: on loopback, and on its usual port unless it says that it has moved.
func address(t *testing.T, s *Server) string {
	t.Helper()
	parsed := testkit.Must(url.Parse(s.URL))(t)
	port := testkit.Must(strconv.Atoi(parsed.Port()))(t)
	if parsed.Hostname() != "127.0.0.1" || (port == s.Port) == s.Moved {
		t.Errorf("it listens on %s, moved %t, want on its usual port %d of 127.0.0.1 unless it has moved", parsed.Host, s.Moved, s.Port)
	}
	return parsed.Host
}

// requireGone waits until nobody listens on an address any more.
func requireGone(t *testing.T, address string) {
	t.Helper()
	testkit.Eventually(t, "nobody listens on "+address, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// requireBeside checks where a server listens, and that it is gone after the test. It returns whether the usual port is taken.
func requireBeside(t *testing.T, s *Server, taken bool) bool {
	t.Helper()
	host := address(t, s)
	if taken && !s.Moved {
		t.Error("both are on the usual port")
	}
	t.Cleanup(func() {
		s.Stop()
		if s.Moved { // the usual port may be another program's by now
			requireGone(t, host)
		}
	})
	return !s.Moved
}

// Two of them run beside each other: the second one moves. Nothing is left of either.
func TestNATS(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	usual := false
	for range 2 {
		s := testkit.Must(StartNATS())(t)
		usual = requireBeside(t, s, usual)
		js := servertest.JetStream(t, s.URL)
		testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}))(t)
		testkit.Must(js.Publish(t.Context(), "s", []byte("stored")))(t)
	}
	if folders := folders(t); len(folders) != 2 {
		t.Errorf("folders %q, want one for each server", folders)
	}
}

func folders(t *testing.T) []string {
	t.Helper()
	return testkit.Must(filepath.Glob(filepath.Join(os.TempDir(), "*")))(t)
}

func TestNATSLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := testkit.Must(StartNATS())(t)
	s.Stop()
	if left := folders(t); len(left) > 0 {
		t.Errorf("it leaves %q", left)
	}
}

// A server that cannot store says so, and leaves nothing.
func TestNATSWithoutAFolder(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "absent"))
	if s, err := StartNATS(); err == nil {
		s.Stop()
		t.Error("there is no error")
	}
}

func TestRedis(t *testing.T) {
	usual := false
	for range 2 {
		s := testkit.Must(StartRedis())(t)
		usual = requireBeside(t, s, usual)
		o := testkit.Must(redis.ParseURL(s.URL))(t)
		o.DisableIdentity = true
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		client := redis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		// Keys expire by themselves, as those of a real server do.
		testkit.NoError(t, client.Set(t.Context(), "key", "value", time.Millisecond).Err())
		testkit.Eventually(t, "the key expires", func() bool { return testkit.Must(client.Exists(t.Context(), "key").Result())(t) == 0 })
	}
}

func TestFreePort(t *testing.T) {
	t.Parallel()
	port := servertest.ReservePort(t)
	if got, moved := freePort(port); got != port || moved {
		t.Errorf("of a free port: %d, moved %t; want %d, not moved", got, moved, port)
	}
	listener := testkit.Must(net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))))(t)
	t.Cleanup(func() { _ = listener.Close() })
	if got, moved := freePort(port); got != server.RANDOM_PORT || !moved {
		t.Errorf("of a taken port: %d, moved %t; want any, moved", got, moved)
	}
}
