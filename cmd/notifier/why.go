package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/why"
)

func newWhyCommand() *cobra.Command {
	w := &whyCommand{}
	command := &cobra.Command{
		Use:   "why [ID|CATEGORY]",
		Short: "Tell what became of an event, and why",
		Long: "Tell what became of an event: sent, dropped and by which limit, waiting and for what, a dead letter, a duplicate.\n" +
			"The last lines tell what would happen to an event of its category now. Of a category, the command prints how many\n" +
			"events had which outcome, and the newest events. It asks the journal (NOTIFIER_JOURNAL_STREAM), the streams of\n" +
			"events that wait, the dead letters, the delivery record and the limits, and changes nothing.\n\n" +
			"The argument is an ID if anything is known of an event with that ID, else a category. With --since or --title it\n" +
			"is a category, unless no category can be written so. With --category it is an ID: of an event of that category or\n" +
			"below. The ID of an alert is that of the message with its alerts; behind a slash the alert may be named.\n\n" +
			"Workers write the journal once a second, and it keeps entries for NOTIFIER_JOURNAL_AGE. Beyond 100 events a second\n" +
			"of a category and result it has counts: the command says so, and never guesses which events were counted. With\n" +
			"--category the delivery record tells of events that were delivered before the journal begins.\n\n" +
			"The limits are those of the running workers, or of the settings of this command if no worker answers. Times are\n" +
			"local. The status is 1 if nothing is known.",
		Example: "  notifier why order-4711\n" +
			"  notifier why --seq 4711\n" +
			"  notifier why payments.refunds --since 2h\n" +
			"  notifier why --category payments --title 'card declined'\n" +
			"  notifier why order-4711 --category payments --json",
		Args: w.checkArguments,
		RunE: w.run,
	}
	flags := command.Flags()
	flags.Uint64Var(&w.question.Sequence, "seq", 0, "the event of this message of the producers' stream")
	flags.StringVar(&w.question.Category, "category", "", "only events of this category and all below it, such as payments")
	flags.StringVar(&w.question.Title, "title", "", "only events with this text in their title")
	flags.Var(&w.since, "since", "only what is not older than this, such as 2h or 30m")
	flags.BoolVar(&w.json, "json", false, "print one JSON object")
	for _, name := range []string{"seq", "since"} {
		flags.Lookup(name).DefValue = "" // there is no default to show
	}
	return command
}

// whyCommand is the flags of the command.
type whyCommand struct {
	question why.Question // but for the argument and the time
	since    model.Duration
	json     bool
}

