package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

// defaultLetters is how many dead letters a list shows unless told otherwise.
const defaultLetters = 50

func newDLQCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "dlq",
		Short: "List, replay or drop dead letters",
		Long: "Dead letters are events that cannot be delivered: Slack rejected the message, or the worker cannot decode the\n" +
			"body. They are kept in a stream of their own (NOTIFIER_DLQ_STREAM).\n\n" +
			"ID is the number of a letter, which dlq list shows, or the ID of its event.",
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
	since    model.Duration
	json     bool
}

func (f *letterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.reasons, "reason", nil, "only letters with this reason, such as slack_rejected; may be repeated")
	flags.StringVar(&f.category, "category", "", "only letters of this category and all below it, such as payments")
	flags.Var(&f.since, "since", "only letters that are not older than this, such as 24h or 7d")
	flags.Lookup("since").DefValue = "" // there is no default to show
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
	if cmd.Flags().Changed("since") && f.since == 0 {
		return usageOf(cmd, "--since is 0; expected an age such as 30m, 24h or 7d")
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

func newDLQListCommand() *cobra.Command {
	var f letterFlags
	limit := 0
	command := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the newest first",
		Long: "List dead letters, the newest first. The stream keeps them.\n\n" +
			"The stream has at most NOTIFIER_DLQ_MAX_PER_SUBJECT letters of each reason and first-level category, and\n" +
			"NOTIFIER_DLQ_MAX_BYTES of all. Newer letters push out older ones, and the list says how many.",
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
	command.Flags().IntVar(&limit, "limit", defaultLetters, "how many letters to show; 0 for all")
	return command
}

func newDLQShowCommand() *cobra.Command {
	asJSON := false
	command := &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter with its headers and its body",
		Long: "Show a dead letter, or all letters of an event: the headers and the unchanged body. On a terminal, control\n" +
			"sequences are left out; a pipe gets every byte. With --json a body that is not UTF-8 is in body_base64.",
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
	yes         bool // of a drop
}

func (f *changeFlags) add(cmd *cobra.Command) {
	f.letterFlags.add(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "all letters")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the selected letters, and change nothing")
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
	replay := action{
		name: "replay", doing: "replaying", done: string(deadletters.Replayed),
		do: func(ctx context.Context, store *deadletters.Store, l deadletters.Letter) (deadletters.Outcome, error) {
			return store.Replay(ctx, l)
		},
	}
	command := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Send dead letters to the workers again",
		Long: "Send the events of dead letters to the workers again and remove the letters, the oldest first. An event keeps\n" +
			"its ID, so an event that was in fact delivered is a duplicate and is not sent twice. The limits apply as for any\n" +
			"event, and the event waits anew if its category waits for slots. It becomes a dead letter again if the cause\n" +
			"remains. A body larger than NOTIFIER_EVENT_MAX_BYTES cannot be replayed: only its beginning is kept.\n\n" +
			"An interrupted replay can be run again: each event is delivered once. Run it again while the delivery is\n" +
			"recorded: for NOTIFIER_STREAM_MAX_AGE or NOTIFIER_EVENT_MAX_AGE, whichever is longer, and an hour.\n" +
			"docs/delivery.md says what else ends the record.\n\n" +
			"The command needs the permissions of the user replayer in configs/nats/notifier.conf.",
		Args: f.check,
		RunE: func(cmd *cobra.Command, ids []string) error {
			return withLetters(cmd, func(ctx context.Context, d *dlqCommand) error { return d.change(ctx, f, ids, replay) })
		},
	}
	f.add(command)
	return command
}

func newDLQDropCommand() *cobra.Command {
	var f changeFlags
	drop := action{
		name: "drop", doing: "dropping", done: outcomeDropped, asks: true,
		do: func(ctx context.Context, store *deadletters.Store, l deadletters.Letter) (deadletters.Outcome, error) {
			return outcomeDropped, store.Drop(ctx, l)
		},
	}
	command := &cobra.Command{
		Use:   "drop [ID...]",
		Short: "Remove dead letters for good",
		Args:  allOf(f.check, func(cmd *cobra.Command, _ []string) error { return somebodyToAsk(cmd, f.yes || f.dryRun) }),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return withLetters(cmd, func(ctx context.Context, d *dlqCommand) error { return d.change(ctx, f, ids, drop) })
		},
	}
	f.add(command)
	command.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	return command
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
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrNoStreamResponse):
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
		_, _ = fmt.Fprintf(d.problems, "%s: %v\n", plain.Line(id), deadletters.ErrNotFound)
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
		return writeJSON(d.out, letterList{Stream: d.stream, Total: total, PushedOut: pushedOut, Letters: append([]deadletters.Letter{}, letters...)})
	}
	if err := d.printLetters(letters, total); err != nil || pushedOut == 0 {
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
			return fmt.Errorf("%s: %w", plain.Line(id), err)
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
		return writeJSON(d.out, contents)
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

// action is what to do to letters.
type action struct {
	name, doing, done string
	asks              bool // somebody has to agree
	do                func(context.Context, *deadletters.Store, deadletters.Letter) (deadletters.Outcome, error)
}

// change does something to the letters that are meant, until the context ends.
func (d *dlqCommand) change(ctx context.Context, f changeFlags, ids []string, a action) error {
	_, letters, missing, err := d.read(ctx, f.filter(ids))
	if err != nil {
		return err
	}
	if f.dryRun {
		return d.announce(a, f.json, letters, missing)
	}
	if a.asks && !f.yes && len(letters) > 0 {
		question := fmt.Sprintf("%s %s for good?", strings.ToUpper(a.name[:1])+a.name[1:], count(len(letters)))
		if agreed, err := confirm(ctx, d.in, d.problems, question); !agreed {
			return err
		}
	}
	results := changes{Action: a.name, Letters: []change{}, Missing: missing}
	err = d.each(ctx, &results, a, letters)
	return errors.Join(d.report(f.json, results, a), err)
}

// each does something to letter after letter, and notes what came out. An error ends it, unless it is about that letter
// alone. When the context ends, what was begun is finished.
func (d *dlqCommand) each(ctx context.Context, results *changes, a action, letters []deadletters.Letter) error {
	progress := d.bar.stage(a.doing)
	defer d.bar.clear()
	for i, l := range letters {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %s left", count(len(letters)-i))
		}
		outcome, err := a.do(context.WithoutCancel(ctx), d.store, l)
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
