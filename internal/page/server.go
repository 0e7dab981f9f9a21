package page

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
)

// Bounds of the connections, so that no reader holds up the server.
const (
	readTimeout    = 10 * time.Second
	writeTimeout   = 10 * time.Second // of one message to a watcher
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// Server serves the page on a listener of its own.
type Server struct {
	*httpserver.Server
	page *page
}

// Listen takes a port. Where it is taken and another will do, it takes any free one of the same host. Serve comes next, or Shutdown.
func Listen(ctx context.Context, address string, anotherWillDo bool, o Options) (*Server, error) {
	server, err := httpserver.Listen(ctx, "the page", address, anotherWillDo)
	if err != nil {
		return nil, err
	}
	p := newPage(o)
	p.local, p.host = o.Token == "" && isLocal(server.Listener.Addr()), httpserver.HostOf(address)
	server.HTTP = &http.Server{
		Handler:           p.handler(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          httpserver.ErrorLog(o.Logger, slog.LevelWarn, "page server"),
	}
	return &Server{server, p}, nil
}

// Shutdown ends what watchers are sent, waits for the other requests under way until ctx ends, and then cuts them off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.page.hub.close()
	return s.Server.Shutdown(ctx)
}
