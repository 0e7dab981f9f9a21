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
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options() telemetry.AdminOptions {
	return telemetry.AdminOptions{
		Addr:     "127.0.0.1:0",
		Registry: newMetrics(1).Registry(),
		Ready:    func() error { return nil },
		Logger:   slog.New(slog.DiscardHandler),
	}
}

// start serves until the test ends and returns the server's URL.
func start(t *testing.T, o telemetry.AdminOptions) string {
	t.Helper()
	admin := testkit.Must(telemetry.ListenAdmin(t.Context(), o))(t)
	served := make(chan error, 1)
	go func() { served <- admin.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		testkit.NoError(t, errors.Join(admin.Shutdown(ctx), <-served))
	})
	return "http://" + admin.Addr()
}

// client keeps no connection, since goleak would find its goroutine.
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
	testkit.NoError(t, err)
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
		testkit.Check(t, got.status == tt.status && strings.Contains(got.body, tt.body),
			"%s %s: %d %q, want %d %q", tt.method, tt.path, got.status, got.body, tt.status, tt.body)
	}
}

func TestAdminProbes(t *testing.T) {
	t.Parallel()
	var unready atomic.Pointer[error]
	o := options()
	o.Ready = func() error {
		if err := unready.Load(); err != nil {
			return *err
		}
		return nil
	}
	url := start(t, o)
	const plain = "text/plain; charset=utf-8"
	want := func(ready answer) {
		t.Helper()
		testkit.Equal(t, do(t, http.MethodGet, url+"/healthz"), answer{http.StatusOK, plain, "alive\n"}, "alive")
		testkit.Equal(t, do(t, http.MethodGet, url+"/readyz"), ready, "ready")
		gauge := map[int]string{http.StatusOK: "\nnotifier_ready 1\n", http.StatusServiceUnavailable: "\nnotifier_ready 0\n"}[ready.status]
		testkit.Contains(t, "metrics", do(t, http.MethodGet, url+"/metrics").body, gauge)
	}
	both := errors.Join(errors.New("NATS is not connected"), errors.New("Slack refuses the token"))
	unready.Store(&both)
	want(answer{http.StatusServiceUnavailable, plain, "NATS is not connected\nSlack refuses the token\n"})
	unready.Store(nil)
	want(answer{http.StatusOK, plain, "ready\n"})
}

func TestAdminTakenPort(t *testing.T) {
	t.Parallel()
	taken := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()

	o := options()
	o.Addr = taken.Addr().String()
	_, err := telemetry.ListenAdmin(t.Context(), o)
	testkit.Fails(t, "Listen", err, syscall.EADDRINUSE, o.Addr)

	o.Addr = "127.0.0.1"
	_, err = telemetry.ListenAdmin(t.Context(), o)
	testkit.Fails(t, "an address without a port", err, nil)
}

func TestAdminShutdownWithoutServe(t *testing.T) {
	t.Parallel()
	admin := testkit.Must(telemetry.ListenAdmin(t.Context(), options()))(t)
	for range 2 {
		testkit.NoError(t, admin.Shutdown(t.Context()))
	}
	testkit.NoError(t, admin.Serve()) // after Shutdown
	if conn, err := net.Dial("tcp", admin.Addr()); err == nil {
		_ = conn.Close()
		t.Error("got a connection after Shutdown, want none")
	}
}

// Shutdown waits for a request until its context ends, and then cuts the request off.
func TestAdminShutdownDeadline(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	o := options()
	o.Ready = func() error {
		close(asked)
		<-release
		return nil
	}
	admin := testkit.Must(telemetry.ListenAdmin(t.Context(), o))(t)
	var all sync.WaitGroup
	all.Go(func() {
		err := admin.Serve()
		testkit.Check(t, err == nil, "Serve: got %v, want no error", err)
	})
	all.Go(func() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin.Addr()+"/readyz", nil)
		if err != nil {
			t.Error(err)
			return
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
			t.Error("got an answer after the deadline, want none")
		}
	})
	<-asked
	testkit.Fails(t, "Shutdown", admin.Shutdown(testkit.Ended(t)), context.Canceled)
	close(release)
	all.Wait()
}

type failing struct{}

func (failing) Describe(chan<- *prometheus.Desc) {}

func (failing) Collect(metrics chan<- prometheus.Metric) {
	metrics <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(errors.New("broken collector")), errors.New("broken collector"))
}

// A broken collector costs a scrape its own metrics only, and the log has its error.
func TestAdminLogsFailedScrape(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	o := options()
	o.Registry, o.Logger = prometheus.NewRegistry(), log.Logger()
	o.Registry.MustRegister(failing{})
	if metrics := do(t, http.MethodGet, start(t, o)+"/metrics"); metrics.status != http.StatusOK || !strings.Contains(metrics.body, "\nnotifier_ready 1\n") {
		t.Errorf("got %v, want the other metrics", metrics)
	}
	if got := log.String(); !strings.Contains(got, `msg="admin server"`) || !strings.Contains(got, "broken collector") {
		t.Errorf("logged %q, want the error of the collector", got)
	}
}

// TestAdminIdleConnections opens more connections than the server keeps. A probe is answered, and the oldest connection is closed.
func TestAdminIdleConnections(t *testing.T) {
	t.Parallel()
	url := start(t, options())
	testkit.IdleConnections(t, strings.TrimPrefix(url, "http://"), httpserver.MaxConnections, func() {
		testkit.Equal(t, do(t, http.MethodGet, url+"/healthz").status, http.StatusOK, "status of a probe among idle connections")
	})
}
