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

// runPage serves the page alone, until the context ends.
func runPage(ctx context.Context, out io.Writer) (err error) {
	settings, _, err := cli.Settings(config.Options{
		Sink: config.SinkConsole, Defaults: map[string]string{"NOTIFIER_PAGE_ADDR": cli.PageAddr, "NOTIFIER_LOG_FORMAT": "text"},
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
	address, err := pageServer{settings: settings, connection: connection, logger: logger, life: life}.serve(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "the page: http://%s/\n", address); err != nil {
		return fmt.Errorf("printing the address: %w", err)
	}
	<-ctx.Done()
	return nil
}

// pageServer holds the parts of the HTTP server of the page.
type pageServer struct {
	settings   config.Config
	connection *stream.Connection
	logger     *slog.Logger
	life       *lifecycle
}

// serve serves the page until the lifecycle stops, and returns its address; "" if the settings have no address.
func (p pageServer) serve(ctx context.Context) (string, error) {
	if p.settings.Page.Addr == "" {
		return "", nil
	}
	source, err := inspect.NewAsker(p.settings, p.connection)
	if err != nil {
		return "", err
	}
	p.life.add("the page's connection", func(context.Context) error { source.Close(); return nil })
	options := page.Options{Source: source, Token: p.settings.Page.Token.Reveal(), Logger: p.logger}
	server, err := page.Listen(ctx, p.settings.Page.Addr, options)
	if err != nil {
		return "", err
	}
	p.life.serve("the page", server)
	return server.Addr(), nil
}
