package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

const defaultLetters = 50

func newDLQCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "dlq",
		Short: "List, replay or drop dead letters",
		Long: "Dead letters are events that cannot be delivered: Slack rejected the message, or the worker cannot decode the\n" +
			"body. They are kept in a stream of their own (NOTIFIER_DLQ_STREAM).\n\n" +
			"ID is the number of a letter, which dlq list shows, or the ID of its event. If that is a number, write id:4711.",
		Example: "  notifier dlq list --reason rejected --since 24h\n" +
			"  notifier dlq show 17\n" +
			"  notifier dlq replay --reason rejected --dry-run\n" +
			"  notifier dlq replay 17 order-4711\n" +
			"  notifier dlq drop --reason bad_json",
	}
	command.AddCommand(newDLQListCommand(), newDLQShowCommand(), newDLQReplayCommand(), newDLQDropCommand())
	return command
}

type dlqFlags struct {
	reasons     []string
	category    string
	since       duration
	json        bool
	limit       int  // of a list
	all, dryRun bool // of a change
	yes         bool // of a drop
}

// dlqCommand runs one of the dlq commands. connected sets all fields but the flags.
type dlqCommand struct {
	flags    dlqFlags
	store    *deadletters.Store
	stream   string
	in       io.Reader
	out      io.Writer
	problems io.Writer
	bar      *screen.Progress
}

func (f *dlqFlags) addJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
}

func (f *dlqFlags) addSelection(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.reasons, "reason", nil, "only letters with this reason, such as rejected; may be repeated")
	flags.StringVar(&f.category, "category", "", "only letters of this category and all below it, such as payments")
	durationVar(cmd, &f.since, "since", "only letters that are not older than this, such as 24h or 7d")
	f.addJSON(cmd)
}

func (f *dlqFlags) addChange(cmd *cobra.Command) {
	f.addSelection(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "all letters")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the selected letters, and change nothing")
}

func (f *dlqFlags) checkSelection(cmd *cobra.Command, _ []string) error {
	if err := emptyFlag(cmd, "reason", "category"); err != nil {
		return err
	}
	for _, reason := range f.reasons {
		if !slices.Contains(event.Reasons(), event.Reason(reason)) {
			return fmt.Errorf("--reason: %q is not one of %s", reason, strings.Join(texts(event.Reasons()), ", "))
		}
	}
	if f.category != "" {
		if err := event.ValidatePath(f.category); err != nil {
			return fmt.Errorf("--category: %w", err)
		}
	}
	if cmd.Flags().Changed("since") && f.since == 0 {
		return errors.New("--since is 0; expected an age such as 30m, 24h or 7d")
	}
	return nil
}

func (f *dlqFlags) checkChange(_ *cobra.Command, ids []string) error {
	switch selected := len(f.reasons) > 0 || f.category != "" || f.since > 0 || len(ids) > 0; {
	case !selected && !f.all:
		return errors.New("which letters? Name them, or use --reason, --category, --since or --all")
	case selected && f.all:
		return errors.New("--all goes with nothing that selects")
	}
	return nil
}

func newDLQListCommand() *cobra.Command {
	d := &dlqCommand{}
	command := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the newest first",
		Long: "List dead letters, the newest first. The stream keeps them.\n\n" +
			"The stream has at most NOTIFIER_DLQ_MAX_PER_SUBJECT letters of each reason and first-level category, and\n" +
			"NOTIFIER_DLQ_MAX_BYTES of all. Newer letters push out older ones, and the list says how many.",
		Args: cobra.MatchAll(cobra.NoArgs, d.flags.checkSelection, notNegative(&d.flags.limit)),
		RunE: d.connected(d.list),
	}
	d.flags.addSelection(command)
	command.Flags().IntVar(&d.flags.limit, "limit", defaultLetters, "how many letters to show; 0 for all")
	return command
}

func newDLQShowCommand() *cobra.Command {
	d := &dlqCommand{}
	command := &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter with its headers and its body",
		Long: "Show a dead letter, or all letters of an event: the headers and the unchanged body. On a terminal, control\n" +
			"sequences are left out; a pipe gets every byte. With --json a body that is not UTF-8 is in body_base64.",
		Args: numberOfArguments(1, 1),
		RunE: d.connected(d.show),
	}
	d.flags.addJSON(command)
	return command
}

