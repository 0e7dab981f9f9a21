// Package cli has the commands of the notifier: their flags, help, output and errors.
//
// [New] returns the root command. Commands that run for long, such as the worker, are functions of the caller, who connects the parts; see
// [Programs]. All other commands read the settings of the environment, connect, ask or change something, print and end. Each line that a
// command prints about producers' texts is safe for a terminal. [ExitStatus] turns the error of a command into its exit status.
//
// One command line is executed at a time: a command keeps its flags in its own variables.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

// Exit statuses.
const (
	OK      = 0
	Failure = 1 // something failed, such as a server that is down
	Usage   = 2 // the command line or the settings are wrong
	Pending = 3 // notifier provision --dry-run: something would be changed
)

// UsageError is a fault of the command line or of the settings.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

// errReported is a failure that the command has already printed. It is joined with no other error, which would then not be printed.
var errReported = errors.New("already reported")

// errWouldChange ends a dry run that found something to change.
var errWouldChange = errors.New("something would be changed")

// ExitStatus prints the error of a command, unless the command has printed it, and returns the exit status.
func ExitStatus(err error, problems io.Writer) int {
	if err == nil {
		return OK
	}
	if _, isUsage := errors.AsType[*UsageError](err); isUsage {
		_, _ = fmt.Fprintln(problems, err)
		return Usage
	}
	if errors.Is(err, errWouldChange) {
		return Pending
	}
	if !errors.Is(err, errReported) {
		_, _ = fmt.Fprintf(problems, "notifier: %v\n", err)
	}
	return Failure
}

// usageOf returns a fault of a command line, with a hint at the help.
func usageOf(cmd *cobra.Command, fault error) error {
	return &UsageError{fmt.Errorf("%w\nSee '%s --help'", fault, cmd.CommandPath())}
}

// flagFault returns a fault of a flag. It names what a number, a switch or a time may be, for which the parser names a function of Go.
func flagFault(cmd *cobra.Command, fault error) error {
	if flag, _, isTime := strings.Cut(fault.Error(), " flag: time: "); isTime {
		return usageOf(cmd, errors.New(flag+" flag: expected a number with a unit, such as 10s or 5m"))
	}
	unparsed, found := errors.AsType[*strconv.NumError](fault)
	if !found {
		return usageOf(cmd, fault)
	}
	expected := "expected a whole number"
	switch {
	case unparsed.Func == "ParseBool":
		expected = "expected true or false"
	case errors.Is(unparsed, strconv.ErrRange):
		expected = "the number is too large"
	}
	return usageOf(cmd, errors.New(strings.TrimSuffix(fault.Error(), unparsed.Error())+expected))
}

// Programs are the commands that run until their context ends, and the version of this build.
type Programs struct {
	Worker  func(ctx context.Context) error
	Ingest  func(ctx context.Context) error
	Page    func(ctx context.Context, out io.Writer) error
	Version string // as "notifier version" prints it

	Rehearsals []*cobra.Command // commands without a deployment; the image has none
}

// New returns the root command.
func New(p Programs) *cobra.Command {
	runWorker := func(cmd *cobra.Command, _ []string) error { return p.Worker(cmd.Context()) }
	root := &cobra.Command{
		Use:   "notifier",
		Short: "Throttle notifications between NATS JetStream and Slack",
		Long: "notifier takes events from NATS JetStream, admits as many as the limits in Redis allow, and posts these to\n" +
			"Slack. NOTIFIER_* environment variables are its settings. Without a command it runs the worker.",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          runWorker,
		Version:       p.Version,
	}
	if len(p.Rehearsals) > 0 {
		root.Long += "\n\nTry it without any server: notifier dev --storm 50"
	}
	root.SetVersionTemplate("notifier {{.Version}}\n")
	root.SetFlagErrorFunc(flagFault)
	root.AddCommand(
		&cobra.Command{
			Use:   "run",
			Short: "Run the worker",
			Long:  "Run the worker: take events, decide, deliver and settle them, until SIGTERM, SIGINT or SIGHUP.",
			RunE:  runWorker,
		},
		&cobra.Command{
			Use:   "version",
			Short: "Print the version",
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "notifier %s\n", p.Version)
				return err
			},
		},
		newCheckCommand(), newProvisionCommand(), newPublishCommand(), newLimitsCommand(), newDLQCommand(), newDelayedCommand(), newSimulateCommand(),
		newIngestCommand(p.Ingest), newWhyCommand(), newStatusCommand(), newPageCommand(p.Page), newHealthCommand())
	root.AddCommand(newMuteCommands()...)
	root.AddCommand(p.Rehearsals...)
	root.InitDefaultCompletionCmd()
	addCompletions(root)
	complete(root)
	rejectUnknownTopics(root)
	return root
}

