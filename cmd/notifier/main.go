// Command notifier throttles notifications: it takes events from NATS JetStream, applies the limits in Redis, and posts the admitted events
// to Slack.
//
// This package connects the parts. Package cli has the commands.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

// Set by the linker for a release; otherwise read from the build information of the binary.
var (
	version  = ""
	revision = ""
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run executes a command line, and returns the exit status. The first SIGTERM, SIGINT or SIGHUP makes the command shut down gracefully, a
// second SIGTERM or SIGINT ends the process at once.
func run(arguments []string) int {
	ctx, stop := untilSignal()
	defer stop()

	setup.LogRedis(slog.New(slog.DiscardHandler)) // a worker logs the messages of its clients
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

// untilSignal returns a context that the first SIGTERM, SIGINT or SIGHUP ends. The default handling of signals is restored before the context
// ends, so no second signal is lost. Further SIGHUPs are ignored: the shell and the kernel may each send one when a terminal closes. A SIGHUP
// that is ignored from the start stays ignored, for nohup. The reader of the log may have ended by the same Ctrl-C, so SIGPIPE must not end the
// process while it shuts down.
func untilSignal() (ctx context.Context, stop func()) {
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	signalled, stop := signal.NotifyContext(context.Background(), signals...)
	ctx, end := context.WithCancelCause(context.Background())
	context.AfterFunc(signalled, func() {
		signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
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
