package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/page"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
)

// runPage serves the page alone, until the context ends. It returns an error if NATS closes the connection for good.
func runPage(ctx context.Context, out io.Writer) (err error) {
	settings, _, err := cli.Settings(config.Options{
		Sink: config.SinkConsole, Defaults: map[string]string{
			"NOTIFIER_PAGE_ADDR": cli.PageAddr, "NOTIFIER_LOG_FORMAT": "text",
			"NOTIFIER_HTTP_ADDR": "off", // the page may have the usual address of metrics, which this command does not serve
		},
	})
	if err != nil {
		return err
	}
	if settings.Page.Addr == "" {
		return &cli.UsageError{Err: errors.New("NOTIFIER_PAGE_ADDR is off; expected an address such as " + cli.PageAddr)}
	}
	connection, err := setup.DialNATS(ctx, settings.NATS)
	if err != nil {
		return fmt.Errorf("nats: %s", setup.ExplainNATS(err))
	}
	defer connection.Conn.Close()
	life := &lifecycle{timeout: settings.ShutdownTimeout}
	defer func() { err = errors.Join(err, life.stop()) }()
	logger := telemetry.NewLogger(os.Stderr, settings.Log.Level, settings.Log.Format)
	address, err := servePage(ctx, life, settings, connection, logger)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "the page: http://%s/\n", address); err != nil {
		return fmt.Errorf("printing the address: %w", err)
	}
	return untilClosed(ctx, connection)
}

// servePage serves the page until the lifecycle stops, and returns its address; "" if the settings have no address.
func servePage(
	ctx context.Context, life *lifecycle, settings config.Config, connection *stream.Connection, logger *slog.Logger,
) (string, error) {
	if settings.Page.Addr == "" {
		return "", nil
	}
	source, err := inspect.NewAsker(settings, connection)
	if err != nil {
		return "", err
	}
	life.add("the page's connection", func(context.Context) error { source.Close(); return nil })
	server, err := page.Listen(ctx, settings.Page.Addr, page.Options{Source: source, Token: settings.Page.Token.Reveal(), Logger: logger})
	if err != nil {
		return "", err
	}
	life.serve("the page", server)
	return server.Addr(), nil
}
