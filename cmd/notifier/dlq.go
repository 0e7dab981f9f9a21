package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
)

// defaultLetters is how many dead letters a list shows unless told otherwise.
const defaultLetters = 50

func newDLQCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "dlq",
		Short: "List dead letters, send them on again, or drop them",
		Long: "Dead letters are events that could never be delivered as they were: Slack rejected the message, or the body is\n" +
			"nothing that the worker takes. They wait in a stream of their own (NOTIFIER_DLQ_STREAM) until somebody looks.\n\n" +
			"A letter goes by its number, which dlq list shows, or by the ID of its event.",
		Example: "  notifier dlq list --reason slack_rejected --since 24h\n" +
			"  notifier dlq show 17\n" +
			"  notifier dlq replay --reason slack_rejected --dry-run\n" +
			"  notifier dlq replay 17 order-4711\n" +
			"  notifier dlq drop --reason bad_json",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(newDLQListCommand(), newDLQShowCommand(), newDLQReplayCommand(), newDLQDropCommand())
	return command
}

// letterFlags say which letters are meant, and how to print.
type letterFlags struct {
	reasons  []string
	category string
	since    age
	json     bool
}

func (f *letterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.reasons, "reason", nil, "only those with this reason, such as slack_rejected; may be repeated")
	flags.StringVar(&f.category, "category", "", "only those of this category and all below it, such as payments")
	flags.Var(&f.since, "since", "only those that are not older than this, such as 24h or 7d")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
}

func (f *letterFlags) check(cmd *cobra.Command, _ []string) error {
	for _, reason := range f.reasons {
		if !slices.Contains(event.Reasons(), event.Reason(reason)) {
			return usageOf(cmd, fmt.Sprintf("--reason: %q is not one of %s", reason, joinReasons()))
		}
	}
	if f.category != "" {
		if err := event.ValidatePath(f.category); err != nil {
			return usageOf(cmd, fmt.Sprintf("--category: %v", err))
		}
	}
	return nil
}

func (f *letterFlags) filter(ids []string) deadletters.Filter {
	filter := deadletters.Filter{Reasons: f.reasons, Under: f.category, IDs: ids}
	if f.since > 0 {
		filter.Since = time.Now().Add(-time.Duration(f.since))
	}
	return filter
}

// selects tells whether less than everything is meant.
func (f *letterFlags) selects(ids []string) bool {
	return len(f.reasons) > 0 || f.category != "" || f.since > 0 || len(ids) > 0
}

func joinReasons() string {
	var reasons []string
	for _, reason := range event.Reasons() {
		reasons = append(reasons, string(reason))
	}
	return strings.Join(reasons, ", ")
}

func usageOf(cmd *cobra.Command, fault string) error {
	return &usageError{fmt.Errorf("%s\nSee '%s --help'", fault, cmd.CommandPath())}
}

// age is a duration that may start with days, such as 7d or 1d12h.
type age time.Duration

func (a *age) String() string { return "" } // no default to show
func (a *age) Type() string   { return "age" }

// Set reads the flag's value.
func (a *age) Set(text string) error {
	fault := errors.New("not an age above 0; expected one such as 30m, 24h or 7d")
	var days time.Duration
	rest := text
	if before, after, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseUint(before, 10, 16)
		if err != nil {
			return fault
		}
		days, rest = time.Duration(n)*24*time.Hour, after
	}
	if rest != "" || days == 0 {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 {
			return fault
		}
		days += d
	}
	if days <= 0 {
		return fault
	}
	*a = age(days)
	return nil
}

func newDLQListCommand() *cobra.Command {
	var f letterFlags
	limit := 0
	command := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the newest first",
		Long: "List dead letters, the newest first. Nothing is taken from the stream.\n\n" +
			"There are at most NOTIFIER_DLQ_MAX_PER_SUBJECT of each reason and first-level category, and NOTIFIER_DLQ_MAX_BYTES\n" +
			"of all: newer ones push out older ones, and the list says so.\n\n" +
			"A letter is marked as interrupted if a replay of it was begun and did not end, or is under way.",
		Args: allOf(noArguments, f.check, func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usageOf(cmd, "--limit is below 0")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withLetters(cmd, func(ctx context.Context, d *dlqCommand) error { return d.list(ctx, f, limit) })
		},
	}
	f.add(command)
	command.Flags().IntVar(&limit, "limit", defaultLetters, "how many to show; 0 for all")
	return command
}