func (w *whyCommand) checkArguments(cmd *cobra.Command, arguments []string) error {
	given := func(names ...string) bool {
		for _, name := range names {
			if cmd.Flags().Changed(name) {
				return true
			}
		}
		return false
	}
	switch {
	case len(arguments) > 1:
		return errors.New("expected at most one ID or category")
	case len(arguments) == 1 && arguments[0] == "":
		return errors.New("the ID is empty")
	case given("seq") && len(arguments) == 1:
		return errors.New("--seq names one message, and goes with no ID")
	case given("seq") && w.question.Sequence == 0:
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

// questions are what the command line may mean, the most likely first.
func (w *whyCommand) questions(arguments []string, now time.Time) []why.Question {
	q := w.question
	if w.since > 0 {
		q.Since = now.Add(-time.Duration(w.since))
	}
	if len(arguments) == 0 {
		return []why.Question{q}
	}
	asID, asCategory := q, q
	asID.ID, asCategory.Category = arguments[0], arguments[0]
	switch isCategory := event.ValidatePath(arguments[0]) == nil; {
	case !isCategory, q.Category != "":
		return []why.Question{asID}
	case w.since > 0, q.Title != "":
		return []why.Question{asCategory}
	}
	return []why.Question{asID, asCategory}
}

// journalDelay is longer than the journal takes to tell of what a worker has just done.
const journalDelay = 2 * time.Second

func (w *whyCommand) run(cmd *cobra.Command, arguments []string) error {
	ctx := cmd.Context()
	return withNATS(ctx, func(settings config.Config, connection *consume.Connection) error {
		asker, err := newAsker(settings, connection)
		if err != nil {
			return err
		}
		defer asker.close()
		questions := w.questions(arguments, time.Now())
		answer := asker.askAny(ctx, questions)
		if !answer.Final() {
			select {
			case <-time.After(journalDelay):
				answer = asker.askAny(ctx, questions)
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.print(cmd.OutOrStdout(), answer); err != nil {
			return fmt.Errorf("printing the answer: %w", err)
		}
		if !answer.Known() {
			return errReported
		}
		return nil
	})
}

func (w *whyCommand) print(out io.Writer, answer why.Answer) error {
	if w.json {
		return writeJSON(out, answer)
	}
	return printAnswer(out, answer, time.Now())
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
	js, err := jetstream.New(connection.Conn)
	if err != nil {
		return nil, fmt.Errorf("using jetstream: %w", err)
	}
	client, err := newRedisClient(settings.Redis, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &asker{settings: settings, connection: connection, js: js, redis: client}, nil
}

func (a *asker) close() { _ = a.redis.Close() }

// askAny asks one question after the other until something is known, and returns that answer, else the first one.
func (a *asker) askAny(ctx context.Context, questions []why.Question) why.Answer {
	var answers []why.Answer
	for _, question := range questions {
		answer := a.ask(ctx, question)
		if answer.Known() {
			return answer
		}
		answers = append(answers, answer)
	}
	return answers[0]
}

// ask answers one question.
func (a *asker) ask(ctx context.Context, question why.Question) why.Answer {
	decoder := event.Decoder{Prefix: a.settings.NATS.Subject, MaxBytes: a.settings.Event.MaxBytes}
	reader := journal.Reader{JetStream: a.js, Names: journalNames(a.settings)}
	streams := why.Streams{JetStream: a.js, Producers: a.settings.NATS.Stream, Room: a.settings.Room.Stream, Decoder: decoder}
	var store *throttle.Redis // made for the first explanation
	return why.Ask(ctx, why.Sources{
		Entries: func(ctx context.Context, q journal.Query, take func(journal.Entry)) (journal.Read, error) {
			read, err := reader.Search(ctx, q, take)
			return read, a.explain(err)
		},
		Explain: func(ctx context.Context, request throttle.Request) (explanation throttle.Explanation, err error) {
			if store == nil {
				if store, err = a.newStore(ctx); err != nil {
					return throttle.Explanation{}, err
				}
			}
			if explanation, err = store.Explain(ctx, request); err != nil {
				err = fmt.Errorf("redis: %s", explainRedis(err))
			}
			return explanation, err
		},
		Pending: func(ctx context.Context, search why.Search) ([]why.Pending, error) {
			pending, err := streams.Pending(ctx, search)
			return pending, a.explain(err)
		},
		Letters: func(ctx context.Context) ([]why.Letter, error) {
			letters, err := a.letters(ctx, decoder)
			return letters, a.explain(err)
		},
		Denied: a.denied,
		Now:    time.Now,
	}, question)
}

// explain names what the server does not permit, or what is absent.
func (a *asker) explain(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w (a worker with NOTIFIER_NATS_PROVISION=true creates the streams)", err)
	}
	return explainDenied(err, a.connection)
}

// newStore makes a store with the limits in force.
func (a *asker) newStore(ctx context.Context) (*throttle.Redis, error) {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	rules, err := a.rules(ctx)
	if err != nil {
		return nil, fmt.Errorf("the live limits cannot be read: %w", explainDenied(err, a.connection))
	}
	return newStore(a.redis, a.settings.Redis, throttle.Settings{
		Tree: rules.Tree, Lease: a.settings.NATS.AckWait, Retention: throttle.Retention(a.settings.Stream.MaxAge, a.settings.Event.MaxAge),
	}), nil
}

// rules are the limits of the running workers, or of the settings if there are none, with the live ones.
func (a *asker) rules(ctx context.Context) (limits.Ruleset, error) {
	l := &limitsCommand{settings: a.settings, out: io.Discard}
	if err := l.useWorkersLimits(ctx, a.connection); err != nil {
		return limits.Ruleset{}, err
	}
	if err := l.open(ctx, a.connection); err != nil {
		return limits.Ruleset{}, err
	}
	var s overrides.Snapshot
	if l.bucket != nil {
		var err error
		if s, err = l.bucket.Load(ctx); err != nil {
			return limits.Ruleset{}, err
		}
	}
	return l.live.Ruleset(s.Generation, s.Revision, liveEntries(s))
}

// denied completes the sentence that an event would be denied now.
func (a *asker) denied(category string) string {
	if a.settings.Limits.Shadow {
		return "NOTIFIER_SHADOW=true sends it all the same"
	}
	if longest := a.settings.Delay.For(category); longest > 0 {
		return fmt.Sprintf("by NOTIFIER_DELAY it would wait for a slot, %s at most", model.Duration(longest))
	}
	return ""
}

// letters reads the dead letters.
func (a *asker) letters(ctx context.Context, decoder event.Decoder) ([]why.Letter, error) {
	store, err := deadletters.Open(ctx, a.connection.Conn, deadletters.Options{
		Stream: a.settings.DLQ.Stream, Subject: a.settings.DLQ.Subject, Room: a.settings.Room.Stream, Decoder: decoder,
	})
	if err != nil {
		return nil, err
	}
	found, err := store.List(ctx, func(int64, int64) {})
	var letters []why.Letter
	for _, l := range found {
		letter := why.Letter{Number: l.Number, ID: l.ID, Category: l.Category, Title: l.Title, Reason: l.Reason, Error: l.Error, Stored: l.Stored}
		if entry, err := l.Event(); err == nil {
			letter.ID, letter.Sequence = event.Event{ID: l.ID, Part: entry.Part}.ShownID(), entry.Origin.Sequence
		}
		letters = append(letters, letter)
	}
	return letters, err
}
