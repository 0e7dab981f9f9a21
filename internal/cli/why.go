package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/why"
)

func newWhyCommand() *cobra.Command {
	w := &whyCommand{}
	command := &cobra.Command{
		Use:   "why [ID|CATEGORY]...",
		Short: "Explain the outcome of events",
		Long: "Explain the outcome of an event: sent, dropped and by which limit, waiting and for what, a dead letter, a duplicate.\n" +
			"The last lines report what would happen to an event of its category now. Of a category, the command prints how many\n" +
			"events had which outcome, and the newest events. It asks the journal (NOTIFIER_JOURNAL_STREAM), the streams of\n" +
			"events that wait, the dead letters, the delivery record and the limits, and changes nothing.\n\n" +
			"An argument is a category if anything is known of its events, else an ID, else the number of a message; '#371' is a\n" +
			"number first. With --category an argument is no category. An ID is what the producer gave, however long, or what\n" +
			"Slack and the commands show. The ID of an alert consists of its fingerprint, its status and its start, such as\n" +
			"'c2f1a7 firing 2026-01-02T10:00:00Z'. Many arguments take hardly longer than one: the journal is read once.\n\n" +
			"Workers write the journal once a second, and it keeps entries for NOTIFIER_JOURNAL_AGE. Beyond 100 events a second\n" +
			"of a category and result it has counts: the command says so, and never guesses which events were counted. With\n" +
			"--category the delivery record has events that were delivered before the journal begins.\n\n" +
			"Limits, delays and the names of streams come from the running workers, or from the settings of this command if no\n" +
			"worker answers. Times are local. The status is 1 if nothing is known of one of the arguments.",
		Example: "  notifier why order-4711\n" +
			"  notifier why order-4711 order-4712\n" +
			"  notifier why --seq 4711\n" +
			"  notifier why payments.refunds --since 2h\n" +
			"  notifier why --category payments --title 'card declined'\n" +
			"  notifier why order-4711 --category payments --json",
		Args: w.checkArguments,
		RunE: w.run,
	}
	flags := command.Flags()
	flags.UintSliceVar(&w.sequences, "seq", nil, "the event of this message of the producers' stream; may be repeated")
	flags.StringVar(&w.question.Category, "category", "", "only events of this category and all below it, such as payments")
	flags.StringVar(&w.question.Title, "title", "", "only events with this text in their title")
	durationVar(command, &w.since, "since", "only what is not older than this, such as 2h or 30m")
	flags.BoolVar(&w.json, "json", false, "print a line of JSON for each argument")
	return command
}

type whyCommand struct {
	question  why.Question // without the argument and the time
	sequences []uint
	since     duration
	json      bool
}

func (w *whyCommand) checkArguments(cmd *cobra.Command, arguments []string) error {
	given := func(names ...string) bool { return slices.ContainsFunc(names, cmd.Flags().Changed) }
	if err := emptyFlag(cmd, "category", "title"); err != nil {
		return err
	}
	switch {
	case slices.Contains(arguments, ""):
		return errors.New("the ID is empty")
	case given("seq") && len(arguments) > 0:
		return errors.New("--seq names one message, and goes with no ID")
	case slices.Contains(w.sequences, 0):
		return errors.New("--seq is 0; the first message has the number 1")
	case given("since") && w.since == 0:
		return errors.New("--since is 0; expected an age such as 30m, 2h or 1d")
	case len(arguments) == 0 && !given("seq", "category", "title", "since"):
		return errors.New("which event? Give its ID or its category, or use --seq, --category, --title or --since")
	}
	if given("category") {
		if err := event.ValidatePath(w.question.Category); err != nil {
			return fmt.Errorf("--category: %w", err)
		}
	}
	return nil
}

// questions returns the possible meanings of each argument.
func (w *whyCommand) questions(arguments []string, now time.Time) (questions [][]why.Question) {
	q := w.question
	if w.since > 0 {
		q.Since = now.Add(-time.Duration(w.since))
	}
	for _, sequence := range w.sequences {
		of := q
		of.Sequence = uint64(sequence)
		questions = append(questions, []why.Question{of})
	}
	for _, argument := range arguments {
		questions = append(questions, why.Meanings(argument, q))
	}
	if len(questions) == 0 {
		return [][]why.Question{{q}}
	}
	return questions
}