func newDLQShowCommand() *cobra.Command {
	asJSON := false
	command := &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter with its headers and its body as it came",
		Long: "Show a dead letter, or all of an event: its headers and its body as it came. On a terminal, what would command\n" +
			"it is left out; a pipe gets every byte. With --json a body that is not UTF-8 is in body_base64.",
		Args: exactArguments(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return withLetters(cmd, func(ctx context.Context, d *dlqCommand) error { return d.show(ctx, arguments[0], asJSON) })
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return command
}

// changeFlags say what to do with which letters.
type changeFlags struct {
	letterFlags
	all, dryRun bool
	inDoubt     bool // of a replay
	yes         bool // of a drop
}

func (f *changeFlags) add(cmd *cobra.Command) {
	f.letterFlags.add(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "all of them")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print which letters are meant, and change nothing")
}

func (f *changeFlags) check(cmd *cobra.Command, ids []string) error {
	if err := f.letterFlags.check(cmd, ids); err != nil {
		return err
	}
	switch selected := f.selects(ids); {
	case !selected && !f.all:
		return usageOf(cmd, "which letters? Name them, or use --reason, --category, --since or --all")
	case selected && f.all:
		return usageOf(cmd, "--all goes with nothing that selects")
	}
	return nil
}

func newDLQReplayCommand() *cobra.Command {
	var f changeFlags
	command := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Send dead letters on again",
		Long: "Hand the events of dead letters to the workers again and remove the letters, the oldest first. An event keeps\n" +
			"its ID, so one that was in fact delivered is a duplicate and does not go out twice. It goes through the limits\n" +
			"like any event, waits anew where its category waits for slots, and becomes a dead letter again if nothing was\n" +
			"mended. Of a body that was larger than NOTIFIER_EVENT_MAX_BYTES only the beginning is kept: it cannot be replayed.\n\n" +
			"A replay that was interrupted can be run again: nothing is replayed twice. If it was killed in the middle of a\n" +
			"letter, and it cannot be told any more whether that one was sent on, the letter stays and is reported as in\n" +
			"doubt. With --in-doubt it is sent on again, at the risk that its event goes through the limits a second time.\n\n" +
			"That takes the rights that the user replayer of configs/nats/notifier.conf has.",
		Args: f.check,
		RunE: func(cmd *cobra.Command, ids []string) error {
			return withLetters(cmd, func(ctx context.Context, d *dlqCommand) error { return d.replay(ctx, f, ids) })
		},
	}
	f.add(command)
	command.Flags().BoolVar(&f.inDoubt, "in-doubt", false, "send on again what an interrupted replay may have sent on")
	return command
}

func newDLQDropCommand() *cobra.Command {
	var f changeFlags
	command := &cobra.Command{
		Use:   "drop [ID...]",
		Short: "Remove dead letters for good",
		Args: func(cmd *cobra.Command, ids []string) error {
			if err := f.check(cmd, ids); err != nil {
				return err
			}
			if !f.yes && !f.dryRun && !hasTerminal(cmd.InOrStdin()) {
				return usageOf(cmd, "there is nobody to ask: use --yes")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, ids []string) error {
			return withLetters(cmd, func(ctx context.Context, d *dlqCommand) error { return d.drop(ctx, f, ids) })
		},
	}
	f.add(command)
	command.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	return command
}

// allOf is what all the checks find.
func allOf(checks ...cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		for _, check := range checks {
			if err := check(cmd, arguments); err != nil {
				return err
			}
		}
		return nil
	}
}