// complete applies the shared defaults to a command and all its subcommands. A command takes no arguments unless it declares them. A wrong
// argument is a usage error, with a suggestion if a command has a similar name. A command without a function of its own prints its help.
func complete(command *cobra.Command) {
	check := command.Args
	if check == nil {
		check = cobra.NoArgs
		command.ValidArgsFunction = cobra.NoFileCompletions
	}
	command.Args = func(cmd *cobra.Command, arguments []string) error {
		return argumentFault(cmd, arguments, check(cmd, arguments))
	}
	if !command.Runnable() {
		command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, below := range command.Commands() {
		complete(below)
	}
}

// argumentFault returns a fault of the arguments as a usage error, with a suggestion if a command has a similar name.
func argumentFault(cmd *cobra.Command, arguments []string, fault error) error {
	if fault == nil {
		return nil
	}
	if question := didYouMean(cmd, arguments); question != "" {
		fault = fmt.Errorf("%w; %s", fault, question)
	}
	return usageOf(cmd, fault)
}

// rejectUnknownTopics has the command help fail for words that name no command. The library prints the help of the program then.
func rejectUnknownTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	below(root, "help").Args = func(_ *cobra.Command, words []string) error {
		topic, rest, err := root.Find(words)
		if err == nil {
			err = cobra.NoArgs(topic, rest)
		}
		return argumentFault(topic, rest, err)
	}
}

// numberOfArguments bounds the number of arguments. Its error shows which ones are expected.
func numberOfArguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		if len(arguments) < least || len(arguments) > most {
			return fmt.Errorf("expected: %s", cmd.UseLine())
		}
		return nil
	}
}

func notNegative(limit *int) cobra.PositionalArgs {
	return func(*cobra.Command, []string) error {
		if *limit < 0 {
			return errors.New("--limit is below 0")
		}
		return nil
	}
}

// emptyFlag returns an error if one of the flags is set to an empty text. An unset variable of a shell would otherwise select more than was meant.
func emptyFlag(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		flag := cmd.Flags().Lookup(name)
		if text := flag.Value.String(); flag.Changed && (text == "" || text == "[]" && flag.Value.Type() == "stringSlice") {
			return fmt.Errorf("--%s is empty", name)
		}
	}
	return nil
}

// Settings loads the settings. Its error is a [UsageError].
func Settings(o config.Options) (settings config.Config, warnings []string, err error) {
	if settings, warnings, err = config.Load(o); err != nil {
		return settings, nil, &UsageError{err}
	}
	if err = setup.CheckRedisURL(settings.Redis); err != nil {
		return settings, nil, &UsageError{err}
	}
	return settings, warnings, nil
}

// commandSettings loads the settings of a command that posts nothing.
func commandSettings() (config.Config, error) {
	settings, _, err := Settings(config.Options{Sink: config.SinkConsole})
	return settings, err
}

// withNATS loads the settings, connects to NATS, runs a command's work, and closes the connection.
func withNATS(ctx context.Context, work func(settings config.Config, connection *stream.Connection) error) error {
	settings, err := commandSettings()
	if err != nil {
		return err
	}
	connection, err := setup.DialNATS(ctx, settings.NATS)
	if err != nil {
		return fmt.Errorf("nats: %s", setup.ExplainNATS(err))
	}
	defer connection.Conn.Close()
	return work(settings, connection)
}

// somebodyToAsk fails if a command has to ask and standard input is no terminal. A flag that is set answers in advance.
func somebodyToAsk(agreed ...*bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, _ []string) error {
		isAgreed := slices.ContainsFunc(agreed, func(set *bool) bool { return *set })
		if !isAgreed && !screen.IsTerminal(cmd.InOrStdin()) {
			return errors.New("standard input is no terminal: confirm with --yes")
		}
		return nil
	}
}

// printList prints a table, and how many more rows there are. If the table has its heading alone, it prints none instead.
func printList(out io.Writer, rows [][]string, none string, more int) error {
	if len(rows) == 1 {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	if err := screen.PrintTable(out, rows); err != nil || more == 0 {
		return err
	}
	_, err := fmt.Fprintf(out, "(%d more)\n", more)
	return err
}

// duration is the value of a flag, in the notation of the settings.
type duration model.Duration

// durationVar defines a flag without a default.
func durationVar(cmd *cobra.Command, d *duration, name, usage string) {
	cmd.Flags().Var(d, name, usage)
	cmd.Flags().Lookup(name).DefValue = "" // help shows no default
}

// Set implements pflag.Value.
func (d *duration) Set(text string) error {
	parsed, err := model.ParseDuration(text)
	if err != nil {
		return errors.New("expected a number with a unit, such as 30m, 2h or 7d")
	}
	*d = duration(parsed)
	return nil
}

func (d *duration) String() string { return model.Duration(*d).String() }

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }
