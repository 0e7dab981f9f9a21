// Package httpserver has what the HTTP servers of the notifier share: listening, a bound for connections, serving, shutdown,
// and the log of net/http.
//
// A [Server] is used in one order: Listen, Bound or ForFew, then Serve in a goroutine of its own, then Shutdown. Shutdown may also come before Serve or
// instead of it. Each error names the failed call and the purpose of the server.
package httpserver

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

// Server is an HTTP server on a listener of its own.
type Server struct {
	HTTP     *http.Server // set by the caller of Listen
	Listener net.Listener
	serves   string
}

// Listen listens on the address of a setting for a server of something, such as "the page". Of several addresses, separated by commas, it takes
// the first whose port is not in use.
func Listen(ctx context.Context, serves, setting, addresses string) (*Server, error) {
	for {
		address, others, more := strings.Cut(addresses, ",")
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		switch {
		case err == nil:
			return &Server{Listener: listener, serves: serves}, nil
		case !more || !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("%s: %w (check %s)", serves, err, setting)
		}
		addresses = others
	}
}

// MaxConnections bounds the connections of a server for few clients: probes, Prometheus, and the readers of the page.
const MaxConnections = 512

// Further bounds of such a server, so that no client holds it up.
const (
	readTimeout    = 10 * time.Second
	idleTimeout    = 2 * time.Minute // longer than the usual scrape interval
	maxHeaderBytes = 16 << 10
)

// ForFew bounds the server for few clients, and sets its handler. The caller may bound the time of an answer. The message is that of
// [ErrorLog].
func (s *Server) ForFew(handler http.Handler, logger *slog.Logger, message string) {
	s.Bound(MaxConnections, nil)
	s.HTTP = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          ErrorLog(logger, slog.LevelWarn, message),
	}
}

// Addr returns the address that the server listens on, with the real port.
func (s *Server) Addr() string { return s.Listener.Addr().String() }

// Serve answers requests until Shutdown, and then returns nil.
func (s *Server) Serve() error {
	s.HTTP.ConnContext = withConnection
	s.HTTP.DisableGeneralOptionsHandler = true // net/http would answer "OPTIONS *" past the handler, which counts and protects
	if err := s.HTTP.Serve(s.Listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s on %s: %w", s.serves, s.Addr(), err)
	}
	return nil
}

// Shutdown stops listening, waits for the requests under way until ctx ends, and then cuts them off and returns ctx's error. It may be called
// more than once.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.HTTP.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.HTTP.Close())
	}
	// The server closes only a listener that it serves.
	if closing := s.Listener.Close(); !errors.Is(closing, net.ErrClosed) {
		err = errors.Join(err, closing)
	}
	if err != nil {
		return fmt.Errorf("stop serving %s: %w", s.serves, err)
	}
	return nil
}

// ErrorLog passes what net/http prints to a logger, as the attribute "error" of a constant message.
func ErrorLog(logger *slog.Logger, level slog.Level, message string) *log.Logger {
	return log.New(writer{logger, level, message}, "", 0)
}

type writer struct {
	logger  *slog.Logger
	level   slog.Level
	message string
}

func (w writer) Write(line []byte) (int, error) {
	w.logger.Log(context.Background(), w.level, w.message, "error", strings.TrimSpace(string(line))) //nolint:sloglint // each caller has a constant message
	return len(line), nil
}