// hasTerminal tells whether a person is at the other end of an input or output.
func hasTerminal(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// dlqCommand is what the commands work with.
type dlqCommand struct {
	store    *deadletters.Store
	stream   string
	in       io.Reader
	out      io.Writer
	problems io.Writer
	bar      *progressBar
}

func withLetters(cmd *cobra.Command, run func(ctx context.Context, d *dlqCommand) error) error {
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		return &usageError{err}
	}
	ctx := cmd.Context()
	connection, err := connectNATS(settings.NATS, slog.New(slog.DiscardHandler))
	if err == nil {
		defer connection.Conn.Close()
		err = awaitConnection(ctx, connection)
	}
	if err != nil {
		return fmt.Errorf("nats: %s", explainNATS(err))
	}
	d := &dlqCommand{
		stream: settings.DLQ.Stream, in: cmd.InOrStdin(), out: cmd.OutOrStdout(), problems: cmd.ErrOrStderr(),
		bar: newProgressBar(cmd.ErrOrStderr()),
	}
	d.store, err = deadletters.Open(ctx, connection.Conn, deadletters.Options{
		Stream:  settings.DLQ.Stream,
		Subject: settings.DLQ.Subject,
		Room:    settings.Room.Stream,
		Decoder: event.Decoder{Prefix: settings.NATS.Subject, MaxBytes: settings.Event.MaxBytes},
	})
	if err == nil {
		err = run(ctx, d)
		d.bar.clear()
	}
	return explainLetters(err, connection)
}

// explainLetters says what is behind an error: a stream that workers create, or a right that is missing, which looks like
// a request that nobody answers.
func explainLetters(err error, connection *consume.Connection) error {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w (check NOTIFIER_DLQ_STREAM and NOTIFIER_ROOM_STREAM; a worker with NOTIFIER_NATS_PROVISION=true creates the streams)", err)
	case errors.Is(err, context.DeadlineExceeded):
		if len(connection.Denied()) == 0 {
			return fmt.Errorf("%w (is this user permitted to do that? The user replayer of configs/nats/notifier.conf has the rights)", err)
		}
		return explainDenied(err, connection)
	}
	return err
}

// explainDenied adds to an error what the server did not permit: to whoever asked it looks like no answer.
func explainDenied(err error, connection *consume.Connection) error {
	denied := strings.Join(connection.Denied(), "; ")
	if !errors.Is(err, context.DeadlineExceeded) || denied == "" {
		return err
	}
	if strings.Contains(denied, "for Subscription to") {
		denied += "; NOTIFIER_NATS_INBOX is the prefix below which this user may listen"
	}
	return fmt.Errorf("%w (%s)", err, denied)
}

// read returns the letters that are meant, the oldest first, and reports what was named and is not there.
func (d *dlqCommand) read(ctx context.Context, filter deadletters.Filter) (all, chosen []deadletters.Letter, missing int, err error) {
	all, err = d.store.List(ctx, d.bar.stage("reading dead letters"))
	d.bar.clear()
	if err != nil {
		return nil, nil, 0, err
	}
	chosen, absent, err := filter.Select(all)
	for _, id := range absent {
		_, _ = fmt.Fprintf(d.problems, "%s: %v\n", oneLine(id), deadletters.ErrNotFound)
	}
	return all, chosen, len(absent), err
}

func (d *dlqCommand) list(ctx context.Context, f letterFlags, limit int) error {
	all, letters, _, err := d.read(ctx, f.filter(nil))
	if err != nil {
		return err
	}
	total, pushedOut := len(letters), 0
	for _, l := range all {
		pushedOut += l.PushedOut
	}
	slices.Reverse(letters)
	if limit > 0 {
		letters = letters[:min(limit, total)]
	}
	if f.json {
		return d.printJSON(letterList{Stream: d.stream, Total: total, PushedOut: pushedOut, Letters: append([]deadletters.Letter{}, letters...)})
	}
	if err := d.printTable(letters, total); err != nil || pushedOut == 0 {
		return err
	}
	_, err = fmt.Fprintf(d.out, "(older ones are gone: these have pushed out %s)\n", count(pushedOut))
	return err
}

