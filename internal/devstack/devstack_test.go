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
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// address is where a server listens: on loopback, and on its usual port unless it says that it has moved.
func address(t *testing.T, s *Server) string {
	t.Helper()
	parsed, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(parsed.Port())
	if err != nil {
		t.Fatal(err)
	}
	if parsed.Hostname() != "127.0.0.1" || (port == s.Port) == s.Moved {
		t.Errorf("it listens on %s, moved %t, want on its usual port %d of 127.0.0.1 unless it has moved", parsed.Host, s.Moved, s.Port)
	}
	return parsed.Host
}

// requireGone waits until nobody listens on an address any more.
func requireGone(t *testing.T, address string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatalf("%s still accepts connections", address)
		}
	}
}

// Two of them run beside each other: the second one moves. Nothing is left of either.
func TestNATS(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	usual := false
	for range 2 {
		s, err := StartNATS()
		if err != nil {
			t.Fatal(err)
		}
		host := address(t, s)
		if usual && !s.Moved {
			t.Error("both are on the usual port")
		}
		usual = !s.Moved
		t.Cleanup(func() {
			s.Stop()
			if s.Moved { // the usual port may be another program's by now
				requireGone(t, host)
			}
		})

		conn, err := nats.Connect(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		js, err := jetstream.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "s", []byte("stored")); err != nil {
			t.Fatal(err)
		}
	}
	if folders := folders(t); len(folders) != 2 {
		t.Errorf("folders %q, want one for each server", folders)
	}
}

func folders(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestNATSLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, err := StartNATS()
	if err != nil {
		t.Fatal(err)
	}
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
		s, err := StartRedis()
		if err != nil {
			t.Fatal(err)
		}
		host := address(t, s)
		if usual && !s.Moved {
			t.Error("both are on the usual port")
		}
		usual = !s.Moved
		t.Cleanup(func() {
			s.Stop()
			if s.Moved { // the usual port may be another program's by now
				requireGone(t, host)
			}
		})

		o, err := redis.ParseURL(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		o.DisableIdentity = true
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		client := redis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		// Keys expire by themselves, as those of a real server do.
		if err := client.Set(t.Context(), "key", "value", time.Millisecond).Err(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			left, err := client.Exists(t.Context(), "key").Result()
			if err != nil {
				t.Fatal(err)
			}
			if left == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("a key does not expire")
			}
		}
	}
}

func TestFreePort(t *testing.T) {
	t.Parallel()
	port := servertest.ReservePort(t)
	if got, moved := freePort(port); got != port || moved {
		t.Errorf("of a free port: %d, moved %t; want %d, not moved", got, moved, port)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	if got, moved := freePort(port); got != server.RANDOM_PORT || !moved {
		t.Errorf("of a taken port: %d, moved %t; want any, moved", got, moved)
	}
}
