package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
)

// Bounds of the admin server, so that no client can hold it up. A scrape takes milliseconds.
const (
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 2 * time.Minute // longer than the usual scrape interval
	maxHeaderBytes = 16 << 10
	maxScrapes     = 16
)

// AdminOptions configures the admin server. All fields must be set.
type AdminOptions struct {
	Addr     string              // host:port; port 0 is any free one
	Gatherer prometheus.Gatherer // what /metrics shows
	Ready    func() error        // returns the joined reasons for not being ready; nil: ready
	Logger   *slog.Logger
}

// ListenAdmin takes the port of the HTTP server for operators: /metrics for Prometheus, /healthz and /readyz for probes. It fails
// before anything else starts if the port is in use. The server answers GET and HEAD only. It calls Ready for each request, several
// times at once, and shows the text to the client.
func ListenAdmin(ctx context.Context, o AdminOptions) (*httpserver.Server, error) {
	server, err := httpserver.Listen(ctx, "metrics and probes", o.Addr)
	if err != nil {
		return nil, err
	}
	errorLog := httpserver.ErrorLog(o.Logger, slog.LevelWarn, "admin server")
	metrics := promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            errorLog,
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true, // exemplars need this format; the client asks for it
	})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /healthz", probe("alive", func() error { return nil }))
	mux.Handle("GET /readyz", probe("ready", o.Ready))
	server.HTTP = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          errorLog,
	}
	return server, nil
}

// probe answers 200 with a word while check returns nil. Otherwise it answers 503 with the reasons, one on each line.
func probe(word string, check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status, text := http.StatusOK, word
		if err := check(); err != nil {
			status, text = http.StatusServiceUnavailable, err.Error()
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text+"\n") // the client may have left
	})
}
