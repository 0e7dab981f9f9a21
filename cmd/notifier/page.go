package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/page"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// pageAddr is where dev and the command serve the page unless told otherwise: for this host only.
const pageAddr = "127.0.0.1:8081"

func newPageCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "page",
		Short: "Serve the live page beside the workers",
		Long: "Serve the live page of the whole deployment on NOTIFIER_PAGE_ADDR (" + pageAddr + " unless set), until Ctrl-C. A worker\n" +
			"serves it too, where NOTIFIER_PAGE_ADDR is set. The page changes nothing. With NOTIFIER_PAGE_TOKEN or\n" +
			"NOTIFIER_PAGE_TOKEN_FILE its readers need the token: open the page once with ?token=… at the end of its address.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runPage(cmd.Context(), cmd.OutOrStdout()) },
	}
}

func runPage(ctx context.Context, out io.Writer) (err error) {
	settings, _, err := config.Load(config.Options{
		Sink: config.SinkConsole, Defaults: map[string]string{"NOTIFIER_PAGE_ADDR": pageAddr, "NOTIFIER_LOG_FORMAT": "text"},
	})
	if err != nil {
		return &usageError{err}
	}
	if settings.Page.Addr == "" {
		return &usageError{errors.New("NOTIFIER_PAGE_ADDR is off; expected an address such as " + pageAddr)}
	}
	connection, err := dialNATS(ctx, settings.NATS)
	if err != nil {
		return fmt.Errorf("nats: %s", explainNATS(err))
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

// pageServer is what it takes to serve the page.
type pageServer struct {
	settings      config.Config
	anotherWillDo bool // another port, where the one of the settings is taken
	connection    *consume.Connection
	forged        func(n int) // called when the journal holds messages that no worker wrote; nil: nobody counts them
	logger        *slog.Logger
	life          *lifecycle
}

// serve serves the page until the lifecycle stops, and returns its address; "" if none is wanted.
func (p pageServer) serve(ctx context.Context) (string, error) {
	if p.settings.Page.Addr == "" {
		return "", nil
	}
	source, err := newPageSource(p.settings, p.connection)
	if err != nil {
		return "", err
	}
	source.journal.Forged = p.forged
	p.life.add("the page's connection", func(context.Context) error { source.close(); return nil })
	options := page.Options{Source: source, Token: p.settings.Page.Token.Reveal(), Logger: p.logger}
	server, err := page.Listen(ctx, p.settings.Page.Addr, p.anotherWillDo, options)
	if err != nil {
		return "", err
	}
	p.life.serve("the page", server)
	return server.Addr(), nil
}

// pageSource is what the page shows: what the workers, NATS, Redis and the journal tell. It changes nothing.
type pageSource struct {
	*asker
	journal journal.Reader
	options status.Options
}

// newPageSource makes a source with a connection to Redis of its own, which close ends.
func newPageSource(settings config.Config, connection *consume.Connection) (*pageSource, error) {
	asker, err := newAsker(settings, connection)
	if err != nil {
		return nil, err
	}
	return &pageSource{
		asker:   asker,
		journal: journal.Reader{JetStream: asker.js, Names: journalNames(settings)},
		options: statusOptions(settings, connection, asker.redis),
	}, nil
}

// Status says what the deployment does now.
func (s *pageSource) Status(ctx context.Context) (status.Status, error) {
	return status.Collect(ctx, s.options)
}

// Why says what became of the events that a text means.
func (s *pageSource) Why(ctx context.Context, text string, since time.Time) why.Answer {
	return s.finder().Find(ctx, why.Meanings(text, why.Question{Since: since}))[0]
}

// firstDecisions is how far back the decisions go that a page shows at once.
const firstDecisions = time.Minute

// Decisions follows the journal.
func (s *pageSource) Decisions(ctx context.Context) (<-chan []journal.Entry, error) {
	return s.journal.Follow(ctx, time.Now().Add(-firstDecisions))
}
