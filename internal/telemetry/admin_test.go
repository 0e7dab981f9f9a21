package telemetry_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func healthy() error { return nil }

func options() telemetry.AdminOptions {
	return telemetry.AdminOptions{
		Addr:     "127.0.0.1:0",
		Gatherer: newMetrics(1).Registry(),
		Live:     healthy,
		Ready:    healthy,
		Logger:   slog.New(slog.DiscardHandler),
	}
}

// start serves until the test ends and returns the server's URL.
func start(t *testing.T, o telemetry.AdminOptions) string {
	t.Helper()
	admin := telemetry.NewAdmin(o)
	testkit.NoError(t, admin.Listen(t.Context()))
	served := make(chan error, 1)
	go func() { served <- admin.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := admin.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + admin.Addr()
}

// client keeps no connection, which a goroutine would belong to.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

type answer struct {
	status      int
	contentType string
	body        string
}

func do(t *testing.T, method, url string) answer {
	t.Helper()
	request := testkit.Must(http.NewRequestWithContext(t.Context(), method, url, nil))(t)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body := testkit.Must(io.ReadAll(response.Body))(t)
	return answer{response.StatusCode, response.Header.Get("Content-Type"), string(body)}
}

func TestAdminPages(t *testing.T) {
	t.Parallel()
	url := start(t, options())
	for _, tt := range []struct {
		method, path string
		status       int
		body         string // a part of it
	}{
		{http.MethodGet, "/healthz", 200, "alive\n"},
		{http.MethodGet, "/readyz", 200, "ready\n"},
		{http.MethodGet, "/metrics", 200, "\nnotifier_inflight 0\n"},
		{http.MethodHead, "/readyz", 200, ""},
		{http.MethodPost, "/readyz", 405, ""},
		{http.MethodDelete, "/metrics", 405, ""},
		{http.MethodGet, "/", 404, ""},
		{http.MethodGet, "/readyz/more", 404, ""},
	} {
		got := do(t, tt.method, url+tt.path)
		if got.status != tt.status || !strings.Contains(got.body, tt.body) {
			t.Errorf("%s %s: %d %q, want %d %q", tt.method, tt.path, got.status, got.body, tt.status, tt.body)
		}
	}
}

func TestAdminNotReady(t *testing.T) {
	t.Parallel()
	var reason atomic.Pointer[error]
	check := func() error {
		if err := reason.Load(); err != nil {
			return *err
		}
		return nil
	}
	o := options()
	o.Ready = check
	url := start(t, o)

	both := errors.Join(errors.New("NATS is not connected"), errors.New("Slack refuses the token"))
	reason.Store(&both)
	want := answer{http.StatusServiceUnavailable, "text/plain; charset=utf-8", "NATS is not connected\nSlack refuses the token\n"}
	testkit.Equal(t, do(t, http.MethodGet, url+"/readyz"), want, "not ready")
	if got := do(t, http.MethodGet, url+"/healthz"); got.status != http.StatusOK {
		t.Errorf("not ready, and not alive either: %+v", got)
	}
	reason.Store(nil)
	if got := do(t, http.MethodGet, url+"/readyz"); got.status != http.StatusOK {
		t.Errorf("ready again: %+v", got)
	}
}

func TestAdminNotAlive(t *testing.T) {
	t.Parallel()
	o := options()
	o.Live = func() error { return errors.New("the consumer is gone") }
	got := do(t, http.MethodGet, start(t, o)+"/healthz")
	if got.status != http.StatusServiceUnavailable || got.body != "the consumer is gone\n" {
		t.Errorf("got %+v", got)
	}
}

func TestAdminTakenPort(t *testing.T) {
	t.Parallel()
	taken := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()

	o := options()
	o.Addr = taken.Addr().String()
	admin := telemetry.NewAdmin(o)
	if err := admin.Listen(t.Context()); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), o.Addr) {
		t.Errorf("Listen: %v", err)
	}
	if admin.Addr() != o.Addr {
		t.Errorf("address %s, want the configured %s", admin.Addr(), o.Addr)
	}

	o.FallbackPort = true
	url := start(t, o)
	if url == "http://"+o.Addr || !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("fell back to %s from %s", url, o.Addr)
	}
	if got := do(t, http.MethodGet, url+"/healthz"); got.status != http.StatusOK {
		t.Errorf("fallback: %+v", got)
	}
}

func TestAdminBadAddress(t *testing.T) {
	t.Parallel()
	o := options()
	o.Addr, o.FallbackPort = "127.0.0.1", true
	if err := telemetry.NewAdmin(o).Listen(t.Context()); err == nil {
		t.Error("Listen succeeded")
	}
}

func TestAdminShutdownWithoutServe(t *testing.T) {
	t.Parallel()
	never := telemetry.NewAdmin(options())
	if err := never.Shutdown(t.Context()); err != nil {
		t.Errorf("before Listen: %v", err)
	}

	admin := telemetry.NewAdmin(options())
	testkit.NoError(t, admin.Listen(t.Context()))
	for range 2 {
		if err := admin.Shutdown(t.Context()); err != nil {
			t.Errorf("before Serve: %v", err)
		}
	}
	if err := admin.Serve(); err != nil {
		t.Errorf("Serve after Shutdown: %v", err)
	}
	if conn, err := net.Dial("tcp", admin.Addr()); err == nil {
		_ = conn.Close()
		t.Error("still listens")
	}
}

// A request in hand is waited for; when the time is up it is cut off, and nothing is left.
func TestAdminShutdownDeadline(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	o := options()
	o.Ready = func() error {
		close(asked)
		<-release
		return nil
	}
	admin := telemetry.NewAdmin(o)
	testkit.NoError(t, admin.Listen(t.Context()))
	var all sync.WaitGroup
	all.Go(func() {
		if err := admin.Serve(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	all.Go(func() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin.Addr()+"/readyz", nil)
		if err != nil {
			t.Error(err)
			return
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
			t.Error("the request was answered")
		}
	})
	<-asked
	ended, end := context.WithCancel(t.Context())
	end()
	if err := admin.Shutdown(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	close(release)
	all.Wait()
}

type failing struct{}

func (failing) Gather() ([]*dto.MetricFamily, error) { return nil, errors.New("broken collector") }

func TestAdminLogsFailedScrape(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	o := options()
	o.Gatherer = prometheus.Gatherers{failing{}}
	o.Logger = log.Logger()
	if got := do(t, http.MethodGet, start(t, o)+"/metrics"); got.status != http.StatusInternalServerError {
		t.Errorf("got %+v", got)
	}
	if got := log.String(); !strings.Contains(got, `msg="admin server"`) || !strings.Contains(got, "broken collector") {
		t.Errorf("logged %q", got)
	}
}
