package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
)

// Bounds of the admin server, so that no client can hold it up. A scrape takes milliseconds.
const (
	writeTimeout = 30 * time.Second
	maxScrapes   = 16
)

// AdminOptions configures the admin server. All fields must be set.
type AdminOptions struct {
	Addr     string               // host:port; port 0 is any free one
	Registry *prometheus.Registry // of the metrics that /metrics shows; ListenAdmin adds notifier_ready
	Ready    func() error         // returns the joined reasons for not being ready; nil: ready
	Logger   *slog.Logger
}

// ListenAdmin takes the port of the HTTP server for operators: /metrics for Prometheus, /healthz and /readyz for probes. It fails
// before anything else starts if the port is in use. The server answers GET and HEAD only. It calls Ready for each probe and for each
// scrape, several times at once. /readyz shows the text of the error to the client.
func ListenAdmin(ctx context.Context, o AdminOptions) (*httpserver.Server, error) {
	server, err := httpserver.Listen(ctx, "metrics and probes", "NOTIFIER_HTTP_ADDR", o.Addr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	server.ForFew(httpserver.Working(mux), o.Logger, "admin server")
	server.HTTP.WriteTimeout = writeTimeout
	RegisterReady(o.Registry, o.Ready)
	metrics := promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{
		ErrorLog:            server.HTTP.ErrorLog,
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true, // exemplars need this format; the client asks for it
	})
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /healthz", probe("alive", func() error { return nil }))
	mux.Handle("GET /readyz", probe("ready", o.Ready))
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

// RegisterReady registers the gauge of readiness. Each scrape calls ready, so the gauge agrees with /readyz.
func RegisterReady(registry *prometheus.Registry, ready func() error) {
	registrar{promauto.With(registry)}.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "notifier_ready", Help: "1 while /readyz answers that this process is ready, else 0.",
	}, func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	})
}
