package page

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	page     *page
	server   *http.Server
	listener net.Listener
}

// Listen takes a port. Where it is taken and another will do, it takes any free one of the same host. Serve comes next, or Shutdown.
func Listen(ctx context.Context, address string, anotherWillDo bool, o Options) (*Server, error) {
	listener, err := httpserver.Listen(ctx, address, anotherWillDo)
	if err != nil {
		return nil, fmt.Errorf("the page: %w", err)
	}
	p := newPage(o)
	p.local, p.host = o.Token == "" && isLocal(listener.Addr()), hostOf(address)
	return &Server{page: p, listener: listener, server: &http.Server{
		Handler:           p.handler(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          httpserver.ErrorLog(o.Logger, slog.LevelWarn, "page server"),
	}}, nil
}

// Addr returns the address that the server listens on, with the real port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers requests until Shutdown, and then returns nil.
func (s *Server) Serve() error {
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page on %s: %w", s.Addr(), err)
	}
	return nil
}

// Shutdown ends what watchers are sent, waits for the other requests under way until ctx ends, and then cuts them off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.page.hub.close()
	if err := httpserver.Shutdown(ctx, s.server, s.listener); err != nil {
		return fmt.Errorf("stop serving the page: %w", err)
	}
	return nil
}
