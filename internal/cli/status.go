package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
)

const watchStatusEvery = time.Second

type statusCommand struct {
	watch, asJSON bool
	out           io.Writer
}

func newStatusCommand() *cobra.Command {
	s := &statusCommand{}
	command := &cobra.Command{
		Use:   "status",
		Short: "Show what the whole deployment does now",
		Long: "Ask all workers for a report of themselves, and NATS and Redis. Show on one screen, what is full or faulty first:\n" +
			"workers that are not ready, settings that differ between them, the limits that are full or nearly so, suppressed\n" +
			"categories, the backlog, dead letters, Redis and NATS, the workers and their last minute, channels, and limits that\n" +
			"were changed while workers run. The limits are those of the workers, whatever the settings here are.\n\n" +
			"The command changes nothing and takes no event. The status is 1 if no worker answers.",
		Example: "  notifier status\n  notifier status --watch\n  notifier status --json | jq '.workers[].ready'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.out = cmd.OutOrStdout()
			return withNATS(cmd.Context(), func(settings config.Config, connection *stream.Connection) error {
				return s.run(cmd.Context(), settings, connection)
			})
		},
	}
	command.Flags().BoolVar(&s.watch, "watch", false, "draw it again each second until Ctrl-C; on a terminal in place, as much as fits")
	command.Flags().BoolVar(&s.asJSON, "json", false, "print it as one line of JSON")
	return command
}

func (s *statusCommand) run(ctx context.Context, settings config.Config, connection *stream.Connection) error {
	client, err := setup.Redis(settings.Redis)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	options := inspect.StatusOptions(settings, connection, client)
	if s.watch {
		return s.follow(ctx, options)
	}
	shown, err := status.Collect(ctx, options)
	if err != nil {
		return err
	}
	if err := s.print(shown); err != nil {
		return err
	}
	if len(shown.Workers) == 0 {
		return setup.WithDenied(errors.New("no worker answers; a worker of an older version, or one with another NOTIFIER_REDIS_PREFIX, does not"), connection)
	}
	return nil
}

// follow prints the status each second until the context ends. On a terminal it always fits the present size.
func (s *statusCommand) follow(ctx context.Context, options status.Options) error {
	show := s.print
	pane := screen.NewPane(s.out)
	defer pane.Close()
	if pane.IsDrawn() && !s.asJSON {
		show = func(shown status.Status) error {
			pane.Show(func(width, height int) []string { return StatusRows(shown, width, height) })
			return nil
		}
	}
	again := time.NewTicker(watchStatusEvery)
	defer again.Stop()
	for {
		shown, err := status.Collect(ctx, options)
		if ctx.Err() != nil {
			return nil // Ctrl-C ends it in good order
		}
		if err != nil {
			return err
		}
		if err := show(shown); err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *statusCommand) print(shown status.Status) error {
	if s.asJSON {
		return screen.PrintJSON(s.out, shown)
	}
	text := statusText(shown, screen.Width(s.out))
	if s.watch {
		text += "\n"
	}
	_, err := io.WriteString(s.out, text)
	return err
}
