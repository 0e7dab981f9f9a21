package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
)

// ingestAddr is where dev takes events over HTTP unless told otherwise: for this host only.
const ingestAddr = "127.0.0.1:8082"

// Of the publishes of ingest: how long one may take, and how many may be under way. More requests than that wait for a moment, and then
// are told to come again.
const (
	ingestTimeout = 5 * time.Second
	ingestPending = 8192
)

func newIngestCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "ingest",
		Short: "Take events over HTTP and publish them to NATS JetStream",
		Long: "Take events over HTTP on NOTIFIER_INGEST_ADDR and publish them to NATS JetStream, until SIGTERM or SIGINT: for\n" +
			"Alertmanager, Grafana, CloudEvents, curl, and all that speaks no NATS. A request is answered with 202 once the\n" +
			"event is stored. Producers show a token of NOTIFIER_INGEST_TOKENS_FILE, which says where each may write.\n" +
			"GET /openapi.json describes the interface. The command needs neither Redis nor Slack.",
		Example: "  notifier ingest token alertmanager 'payments.>' >> tokens\n" +
			"  NOTIFIER_INGEST_TOKENS_FILE=tokens notifier ingest\n" +
			"  curl -H \"Authorization: Bearer $TOKEN\" -d '{\"title\":\"card declined\"}' http://localhost:8082/v1/events/payments.cards",
		RunE: func(cmd *cobra.Command, _ []string) error { return runIngest(cmd.Context()) },
	}
	command.AddCommand(newIngestTokenCommand())
	return command
}

func newIngestTokenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "token NAME PATTERN",
		Short: "Make a token for a producer",
		Long: "Make a token for a producer that may write to the categories of PATTERN: 'payments', 'payments.*' (one level below),\n" +
			"'payments.>' (all below), or '>' (everything). The line for NOTIFIER_INGEST_TOKENS_FILE is printed to standard output,\n" +
			"and the token to standard error: it is in no file and cannot be shown again. Several lines may have one token's hash,\n" +
			"each with a pattern, and one name may have several tokens.",
		Example: "  notifier ingest token alertmanager 'payments.>' >> tokens",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			token, line, err := ingest.NewToken(arguments[0], arguments[1])
			if err != nil {
				return usageOf(cmd, err)
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), token)
			return err
		},
	}
}

// runIngest serves until the context ends. Then it is not ready, serves on until load balancers know that, and answers the requests under way.
func runIngest(ctx context.Context) (err error) {
	settings, warnings, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		return &usageError{err}
	}
	if err := checkIngest(settings.Ingest); err != nil {
		return &usageError{err}
	}
	logger := telemetry.NewLogger(os.Stderr, settings.Log.Level, settings.Log.Format)
	for _, warning := range warnings {
		logger.Warn("settings", "detail", warning)
	}
	collectSeldom()
	v, r, _ := buildInfo()
	logger.Info("notifier ingest starts", "version", v, "revision", r)
	life := &lifecycle{timeout: settings.Drain + settings.ShutdownTimeout}
	defer func() { err = errors.Join(err, life.stop()) }()

	connection, err := connectNATS(settings.NATS, "notifier ingest", logger)
	if err != nil {
		return err
	}
	life.add("nats", func(context.Context) error { connection.Conn.Close(); return nil })
	registry := telemetry.NewRegistry(v, r)
	if _, err := serveAdmin(ctx, life, telemetry.AdminOptions{
		Addr: settings.HTTP.Addr, Gatherer: registry, Logger: logger,
		Ready: func() error {
			if ctx.Err() != nil {
				return errors.New("ingest is stopping")
			}
			return usable(connection)
		},
	}); err != nil {
		return err
	}
	server, err := serveIngest(ctx, settings, false, connection, telemetry.NewIngest(registry, ingest.Answered()), logger, life)
	if err != nil {
		return err
	}
	life.add("draining", func(stopping context.Context) error {
		server.Drain()
		logger.Info("ingest stops, and takes events for a while", "drain", settings.Drain.String())
		select {
		case <-time.After(settings.Drain):
		case <-stopping.Done():
		}
		return nil
	})
	logger.Info("events are taken over http", "address", server.URL())
	<-ctx.Done()
	return nil
}

// checkIngest finds a server that would take events from anybody.
func checkIngest(settings config.Ingest) error {
	host, _, _ := net.SplitHostPort(settings.Addr) // the setting has been checked
	switch {
	case settings.Addr == "":
		return errors.New("NOTIFIER_INGEST_ADDR is off; expected an address such as :8082")
	case settings.TokensFile == "" && host != "localhost" && !net.ParseIP(host).IsLoopback():
		return fmt.Errorf("NOTIFIER_INGEST_TOKENS_FILE: not set, but other hosts reach NOTIFIER_INGEST_ADDR=%q; expected a file of tokens, "+
			"which 'notifier ingest token NAME PATTERN' makes, or an address on loopback such as %s", settings.Addr, ingestAddr)
	}
	return nil
}

// usable tells why NATS cannot take events now.
func usable(connection *consume.Connection) error {
	if !connection.Conn.IsConnected() {
		return errors.New("nats is not connected")
	}
	return nil
}

// serveIngest takes events over HTTP until the lifecycle stops.
func serveIngest(
	ctx context.Context, settings config.Config, anotherWillDo bool, connection *consume.Connection, metrics ingest.Metrics, logger *slog.Logger,
	life *lifecycle,
) (*ingest.Server, error) {
	js := jetStream(connection, jetstream.WithPublishAsyncTimeout(ingestTimeout), jetstream.WithPublishAsyncMaxPending(ingestPending))
	limit, burst := ingestRate(settings.Ingest)
	server, err := ingest.Listen(ctx, ingest.Options{
		Addr: settings.Ingest.Addr, AnotherWillDo: anotherWillDo, Subject: settings.NATS.Subject,
		MaxBytes: settings.Event.MaxBytes, MaxGroupBytes: settings.Ingest.MaxBytes,
		Publisher: js, Available: func() error { return usable(connection) },
		TokensFile: settings.Ingest.TokensFile, TLS: ingest.TLSFiles(settings.Ingest.TLS),
		Rate: limit, Burst: burst, Logger: logger, Metrics: metrics,
	})
	if err != nil {
		return nil, err
	}
	life.serve("taking events over http", server)
	life.background("watching the files of ingest", server.Watch)
	return server, nil
}

// ingestRate is the rate of one token: so many events in a window, all of them at once if need be.
func ingestRate(settings config.Ingest) (limit rate.Limit, burst int) {
	if settings.Rate.Window == 0 {
		return 0, 0
	}
	return rate.Limit(float64(settings.Rate.Count) / settings.Rate.Window.Seconds()), int(settings.Rate.Count)
}
