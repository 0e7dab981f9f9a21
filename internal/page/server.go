package page

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
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
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) && anotherWillDo {
		host, _, _ := net.SplitHostPort(address) // a taken port has an address
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s for the page: %w", address, err)
	}
	p := newPage(o)
	p.local, p.host = o.Token == "" && isLocal(listener.Addr()), hostOf(address)
	return &Server{page: p, listener: listener, server: &http.Server{
		Handler:           p.handler(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(logWriter{o.Logger}, "", 0),
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

// Shutdown ends what watchers are sent, waits for the other requests in hand until ctx ends, and then cuts them off.
func (s *Server) Shutdown(ctx context.Context) error {
	s.page.hub.close()
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.server.Close())
	}
	// The server closes only a listener that it serves.
	if closing := s.listener.Close(); !errors.Is(closing, net.ErrClosed) {
		err = errors.Join(err, closing)
	}
	if err != nil {
		return fmt.Errorf("stop serving the page: %w", err)
	}
	return nil
}

// logWriter passes what net/http prints to the logger, under one constant message.
type logWriter struct{ logger *slog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.logger.Warn("page server", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}
