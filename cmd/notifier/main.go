// Command notifier throttles notifications: it takes events from NATS JetStream, lets through as many as the limits in
// Redis allow, and posts those to Slack.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1 // something did not work, such as a server that is missing
	exitUsage   = 2 // the command line or the settings are wrong
	exitPending = 3 // notifier provision --dry-run: something would be changed
)

// Set when a release is linked; otherwise taken from what Go records in the binary.
var (
	version  = ""
	revision = ""
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run turns a command line into an exit status. The first SIGTERM or SIGINT ends the command in good order, the second one
// ends it at once.
func run(arguments []string) int {
	ctx, stop := untilSignal()
	defer stop()

	root := newRoot()
	root.SetArgs(arguments)
	return exitStatus(root.ExecuteContext(ctx), os.Stderr)
}

// exitStatus prints what went wrong with a command, unless the command did.
func exitStatus(err error, problems io.Writer) int {
	if err == nil {
		return exitOK
	}
	if _, isUsage := errors.AsType[*usageError](err); isUsage {
		_, _ = fmt.Fprintln(problems, err)
		return exitUsage
	}
	if errors.Is(err, errWouldChange) {
		return exitPending
	}
	if !errors.Is(err, errReported) {
		_, _ = fmt.Fprintf(problems, "notifier: %v\n", err)
	}
	return exitFailure
}

// untilSignal returns a context that the first SIGTERM or SIGINT ends. The system's own handling is back before the context ends, so
// no second signal is lost.
func untilSignal() (ctx context.Context, stop func()) {
	signalled, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	ctx, end := context.WithCancelCause(context.Background())
	context.AfterFunc(signalled, func() {
		stop()
		end(context.Cause(signalled))
	})
	return ctx, stop
}

// usageError is a fault of the command line or of the settings.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// errReported is a failure that the command has already explained.
var errReported = errors.New("already reported")

// errWouldChange is the result of a dry run in which something would be changed.
var errWouldChange = errors.New("something would be changed")

// usageOf is a fault of a command line.
func usageOf(cmd *cobra.Command, fault error) error {
	return &usageError{fmt.Errorf("%w\nSee '%s --help'", fault, cmd.CommandPath())}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "notifier",
		Short: "Throttle notifications between NATS JetStream and Slack",
		Long: "notifier takes events from NATS JetStream, admits as many as the limits in Redis allow, and posts these to\n" +
			"Slack. NOTIFIER_* environment variables are its settings. Without a command it runs the worker.",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return runWorker(cmd.Context()) },
	}
	v, r, goVersion := buildInfo()
	root.Version = fmt.Sprintf("%s (revision %s, %s)", v, r, goVersion)
	root.SetVersionTemplate("notifier {{.Version}}\n")
	root.SetFlagErrorFunc(usageOf)
	root.AddCommand(newRunCommand(), newCheckCommand(), newProvisionCommand(), newPublishCommand(), newLimitsCommand(), newDLQCommand(), newSimulateCommand(),
		newIngestCommand(), newWhyCommand(), newStatusCommand(), newPageCommand(), newVersionCommand(), newHealthCommand())
	addRehearsals(root)
	root.InitDefaultCompletionCmd()
	addCompletions(root)
	complete(root)
	return root
}

// complete adds to a command and to all below it what they have in common. A command takes no arguments unless it says so. A wrong
// argument is a usage error, and names a command that is written nearly so. A command that has nothing to run prints its help.
func complete(command *cobra.Command) {
	check := command.Args
	if check == nil {
		check = cobra.NoArgs
		command.ValidArgsFunction = cobra.NoFileCompletions
	}
	command.Args = func(cmd *cobra.Command, arguments []string) error {
		if err := check(cmd, arguments); err != nil {
			if question := didYouMean(cmd, arguments); question != "" {
				err = fmt.Errorf("%w; %s", err, question)
			}
			return usageOf(cmd, err)
		}
		return nil
	}
	if !command.Runnable() {
		command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, below := range command.Commands() {
		complete(below)
	}
}

func newRunCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the worker",
		Long:  "Run the worker: take events, decide, deliver and settle them, until SIGTERM or SIGINT.",
		RunE:  func(cmd *cobra.Command, _ []string) error { return runWorker(cmd.Context()) },
	}
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "notifier %s\n", cmd.Root().Version)
			return err
		},
	}
}

// buildInfo is the version and revision as linked, else as Go recorded them.
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
