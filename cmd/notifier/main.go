// Command notifier throttles notifications: it takes events from NATS JetStream, applies the limits in Redis, and posts the admitted events
// to Slack.
//
// This package connects the parts. Package cli has the commands.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/cli"
)

// Set by the linker for a release; otherwise read from the build information of the binary.
var (
	version  = ""
	revision = ""
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run executes a command line, and returns the exit status. The first SIGTERM or SIGINT makes the command shut down in good order, the second
// one ends the process at once.
func run(arguments []string) int {
	ctx, stop := untilSignal()
	defer stop()

	root := newRoot()
	root.SetArgs(arguments)
	return cli.ExitStatus(root.ExecuteContext(ctx), os.Stderr)
}

func newRoot() *cobra.Command {
	v, r, goVersion := buildInfo()
	return cli.New(cli.Programs{
		Worker: runWorker, Ingest: runIngest, Page: runPage,
		Version: fmt.Sprintf("%s (revision %s, %s)", v, r, goVersion), Rehearsals: rehearsals(),
	})
}

// untilSignal returns a context that the first SIGTERM or SIGINT ends. The default handling of signals is restored before the context ends,
// so no second signal is lost.
func untilSignal() (ctx context.Context, stop func()) {
	signalled, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	ctx, end := context.WithCancelCause(context.Background())
	context.AfterFunc(signalled, func() {
		stop()
		end(context.Cause(signalled))
	})
	return ctx, stop
}

// buildInfo returns the linked version and revision. Values that were not linked come from Go's build information.
func buildInfo() (v, r, goVersion string) {
	info, known := debug.ReadBuildInfo()
	if !known {
		info = new(debug.BuildInfo)
	}
	recorded := ""
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			recorded = setting.Value
		}
	}
	return cmp.Or(version, info.Main.Version, "(devel)"), cmp.Or(revision, recorded, "unknown"), cmp.Or(info.GoVersion, "unknown")
}
