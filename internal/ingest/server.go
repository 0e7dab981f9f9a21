package ingest

import (
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-4578ace9/notifier/internal/certificate"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/httpserver"
	"github.com/seed-4578ace9/notifier/internal/oplog"
)

// Bounds of the connections, so that no client holds up the server.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 15 * time.Second // of a request with its body
	writeTimeout   = 45 * time.Second // from the end of the headers to the end of the answer, so longer than reading and publishing
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	maxConnections = 4096
)

// openAPI is the description of the interface, an OpenAPI 3.1 document in JSON.
//
//go:embed openapi.json
var openAPI []byte

// Options configures a Server. All fields but TokensFile, TLS, MaxConnections, Rate and Burst must be set.
type Options struct {
	Addr          string // host:port; port 0 selects a free port
	Subject       string // prefix of the subjects of events
	MaxBytes      int    // of an alert, and of the body of a request without a group of alerts
	MaxGroupBytes int    // of a group of alerts
	Publisher     Publisher
	Available     func() error // nil while NATS can be used; called for each event
	TokensFile    string       // "": every client may write everything
	TLS           TLSFiles
	// MaxConnections bounds the open connections; 0: 4096, which take 100 MB at the most.
	MaxConnections int
	Rate           rate.Limit // events a second of each client; 0: no limit
	Burst          int        // events of each client at once
	Logger         *slog.Logger
	Metrics        Metrics
	Connections    httpserver.ConnectionMetrics
}

// Server is the HTTP server.
type Server struct {
	*httpserver.Server
	options Options
	handler *handler
	secure  certificates
	watched []*watched
	clients map[string]*client // by name; of Watch's goroutine, and of Listen before
	ending  *oplog.Condition   // the certificate has ended, or will end soon
}

// Listen reads the files and opens the port. Invalid files and an unavailable port are errors before the server starts.
func Listen(ctx context.Context, o Options) (*Server, error) {
	s := &Server{
		options: o, clients: make(map[string]*client),
		ending: oplog.NewCondition(o.Logger, "clients will refuse the certificate: renew it", "the certificate is renewed"),
	}
	s.handler = &handler{
		decoder:   event.Decoder{Prefix: o.Subject, MaxBytes: o.MaxBytes},
		bodies:    bodies{most: o.MaxBytes},
		mostGroup: o.MaxGroupBytes,
		store:     store{publisher: o.Publisher, available: o.Available, metrics: o.Metrics, storing: oplog.NewCondition(o.Logger, "cannot store events", "storing events again")},
		open:      newClient(openName, o.Rate, o.Burst),
		metrics:   o.Metrics,
		losses:    newLosses(o.Logger),
		origin:    http.NewCrossOriginProtection(),
		host:      httpserver.HostOf(o.Addr),
	}
	if o.TokensFile == "" {
		s.handler.open.mostHeld = maxHeld // there is no other client
		o.Metrics.Client(openName)
	} else {
		s.watched = append(s.watched, &watched{what: "the tokens", paths: []string{o.TokensFile}, take: s.takeTokens})
	}
	if o.TLS.CertFile != "" {
		s.watched = append(s.watched, s.secure.watch(o.TLS))
	}
	for _, files := range s.watched {
		if _, err := files.look(); err != nil {
			return nil, err
		}
	}
	var err error
	if s.Server, err = httpserver.Listen(ctx, "events over HTTP", "NOTIFIER_INGEST_ADDR", o.Addr); err != nil {
		return nil, err
	}
	s.Bound(cmp.Or(o.MaxConnections, maxConnections), o.Connections)
	if o.TLS.CertFile != "" {
		s.Listener = tls.NewListener(s.Listener, s.secure.server())
	}
	s.Listener = unparsed{s.Listener, o.Metrics}
	s.HTTP = &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         new(http.Protocols),
		ErrorLog:          httpserver.ErrorLog(o.Logger, slog.LevelDebug, "ingest server"), // clients cause these lines
	}
	s.HTTP.Protocols.SetHTTP1(true) // a connection has one request at a time
	return s, nil
}

// openName is the client of a server without tokens.
const openName = "anyone"

// takeTokens applies a token file. A remaining client keeps the rest of its rate.
func (s *Server) takeTokens(contents [][]byte) error {
	clients := make(map[string]*client)
	all, err := parseTokens(contents[0], func(name string) *client {
		if clients[name] == nil {
			clients[name] = s.clients[name]
		}
		if clients[name] == nil {
			clients[name] = newClient(name, s.options.Rate, s.options.Burst)
		}
		return clients[name]
	})
	if err != nil {
		return err
	}
	for name := range clients {
		s.options.Metrics.Client(name)
	}
	s.clients = clients
	s.handler.tokens.Store(&all)
	return nil
}

// Shutdown stops as [httpserver.Server.Shutdown] does, and logs the lost events that no line of the log has counted yet.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.handler.losses.stop()
	return s.Server.Shutdown(ctx)
}

// Drain asks clients to leave: from now on every answer ends its connection. The server continues until Shutdown.
func (s *Server) Drain() { s.handler.leaving.Store(true) }

// Watch reloads changed files, and logs that the certificate ends, until the context ends.
func (s *Server) Watch(ctx context.Context) {
	ticker := time.NewTicker(reloadEvery)
	defer ticker.Stop()
	for {
		if secure := s.secure.config.Load(); secure != nil {
			s.ending.Note(certificate.EndingSoon(secure.Certificates[0]))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, files := range s.watched {
				files.reload(s.options.Logger)
			}
		}
	}
}

// URL returns the address of the server, with the real port.
func (s *Server) URL() string {
	if s.options.TLS.CertFile != "" {
		return "https://" + s.Addr()
	}
	return "http://" + s.Addr()
}