func newDLQReplayCommand() *cobra.Command {
	d := &dlqCommand{}
	replay := action{name: "replay", doing: "replaying", done: deadletters.Replayed, do: (*deadletters.Store).Replay, check: (*deadletters.Store).CheckReplay}
	command := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Send dead letters to the workers again",
		Long: "Send the events of dead letters to the workers again and remove the letters, the oldest first. An event keeps\n" +
			"its ID, so an event that was in fact delivered is a duplicate and is not sent twice. The limits and mutes apply as\n" +
			"for any event: a muted event is dropped, and an event waits anew if its category waits for slots. It becomes a\n" +
			"dead letter again if the cause remains. A firing alert is posted as firing even if it has been resolved since.\n" +
			"A body larger than NOTIFIER_EVENT_MAX_BYTES cannot be replayed: only its beginning is kept.\n\n" +
			"An interrupted replay can be run again: each event is delivered once. Run it again while the delivery is\n" +
			"recorded: for NOTIFIER_STREAM_MAX_AGE, NOTIFIER_EVENT_MAX_AGE or NOTIFIER_DELAY, whichever is longest, and an\n" +
			"hour. docs/delivery.md lists what else ends the record.\n\n" +
			"The command needs the permissions of the user replayer in configs/nats/notifier.conf.",
		Args: cobra.MatchAll(d.flags.checkSelection, d.flags.checkChange),
		RunE: d.connected(func(ctx context.Context, ids []string) error { return d.change(ctx, ids, replay) }),
	}
	d.flags.addChange(command)
	return command
}

func newDLQDropCommand() *cobra.Command {
	d := &dlqCommand{}
	drop := action{name: "drop", doing: "dropping", done: deadletters.Dropped, asks: true, do: (*deadletters.Store).Drop, check: anyLetter}
	command := &cobra.Command{
		Use:   "drop [ID...]",
		Short: "Remove dead letters for good",
		Args:  cobra.MatchAll(d.flags.checkSelection, d.flags.checkChange, somebodyToAsk(&d.flags.yes, &d.flags.dryRun)),
		RunE:  d.connected(func(ctx context.Context, ids []string) error { return d.change(ctx, ids, drop) }),
	}
	d.flags.addChange(command)
	command.Flags().BoolVar(&d.flags.yes, "yes", false, "do not ask")
	return command
}

// connected returns a command's RunE, which reads the settings, opens the stream of dead letters and then works.
func (d *dlqCommand) connected(work func(ctx context.Context, arguments []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, arguments []string) error {
		ctx := cmd.Context()
		return withNATS(ctx, func(settings config.Config, connection *stream.Connection) (err error) {
			d.stream, d.in, d.out, d.problems = settings.DLQ.Stream, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			d.bar = screen.NewProgress(d.problems)
			if d.store, err = inspect.OpenLetters(ctx, connection, settings); err == nil {
				err = work(ctx, arguments)
				d.bar.Clear()
			}
			return explainLetters(err, connection)
		})
	}
}

// explainLetters adds the likely cause to an error: a missing stream or a missing permission, for which a request times out.
func explainLetters(err error, connection *stream.Connection) error {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w (check NOTIFIER_DLQ_STREAM and NOTIFIER_ROOM_STREAM; notifier provision creates the streams)", err)
	case errors.Is(err, context.DeadlineExceeded) && len(connection.Denied()) == 0:
		return fmt.Errorf("%w (is this user permitted to do that? The user replayer of configs/nats/notifier.conf has the rights)", err)
	}
	return setup.ExplainDenied(err, connection)
}

// read returns all letters and the selected ones, the oldest first. It prints each ID that no letter has.
func (d *dlqCommand) read(ctx context.Context, ids []string) (all, chosen []deadletters.Letter, missing int, err error) {
	all, err = d.store.List(ctx, d.bar.Stage("reading dead letters"))
	d.bar.Clear()
	if err != nil {
		return nil, nil, 0, err
	}
	filter := deadletters.Filter{Reasons: d.flags.reasons, Under: d.flags.category, IDs: ids}
	if d.flags.since > 0 {
		filter.Since = time.Now().Add(-time.Duration(d.flags.since))
	}
	chosen, absent := filter.Select(all)
	for _, id := range absent {
		_, _ = fmt.Fprintf(d.problems, "%s: %v\n", plain.Line(id), deadletters.ErrNotFound)
	}
	return all, chosen, len(absent), nil
}

