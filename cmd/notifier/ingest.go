package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
)

// ingestTimeout bounds one publish, ingestPending the concurrent ones. A request beyond that waits for a moment, and is then asked to retry.
const (
	ingestTimeout = 5 * time.Second
	ingestPending = 8192
)

// runIngest serves until the context ends. Then it reports that it is not ready, keeps serving until load balancers have noticed, and
// answers the requests under way. It returns an error if NATS closes the connection for good, since only a new process connects again.
func runIngest(ctx context.Context) (err error) {
	settings, warnings, err := cli.Settings(config.Options{Sink: config.SinkConsole})
	if err != nil {
		return err
	}
	if err := cli.CheckIngest(settings.Ingest); err != nil {
		return err
	}
	logger := newLogger(os.Stderr, settings, warnings)
	collectSeldom()
	v, r, _ := buildInfo()
	logger.Info("notifier ingest starts", "version", v, "revision", r)
	life := &lifecycle{timeout: settings.Drain + settings.ShutdownTimeout}
	defer func() {
		if err = errors.Join(err, life.stop()); err == nil {
			logger.Info("notifier ingest has stopped")
		}
	}()

	connection, err := setup.NATS(ctx, settings.NATS, "notifier ingest", logger)
	if err != nil {
		return err
	}
	life.add("nats", func(context.Context) error { connection.Conn.Close(); return nil })
	registry := telemetry.NewRegistry(v, r)
	// Before readiness is served: a client that a load balancer sends here is never refused.
	server, err := listenIngest(ctx, settings, connection, registry, logger)
	if err != nil {
		return err
	}
	if _, err := serveAdmin(ctx, life, telemetry.AdminOptions{
		Addr: settings.HTTP.Addr, Registry: registry, Logger: logger,
		Ready: func() error {
			if ctx.Err() != nil {
				return errors.New("ingest is stopping")
			}
			return usable(connection)
		},
	}); err != nil {
		return err
	}
	accept(life, server)
	life.add("draining", func(stopping context.Context) error {
		server.Drain()
		if connection.Conn.IsClosed() {
			return nil // every event would be refused
		}
		logger.Info("draining: accepting events until NOTIFIER_DRAIN is over", "drain", settings.Drain.String())
		await.For(stopping, settings.Drain)
		return nil
	})
	logger.Info("accepting events over HTTP", "address", server.URL())
	return untilClosed(ctx, connection)
}

// untilClosed waits until the context ends. It returns an error if the connection is closed for good before, for example because a message
// was above a max_payload that was lowered meanwhile. No reconnect follows then.
func untilClosed(ctx context.Context, connection *stream.Connection) error {
	select {
	case <-ctx.Done():
		return nil
	case <-connection.Closed():
		return connection.ClosedError()
	}
}

// usable returns an error if NATS cannot take events.
func usable(connection *stream.Connection) error {
	if !connection.Conn.IsConnected() {
		return errors.New("nats is not connected")
	}
	return nil
}

// listenIngest reads the files and opens the port. Clients can connect when it returns; [accept] answers them.
func listenIngest(
	ctx context.Context, settings config.Config, connection *stream.Connection, registry *prometheus.Registry, logger *slog.Logger,
) (*ingest.Server, error) {
	limit, burst := ingestRate(settings.Ingest)
	metrics := telemetry.NewIngest(registry, ingest.Answered())
	return ingest.Listen(ctx, ingest.Options{
		Addr: settings.Ingest.Addr, Subject: settings.NATS.Subject,
		MaxBytes: settings.Event.MaxBytes, MaxGroupBytes: settings.Ingest.MaxBytes,
		Publisher: setup.JetStream(connection,
			jetstream.WithPublishAsyncTimeout(ingestTimeout), jetstream.WithPublishAsyncMaxPending(ingestPending)),
		Available:  func() error { return usable(connection) },
		TokensFile: settings.Ingest.TokensFile, TLS: ingest.TLSFiles(settings.Ingest.TLS),
		Rate: limit, Burst: burst, Logger: logger, Metrics: metrics, Connections: metrics,
	})
}

// accept answers clients until the lifecycle stops.
func accept(life *lifecycle, server *ingest.Server) {
	life.serve("taking events over http", server)
	life.background("watching the files of ingest", server.Watch)
}

// ingestRate returns the rate of one token. The burst is a whole window's events.
func ingestRate(settings config.Ingest) (limit rate.Limit, burst int) {
	if settings.Rate.Window == 0 {
		return 0, 0
	}
	return rate.Limit(float64(settings.Rate.Count) / settings.Rate.Window.Seconds()), int(settings.Rate.Count)
}
