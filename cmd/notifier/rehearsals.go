//go:build !nodev

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/dev"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

// rehearsals returns the commands that need no deployment.
func rehearsals() []*cobra.Command {
	return []*cobra.Command{dev.NewCommand(runDemonstration), cli.NewSlackStub()}
}

// runDemonstration runs the worker of the demonstration.
func runDemonstration(ctx context.Context, d dev.Worker) error {
	w := newWorker(d.Settings, setup.SinkOptions{Console: d.Console, Colour: d.Colour}, newLogger(d.Log, d.Settings, d.Warnings))
	w.started = func(s *servers, at addresses) {
		d.Started(dev.Running{Admin: at.admin, Page: at.page, Ingest: at.ingest, Metrics: s.metrics.Registry()})
	}
	return w.run(ctx)
}