func (d *dlqCommand) show(ctx context.Context, id string, asJSON bool) error {
	numbers, err := d.numbers(ctx, id)
	if err != nil {
		return err
	}
	contents := contentList{Stream: d.stream, Letters: []shownLetter{}}
	for i, number := range numbers {
		content, err := d.store.Read(ctx, number)
		if err != nil {
			return fmt.Errorf("%s: %w", oneLine(id), err)
		}
		if asJSON {
			contents.Letters = append(contents.Letters, shown(content))
			continue
		}
		if err := d.printLetter(content, i > 0); err != nil {
			return err
		}
	}
	if asJSON {
		return d.printJSON(contents)
	}
	return nil
}

// numbers are those of the letters that an ID names. One that is a letter's number needs no search.
func (d *dlqCommand) numbers(ctx context.Context, id string) ([]uint64, error) {
	if number, err := strconv.ParseUint(id, 10, 64); err == nil {
		if _, err := d.store.Read(ctx, number); !errors.Is(err, deadletters.ErrNotFound) {
			return []uint64{number}, err
		}
	}
	_, letters, missing, err := d.read(ctx, deadletters.Filter{IDs: []string{id}})
	if err == nil && missing > 0 {
		err = errReported
	}
	var numbers []uint64
	for _, l := range letters {
		numbers = append(numbers, l.Number)
	}
	return numbers, err
}

// replay sends letters on until the context ends, and then finishes the one in hand.
func (d *dlqCommand) replay(ctx context.Context, f changeFlags, ids []string) error {
	all, letters, missing, err := d.read(ctx, f.filter(ids))
	if err != nil {
		return err
	}
	if f.dryRun {
		return d.announce("replay", f.json, letters, missing)
	}
	results := changes{Action: "replay", Letters: []change{}, Missing: missing}
	err = d.each(ctx, &results, "replaying", letters, func(ctx context.Context, l deadletters.Letter) (string, error) {
		outcome, err := d.store.Replay(ctx, l, f.inDoubt)
		return string(outcome), err
	})
	if err == nil {
		err = d.store.Tidy(ctx, all)
	}
	return errors.Join(d.report(f.json, results), err)
}

func (d *dlqCommand) drop(ctx context.Context, f changeFlags, ids []string) error {
	all, letters, missing, err := d.read(ctx, f.filter(ids))
	if err != nil {
		return err
	}
	if f.dryRun {
		return d.announce("drop", f.json, letters, missing)
	}
	if !f.yes && len(letters) > 0 {
		if agreed, err := confirm(ctx, d.in, d.problems, fmt.Sprintf("Drop %s for good?", count(len(letters)))); !agreed {
			return err
		}
	}
	results := changes{Action: "drop", Letters: []change{}, Missing: missing}
	err = d.each(ctx, &results, "dropping", letters, func(ctx context.Context, l deadletters.Letter) (string, error) {
		return outcomeDropped, d.store.Drop(ctx, l)
	})
	if err == nil {
		err = d.store.Tidy(ctx, all)
	}
	return errors.Join(d.report(f.json, results), err)
}

// outcomeDropped is what becomes of a letter that is dropped.
const outcomeDropped = "dropped"

// each does something to letter after letter, and notes what came out. An error ends it, unless it is about that letter
// alone. When the context ends, what was begun is finished.
func (d *dlqCommand) each(
	ctx context.Context, results *changes, name string, letters []deadletters.Letter,
	do func(context.Context, deadletters.Letter) (outcome string, err error),
) error {
	progress := d.bar.stage(name)
	defer d.bar.clear()
	for i, l := range letters {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %s left", count(len(letters)-i))
		}
		outcome, err := do(context.WithoutCancel(ctx), l)
		if errors.Is(err, deadletters.ErrUnfit) {
			outcome = outcomeUnfit
		} else if err != nil {
			return fmt.Errorf("letter %d: %w; %s left", l.Number, err, count(len(letters)-i))
		}
		results.note(l, outcome, err)
		progress(int64(i+1), int64(len(letters)))
	}
	return nil
}

// confirm asks a person. Only a yes is one.
func confirm(ctx context.Context, in io.Reader, out io.Writer, question string) (bool, error) {
	_, _ = fmt.Fprintf(out, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // a terminal at which nobody types cannot be interrupted
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		return line == "y" || line == "yes", nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
