// Command notifier throttles notifications: it takes events from NATS JetStream, lets through as many as the limits in
// Redis allow, and posts those to Slack.
package main

import (
	"context"
	"errors"
	"fmt"
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
)

// Set when a release is linked; otherwise taken from what Go records in the binary.
var (
	version  = ""
	revision = ""
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run turns a command line into an exit status. The first SIGTERM or SIGINT ends the command in good order, a second one
// at once.
func run(arguments []string) int {
	ctx, stop := untilSignal()
	defer stop()

	root := newRoot()
	root.SetArgs(arguments)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if _, isUsage := errors.AsType[*usageError](err); isUsage {
		fmt.Fprintln(os.Stderr, err)
		return exitUsage
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintf(os.Stderr, "notifier: %v\n", err)
	}
	return exitFailure
}

// untilSignal returns a context that the first SIGTERM or SIGINT ends. By then the system's own handling is back, so that a second
// signal is not lost, however soon it comes.
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

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "notifier",
		Short: "Throttle notifications between NATS JetStream and Slack",
		Long: "notifier takes events from NATS JetStream, admits as many as the limits in Redis allow, and posts these to\n" +
			"Slack. NOTIFIER_* environment variables are its settings. Without a command it runs the worker.\n\n" +
			"Try it without any server: notifier dev --storm 50",
		Args:          noArguments,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return runWorker(cmd.Context()) },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
	})
	root.AddCommand(newRunCommand(), newCheckCommand(), newPublishCommand(), newLimitsCommand(), newDLQCommand(), newSimulateCommand(),
		newVersionCommand(), newHealthCommand())
	addDevCommand(root)
	addCompletionCommand(root)
	return root
}

// addCompletionCommand adds cobra's own, with its usage errors as ours.
func addCompletionCommand(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	completion.Args = noArguments
	completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, shell := range completion.Commands() {
		shell.Args = noArguments
	}
}

// noArguments is cobra's check, as a usage error.
func noArguments(cmd *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("unknown command %q for %q\nSee '%s --help'", arguments[0], cmd.CommandPath(), cmd.CommandPath())}
}

func newRunCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the worker",
		Long:  "Run the worker: take events, decide, deliver and settle them, until SIGTERM or SIGINT.",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runWorker(cmd.Context()) },
	}
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, r, goVersion := buildInfo()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "notifier %s (revision %s, %s)\n", v, r, goVersion)
			return err
		},
	}
}

// buildInfo is the version and revision as linked, else as Go recorded them.
func buildInfo() (v, r, goVersion string) {
	v, r, goVersion = version, revision, "unknown"
	info, known := debug.ReadBuildInfo()
	if known {
		goVersion = info.GoVersion
		if v == "" {
			v = info.Main.Version
		}
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" && r == "" {
				r = setting.Value
			}
		}
	}
	if v == "" {
		v = "(devel)"
	}
	if r == "" {
		r = "unknown"
	}
	return v, r, goVersion
}
