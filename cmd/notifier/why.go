package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/page"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/why"
)

func newWhyCommand() *cobra.Command {
	w := &whyCommand{}
	command := &cobra.Command{
		Use:   "why [ID|CATEGORY]...",
		Short: "Tell what became of events, and why",
		Long: "Tell what became of an event: sent, dropped and by which limit, waiting and for what, a dead letter, a duplicate.\n" +
			"The last lines tell what would happen to an event of its category now. Of a category, the command prints how many\n" +
			"events had which outcome, and the newest events. It asks the journal (NOTIFIER_JOURNAL_STREAM), the streams of\n" +
			"events that wait, the dead letters, the delivery record and the limits, and changes nothing.\n\n" +
			"An argument is an ID if anything is known of an event with that ID, else a category, else the number of a message,\n" +
			"such as 371 or '#371'. With --category it is no category. An ID is what the producer gave, however long, or what\n" +
			"Slack and the commands show. The ID of an alert is that of the message with its alerts; behind a slash the alert\n" +
			"may be named. Many arguments take hardly longer than one: the journal is read once.\n\n" +
			"Workers write the journal once a second, and it keeps entries for NOTIFIER_JOURNAL_AGE. Beyond 100 events a second\n" +
			"of a category and result it has counts: the command says so, and never guesses which events were counted. With\n" +
			"--category the delivery record tells of events that were delivered before the journal begins.\n\n" +
			"Limits, delays and the names of streams are those of the running workers, or of the settings of this command if no\n" +
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
	flags.Var(&w.since, "since", "only what is not older than this, such as 2h or 30m")
	flags.BoolVar(&w.json, "json", false, "print a line of JSON for each argument")
	flags.Lookup("since").DefValue = "" // there is no default to show
	return command
}

type whyCommand struct {
	question  why.Question // but for the argument and the time
	sequences []uint
	since     model.Duration
	json      bool
}

func (w *whyCommand) checkArguments(cmd *cobra.Command, arguments []string) error {
	given := func(names ...string) bool { return slices.ContainsFunc(names, cmd.Flags().Changed) }
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

// questions are what the command line may mean: for each argument one question or more, the most likely first.
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
	return withNATS(ctx, func(settings config.Config, connection *consume.Connection) error {
		asker, err := newAsker(settings, connection)
		if err != nil {
			return err
		}
		defer asker.close()
		answers := asker.finder().Find(ctx, w.questions(arguments, time.Now())...)
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
			if err := writeJSON(out, answer); err != nil {
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

// asker answers questions by what NATS and Redis know. It changes nothing there.
type asker struct {
	settings   config.Config
	connection *consume.Connection
	js         jetstream.JetStream
	redis      redis.UniversalClient
}

func newAsker(settings config.Config, connection *consume.Connection) (*asker, error) {
	settings.NATS.Provision = false // nothing is created for a question
	client, err := newRedisClient(settings.Redis, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &asker{settings: settings, connection: connection, js: jetStream(connection), redis: client}, nil
}

func (a *asker) close() { _ = a.redis.Close() }

func (a *asker) finder() why.Finder {
	return why.Finder{Ask: a.ask, Categories: a.categories}
}

// categoriesTimeout bounds the search for names. Those that were found by then do.
const categoriesTimeout = 10 * time.Second

// categories lists the categories of the journal and those that the settings name.
func (a *asker) categories(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, categoriesTimeout)
	defer cancel()
	settings, _, _ := a.askWorkers(ctx)
	found, _ := journal.Reader{JetStream: a.js, Names: journalNames(settings)}.Categories(ctx) // the answer says if the journal cannot be read
	return append(found, settings.Categories()...)
}

// ask answers questions by the settings of the running workers or, if there are none, by those here.
func (a *asker) ask(ctx context.Context, questions ...why.Question) []why.Answer {
	settings, failing, problem := a.askWorkers(ctx)
	decoder := event.Decoder{Prefix: settings.NATS.Subject, MaxBytes: settings.Event.MaxBytes}
	reader := journal.Reader{JetStream: a.js, Names: journalNames(settings)}
	streams := why.Streams{JetStream: a.js, Producers: settings.NATS.Stream, Room: settings.Room.Stream, Decoder: decoder}
	var store *throttle.Redis // made for the first explanation
	return why.Ask(ctx, why.Sources{
		Entries: func(ctx context.Context, queries []journal.Query, take func(int, journal.Entry)) ([]journal.Read, error) {
			reads, err := reader.Search(ctx, queries, take)
			return reads, a.explain(err)
		},
		Explain: func(ctx context.Context, request throttle.Request) (explanation throttle.Explanation, err error) {
			if problem == nil && store == nil {
				store, problem = a.newStore(ctx, settings)
			}
			if problem != nil {
				return throttle.Explanation{}, problem
			}
			if explanation, err = store.Explain(ctx, request); err != nil {
				err = fmt.Errorf("redis: %s", explainRedis(err))
			}
			return explanation, err
		},
		Pending: func(ctx context.Context, search why.Search) error { return a.explain(streams.Pending(ctx, search)) },
		Letters: func(ctx context.Context) ([]why.Letter, error) {
			letters, err := a.letters(ctx, settings)
			return letters, a.explain(err)
		},
		Denied:  func(category string) string { return denied(settings, category) },
		Now:     func() time.Time { return time.Now().In(page.ZoneOf(ctx)) },
		Failing: failing,
	}, questions...)
}

// askWorkers returns the settings here with those of a running worker in their place, where one answers, and the workers that cannot write
// the journal.
func (a *asker) askWorkers(ctx context.Context) (settings config.Config, failing []why.Writer, err error) {
	reports, err := status.Workers(ctx, a.connection.Conn, a.settings.Redis.Prefix, 0)
	if err != nil || len(reports) == 0 {
		return a.settings, nil, err
	}
	for _, report := range reports {
		if report.Journal != nil && report.Journal.Error != "" {
			failing = append(failing, why.Writer{Name: report.Name, Health: *report.Journal})
		}
	}
	settings, err = a.settings.WithShared(reports[0].Settings)
	if err != nil {
		return a.settings, failing, fmt.Errorf("reading the settings of the worker %s: %w", reports[0].Name, err)
	}
	return settings, failing, nil
}

// explain names what the server does not permit, or what is absent.
func (a *asker) explain(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w (notifier provision creates the streams)", err)
	}
	return explainDenied(err, a.connection)
}

// newStore makes a store with the limits in force.
func (a *asker) newStore(ctx context.Context, settings config.Config) (*throttle.Redis, error) {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	l := &limitsCommand{settings: settings}
	var rules limits.Ruleset
	err := l.open(ctx, a.connection)
	if err == nil {
		_, rules, err = l.inForce(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("the live limits cannot be read: %w", explainDenied(err, a.connection))
	}
	return newStore(a.redis, settings.Redis, throttle.Settings{
		Tree: rules.Tree, Lease: settings.NATS.AckWait, Retention: throttle.Retention(settings.Stream.MaxAge, longestLife(settings)),
	}), nil
}

// denied completes the sentence that an event would be denied now.
func denied(settings config.Config, category string) string {
	if settings.Limits.Shadow {
		return "NOTIFIER_SHADOW=true sends it all the same"
	}
	if longest := settings.Delay.For(category); longest > 0 {
		return fmt.Sprintf("by NOTIFIER_DELAY it would wait for a slot, %s at most", model.Duration(longest))
	}
	return ""
}

func (a *asker) letters(ctx context.Context, settings config.Config) ([]why.Letter, error) {
	store, err := openLetters(ctx, a.connection, settings)
	if err != nil {
		return nil, err
	}
	found, err := store.List(ctx, func(int64, int64) {})
	var letters []why.Letter
	for _, l := range found {
		letter := why.Letter{Number: l.Number, ID: l.ShownID(), Category: l.Category, Title: l.Title, Reason: l.Reason, Error: l.Error, Stored: l.Stored}
		if entry, err := l.Event(); err == nil {
			letter.Sequence = entry.Origin.Sequence
		}
		letters = append(letters, letter)
	}
	return letters, err
}
