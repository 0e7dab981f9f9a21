// Package httpserver has what the HTTP servers of the notifier share: taking a port, ending, and the log of net/http.
//
// It owns no server and no state, so everything in it may run at once. Each error says what failed. The caller adds what the server is for.
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
)

// Listen takes the port of an address. Where the port is taken and another will do, it takes any free one of the same host.
func Listen(ctx context.Context, address string, anotherWillDo bool) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) && anotherWillDo {
		host, _, _ := net.SplitHostPort(address) // a taken port has an address
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

// Shutdown stops listening, waits for the requests under way until ctx ends, and then cuts them off and returns ctx's error. It may be called
// more than once, and before the server serves the listener.
func Shutdown(ctx context.Context, server *http.Server, listener net.Listener) error {
	err := server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	// The server closes only a listener that it serves.
	if closing := listener.Close(); !errors.Is(closing, net.ErrClosed) {
		err = errors.Join(err, closing)
	}
	return err
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