func (d *dlqCommand) list(ctx context.Context, _ []string) error {
	all, letters, _, err := d.read(ctx, nil)
	if err != nil {
		return err
	}
	total, pushedOut := len(letters), 0
	for _, l := range all {
		pushedOut += l.PushedOut
	}
	slices.Reverse(letters)
	if d.flags.limit > 0 {
		letters = letters[:min(d.flags.limit, total)]
	}
	if d.flags.json {
		return screen.PrintJSON(d.out, letterList{Stream: d.stream, Total: total, PushedOut: pushedOut, Letters: append([]deadletters.Letter{}, letters...)})
	}
	if err := d.printLetters(letters, total); err != nil || pushedOut == 0 {
		return err
	}
	_, err = fmt.Fprintf(d.out, "(older ones are gone: these have pushed out %s)\n", count(pushedOut))
	return err
}

func (d *dlqCommand) show(ctx context.Context, arguments []string) error {
	id := arguments[0]
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
		if d.flags.json {
			contents.Letters = append(contents.Letters, shown(content))
			continue
		}
		if i > 0 {
			_, _ = fmt.Fprint(d.out, "\n\n")
		}
		if err := d.printLetter(content); err != nil {
			return err
		}
	}
	if d.flags.json {
		return screen.PrintJSON(d.out, contents)
	}
	return nil
}

// numbers returns the numbers of the letters with an ID. The number of a letter needs no search. No letter has the number 0.
func (d *dlqCommand) numbers(ctx context.Context, id string) ([]uint64, error) {
	if number, err := strconv.ParseUint(id, 10, 64); err == nil && number > 0 {
		if _, err := d.store.Read(ctx, number); !errors.Is(err, deadletters.ErrNotFound) {
			return []uint64{number}, err
		}
	}
	_, letters, missing, err := d.read(ctx, []string{id})
	if err == nil && missing > 0 {
		err = errReported
	}
	var numbers []uint64
	for _, l := range letters {
		numbers = append(numbers, l.Number)
	}
	return numbers, err
}

type action struct {
	name, doing string
	done        deadletters.Outcome
	asks        bool // a person has to confirm
	do          func(*deadletters.Store, context.Context, deadletters.Letter) (deadletters.Outcome, error)
	check       func(*deadletters.Store, deadletters.Letter) error // returns why do refuses a letter; nil: it does not
}

func anyLetter(*deadletters.Store, deadletters.Letter) error { return nil }

// change applies an action to the selected letters, until the context ends.
func (d *dlqCommand) change(ctx context.Context, ids []string, a action) error {
	_, letters, missing, err := d.read(ctx, ids)
	if err != nil {
		return err
	}
	if d.flags.dryRun {
		return d.announce(a, letters, missing)
	}
	if a.asks && !d.flags.yes && len(letters) > 0 {
		question := fmt.Sprintf("%s %s for good?", capital(a.name), count(len(letters)))
		if agreed, err := screen.Confirm(ctx, d.in, d.problems, question); !agreed {
			return err
		}
	}
	results := changes{Action: a.name, Letters: []change{}, Missing: missing}
	err = changeEach(ctx, letters, d.bar, a.doing, count, func(ctx context.Context, l deadletters.Letter) error {
		outcome, err := a.do(d.store, ctx, l)
		if errors.Is(err, deadletters.ErrUnfit) {
			outcome = outcomeUnfit
		} else if err != nil {
			return fmt.Errorf("letter %d: %w", l.Number, err)
		}
		results.note(l, outcome, err)
		return nil
	})
	return cmp.Or(err, d.report(results, a))
}

func capital(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

// changeEach calls change for each thing, until an error. When the context ends, it finishes the current thing first.
func changeEach[T any](
	ctx context.Context, things []T, bar *screen.Progress, doing string, count func(int) string, change func(context.Context, T) error,
) error {
	progress := bar.Stage(doing)
	defer bar.Clear()
	for i, thing := range things {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %s left", count(len(things)-i))
		}
		if err := change(context.WithoutCancel(ctx), thing); err != nil {
			return fmt.Errorf("%w; %s left", err, count(len(things)-i))
		}
		progress(int64(i+1), int64(len(things)))
	}
	return nil
}
