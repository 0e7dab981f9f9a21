package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

func newProvisionCommand() *cobra.Command {
	dryRun := false
	command := &cobra.Command{
		Use:   "provision",
		Short: "Create the streams, consumers and the limits bucket, or update them",
		Long: "Create what workers with NOTIFIER_NATS_PROVISION=true would create: streams, consumers, and the bucket of live\n" +
			"limits. Update what exists and differs from the settings: bounds, ages, filters, acknowledgement waits. Workers never\n" +
			"update anything. A lower bound may remove stored messages, so look at --dry-run first. Each line names one stream,\n" +
			"consumer or bucket and what was done. The command may be repeated, and needs neither Redis nor Slack.\n" +
			"The status is 1 if something failed. With --dry-run nothing is changed, and the status is 3 if something would be.",
		Example: "  NOTIFIER_NATS_USER=provisioner NOTIFIER_NATS_INBOX=_INBOX_provisioner notifier provision --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withNATS(cmd.Context(), func(settings config.Config, connection *stream.Connection) error {
				p := provisioning{settings: settings, connection: connection, dryRun: dryRun, out: cmd.OutOrStdout()}
				return p.run(cmd.Context())
			})
		},
	}
	command.Flags().BoolVar(&dryRun, "dry-run", false, "report what would be done, and change nothing")
	return command
}

type provisioning struct {
	settings   config.Config
	connection *stream.Connection
	dryRun     bool
	out        io.Writer

	failed, changed bool
}

func (p *provisioning) run(ctx context.Context) error {
	js := setup.JetStream(p.connection)
	streams := stream.Provisioning{JetStream: js, Names: setup.Names(p.settings), AckWait: p.settings.NATS.AckWait, MaxBody: p.settings.Event.MaxBytes, DryRun: p.dryRun}
	for _, done := range streams.Apply(ctx) {
		p.print(done)
	}
	options := setup.Overrides(p.settings, slog.New(slog.DiscardHandler))
	options.Provision = !p.dryRun
	bucket, err := overrides.Apply(ctx, js, options)
	p.print(stream.Provisioned{Subject: "bucket " + options.Name, Created: bucket.Created, Changes: bucket.Changes, Err: err})
	switch {
	case p.failed:
		return errReported
	case p.dryRun && p.changed:
		return errWouldChange
	}
	return nil
}

func (p *provisioning) print(done stream.Provisioned) {
	word, detail := "unchanged", strings.Join(done.Changes, "; ")
	switch {
	case done.Err != nil:
		p.failed = true
		word, detail = "FAILED", setup.ExplainDenied(done.Err, p.connection).Error()
	case done.Created:
		p.changed = true
		word = "created"
	case len(done.Changes) > 0:
		p.changed = true
		word = "updated"
	}
	if p.dryRun && done.Err == nil {
		word = map[string]string{"created": "would create", "updated": "would update", "unchanged": "unchanged"}[word]
	}
	if detail != "" {
		detail = ": " + detail
	}
	_, _ = fmt.Fprintf(p.out, "%-12s  %s%s\n", word, done.Subject, detail)
}