func (w *whyCommand) run(cmd *cobra.Command, arguments []string) error {
	ctx := cmd.Context()
	return withNATS(ctx, func(settings config.Config, connection *stream.Connection) error {
		asker, err := inspect.NewAsker(settings, connection)
		if err != nil {
			return err
		}
		defer asker.Close()
		answers := asker.Finder().Find(ctx, w.questions(arguments, time.Now())...)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.print(cmd.OutOrStdout(), answers); err != nil {
			return fmt.Errorf("printing the answer: %w", err)
		}
		if slices.ContainsFunc(answers, func(a why.Answer) bool { return !a.Known() }) {
			return errReported
		}
		return nil
	})
}

func (w *whyCommand) print(out io.Writer, answers []why.Answer) error {
	for i, answer := range answers {
		if w.json {
			if err := screen.PrintJSON(out, answer); err != nil {
				return err
			}
			continue
		}
		if i > 0 {
			_, _ = io.WriteString(out, "\n")
		}
		if err := printAnswer(out, answer, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// printAnswer prints an answer in blocks with a blank line between.
func printAnswer(out io.Writer, answer why.Answer, now time.Time) error {
	var blocks []string
	if !answer.Known() {
		blocks = append(blocks, plain.Line(subjectOf(answer.Asked)+"not known"+why.After("; ", answer.Missing)+why.After("; the nearest category is ", answer.Nearest))+"\n")
	}
	if answer.Asked.Single() {
		for _, e := range answer.Events {
			blocks = append(blocks, heading(e, now)+"\n"+block(e.Sentences)+facts(e))
		}
		if answer.Found > len(answer.Events) {
			blocks = append(blocks, fmt.Sprintf("these are %d of %d events; --category or --since narrows the question\n", len(answer.Events), answer.Found))
		}
	} else {
		var totals []string
		for _, total := range answer.Totals {
			totals = append(totals, fmt.Sprintf("%d %s", total.Count, total.What()))
		}
		blocks = append(blocks, block(append(totals, answer.Waiting...)))
		if more := answer.Found - len(answer.Events); more > 0 && len(answer.Events) > 0 {
			blocks = append(blocks, fmt.Sprintf("the newest %d of %d:\n", len(answer.Events), answer.Found))
		}
		for _, group := range answer.Groups() {
			blocks = append(blocks, plain.Line(group.Reason)+"\n"+table(group.Events, now))
		}
	}
	blocks = append(blocks, block(answer.Counted), block(answer.Now), block(answer.Unknown))
	_, err := io.WriteString(out, strings.Join(filled(blocks), "\n"))
	return err
}

func filled(texts []string) []string {
	return slices.DeleteFunc(texts, func(text string) bool { return text == "" })
}

// subjectOf returns the name of the event in a question, with a colon; "" if the question is about several events.
func subjectOf(q why.Question) string {
	switch {
	case q.ID != "":
		return q.ID + ": "
	case q.Category != "" && q.Title == "" && q.Sequence == 0:
		return q.Category + ": "
	case q.Sequence != 0:
		return fmt.Sprintf("message %d: ", q.Sequence)
	}
	return ""
}

func block(sentences []string) string {
	var text strings.Builder
	for _, sentence := range sentences {
		text.WriteString(plain.Line(sentence) + "\n")
	}
	return text.String()
}

func heading(e why.Event, now time.Time) string {
	words := filled([]string{plain.Line(e.ID), plain.Line(e.Category), quoted(e.Title)})
	if !e.Stored.IsZero() {
		words = append(words, "stored "+why.Clock(e.Stored, now))
	}
	return strings.Join(words, "  ")
}

// facts returns the facts that no sentence has.
func facts(e why.Event) string {
	var last journal.Entry
	if len(e.Entries) > 0 {
		last = e.Entries[len(e.Entries)-1]
	}
	message := ""
	if e.Sequence != 0 {
		message = fmt.Sprint(e.Sequence) + why.After(" of ", plain.Line(last.Stream))
	}
	known := filled([]string{
		why.After("message ", message), why.After("limits ", plain.Line(last.Revision)), why.After("worker ", plain.Line(last.Instance)),
		why.After("receipt ", plain.Line(last.Receipt)), why.After("trace ", plain.Line(last.Trace)),
	})
	if len(known) == 0 {
		return ""
	}
	return "(" + strings.Join(known, ", ") + ")\n"
}

func table(events []why.Event, now time.Time) string {
	var rows [][]string
	for _, e := range events {
		row := []string{"  " + why.Clock(e.Stored, now), plain.Line(e.ID), plain.Line(e.Category), quoted(plain.Short(e.Title, widest))}
		if e.Note != "" {
			row = append(row, plain.Line(e.Note))
		}
		rows = append(rows, row)
	}
	return screen.Table(rows)
}

func quoted(title string) string {
	if title == "" {
		return ""
	}
	return `"` + plain.Line(title) + `"`
}
