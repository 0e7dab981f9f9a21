package cli

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// adminServer answers a path with the statuses, one after the other; the last one stays.
func adminServer(t *testing.T, path string, statuses ...int) (address string, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		i := min(int(asked.Add(1)), len(statuses)) - 1
		w.WriteHeader(statuses[i])
		_, _ = w.Write([]byte("nats is not connected\nthe worker is starting\n"))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), asked
}

func TestAskAdmin(t *testing.T) {
	t.Parallel()
	healthy, _ := adminServer(t, "/healthz", http.StatusOK)
	unhealthy, _ := adminServer(t, "/healthz", http.StatusServiceUnavailable)
	port := healthy[strings.LastIndex(healthy, ":"):]
	for address, want := range map[string]string{
		healthy: "", port: "", "0.0.0.0" + port: "", "[::]" + port: "", "localhost" + port: "",
		unhealthy: "503 Service Unavailable: nats is not connected; the worker is starting", unused(t): "connection refused (check NOTIFIER_HTTP_ADDR",
		"nowhere": "missing port", "127.0.0.1:x y": "invalid",
	} {
		if err := askAdmin(t.Context(), address, "/healthz"); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// TestHealthWaits wants the command to ask until the worker is ready, without a word and without a proxy, and to say at the end why it is not.
func TestHealthWaits(t *testing.T) {
	usual := http.DefaultTransport
	defer func() { http.DefaultTransport = usual }()
	http.DefaultTransport = &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return nil, errors.New("a proxy was asked for") }}
	address, asked := adminServer(t, "/readyz", http.StatusServiceUnavailable, http.StatusServiceUnavailable, http.StatusOK)
	testkit.SetSettings(t, map[string]string{"HTTP_ADDR": address})
	testkit.Equal(t, mustRun(t, "", "health", "--wait", "30s"), "", "output")
	testkit.Equal(t, asked.Load(), 3, "questions")
	never, _ := adminServer(t, "/readyz", http.StatusServiceUnavailable)
	t.Setenv("NOTIFIER_HTTP_ADDR", never)
	requireFailure(t, Failure, "health --wait 200ms", "not ready within 200ms: 503 Service Unavailable: nats is not connected; the worker is starting")
	t.Setenv("NOTIFIER_HTTP_ADDR", "off")
	testkit.Equal(t, mustRun(t, "", "health"), "", "output without a server")
	requireFailure(t, Usage, "health --wait 30s", "--wait needs NOTIFIER_HTTP_ADDR", "See 'notifier health --help'")
	address = unused(t)
	t.Setenv("NOTIFIER_HTTP_ADDR", address)
	requireFailure(t, Failure, "health", "asking "+address)
	requireFailure(t, Failure, "health --wait 1ms", "not ready within 1ms")
	requireFailure(t, Usage, "health --wait soon", "expected a number with a unit")
	requireFailure(t, Usage, "health --wait 0s", "--wait 0s is not above 0")
	requireFailure(t, Usage, "health --wait -5s", "expected a number with a unit")
}

// Who interrupts the wait does not read that the time was over.
func TestInterruptedWait(t *testing.T) {
	t.Parallel()
	interrupt := errors.New("interrupt signal received")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(interrupt)
	testkit.Fails(t, "an interrupted wait", awaitReady(ctx, "127.0.0.1:1", time.Minute), interrupt, "interrupt signal received: ")
}
