package dev

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func folders(t *testing.T) []string {
	t.Helper()
	return testkit.Must(filepath.Glob(filepath.Join(os.TempDir(), "*")))(t)
}

// Two NATS servers run beside each other, and leave nothing behind.
func TestNATS(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Cleanup(func() { testkit.EqualSlices(t, folders(t), nil, "folders at the end") })
	for range 2 {
		address, stop, err := startNATS("127.0.0.1:0")
		testkit.NoError(t, err)
		t.Cleanup(func() {
			stop()
			requireGone(t, strings.TrimPrefix(address, "nats://"))
		})
		js := servertest.JetStream(t, address)
		testkit.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}))(t)
		testkit.Must(js.Publish(t.Context(), "s", []byte("stored")))(t)
	}
	if folders := folders(t); len(folders) != 2 {
		t.Errorf("folders %q, want one for each server", folders)
	}
}

// Keys expire by themselves, as they do in a real server.
func TestRedis(t *testing.T) {
	for range 2 {
		address, stop, err := startRedis("127.0.0.1:0")
		testkit.NoError(t, err)
		t.Cleanup(stop)
		o := testkit.Must(redis.ParseURL(address))(t)
		o.DisableIdentity = true
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		client := redis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		testkit.NoError(t, client.Set(t.Context(), "key", "value", time.Millisecond).Err())
		testkit.Eventually(t, "the key expires", func() bool { return testkit.Must(client.Exists(t.Context(), "key").Result())(t) == 0 })
	}
}

// A server whose usual port is taken gets another port of the host, and dev says so.
func TestFree(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	shown, usual := screen.NewPane(&out), net.JoinHostPort("127.0.0.1", strconv.Itoa(servertest.ReservePort(t)))
	testkit.Equal(t, free("NATS", usual, shown), usual, "a free address")
	listener := testkit.Must(net.Listen("tcp", usual))(t)
	t.Cleanup(func() { _ = listener.Close() })
	testkit.Equal(t, free("NATS", usual, shown), "127.0.0.1:0", "the address instead of a taken one")
	testkit.Equal(t, out.String(), usual+" is taken, so NATS listens on another port\n", "output")
}
