package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/page"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// How long a question waits for the bucket of live limits, and for the names of categories.
const (
	limitsTimeout     = 15 * time.Second
	categoriesTimeout = 10 * time.Second
)

// Asker answers questions about the deployment and its events from NATS and Redis, for commands and for the live page. It is used until Close.
type Asker struct {
	settings   config.Config
	connection *stream.Connection
	js         jetstream.JetStream
	redis      redis.UniversalClient
}

// NewAsker returns an Asker with a connection to Redis of its own.
func NewAsker(settings config.Config, connection *stream.Connection) (*Asker, error) {
	settings.NATS.Provision = false // a question creates nothing
	client, err := setup.Redis(settings.Redis)
	if err != nil {
		return nil, err
	}
	return &Asker{settings: settings, connection: connection, js: setup.JetStream(connection), redis: client}, nil
}

// Close ends the connection to Redis.
func (a *Asker) Close() { _ = a.redis.Close() }

// Finder returns what finds events by an ID, a category or the number of a message.
func (a *Asker) Finder() why.Finder {
	return why.Finder{Ask: a.ask, Categories: a.categories}
}

// categories returns the categories of the journal and of the settings. If time runs out, it returns those found so far.
func (a *Asker) categories(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, categoriesTimeout)
	defer cancel()
	settings, _, _ := a.askWorkers(ctx)
	found, _ := journal.Reader{JetStream: a.js, Names: setup.JournalNames(settings)}.Categories(ctx) // the answer reports an unreadable journal
	return append(found, settings.Categories()...)
}

// ask answers questions by the settings of the running workers. If no worker answers, it uses the settings of this process.
func (a *Asker) ask(ctx context.Context, questions ...why.Question) []why.Answer {
	settings, workers, problem := a.askWorkers(ctx)
	reader := journal.Reader{JetStream: a.js, Names: setup.JournalNames(settings)}
	streams := why.Streams{JetStream: a.js, Producers: settings.NATS.Stream, Room: settings.Room.Stream, Decoder: setup.Decoder(settings)}
	var redis *store.Redis // made for the first explanation
	return why.Ask(ctx, why.Sources{
		Entries: func(ctx context.Context, queries []journal.Query, take func(int, journal.Entry)) ([]journal.Read, error) {
			reads, err := reader.Search(ctx, queries, take)
			return reads, a.explain(err)
		},
		Explain: func(ctx context.Context, request store.Request) (explanation store.Explanation, err error) {
			if problem == nil && redis == nil {
				redis, problem = a.store(ctx, settings)
			}
			if problem != nil {
				return store.Explanation{}, problem
			}
			if explanation, err = redis.Readings.Explain(ctx, request); err != nil {
				err = fmt.Errorf("redis: %s", setup.ExplainRedis(err, settings.Redis))
			}
			return explanation, err
		},
		Pending: func(ctx context.Context, sequence uint64, take func(why.Pending)) error {
			return a.explain(streams.Pending(ctx, sequence, take))
		},
		Letters: func(ctx context.Context) ([]why.Letter, error) {
			letters, err := a.letters(ctx, settings)
			return letters, a.explain(err)
		},
		Policy: why.Policy{
			Denied: func(category string) string { return denied(settings, category) },
			Expiry: func(category string) string { return setup.Expiry(settings, category) },

			Categories: a.categories,
		},
		Now:     func() time.Time { return time.Now().In(page.ZoneOf(ctx)) },
		Workers: workers,
	}, questions...)
}

// askWorkers returns the settings of a running worker, and what the workers report. If no worker has a report, it returns the settings of this
// process.
func (a *Asker) askWorkers(ctx context.Context) (settings config.Config, workers why.Workers, err error) {
	reports, failed := status.Workers(ctx, a.connection.Conn, a.settings.Redis.Prefix)
	if len(reports) == 0 {
		return a.settings, workers, failed
	}
	workers.Paused = make(map[string]time.Time)
	for _, report := range reports {
		for _, channel := range report.Channels {
			if until, known := workers.Paused[channel.Name]; !known || until.Before(channel.PausedUntil) {
				workers.Paused[channel.Name] = channel.PausedUntil
			}
		}
		if report.Unjournaled() {
			workers.Failing = append(workers.Failing, why.Writer{Name: report.Name, Health: *report.Journal})
		}
	}
	settings, err = a.settings.WithShared(reports[0].Settings)
	if err != nil {
		return a.settings, workers, fmt.Errorf("reading the settings of the worker %s: %w", reports[0].Name, err)
	}
	return settings, workers, nil
}

// explain adds the missing permission or the likely cause to an error.
func (a *Asker) explain(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w (notifier provision creates the streams)", err)
	}
	return setup.ExplainDenied(err, a.connection)
}

// store returns a store with the limits in force.
func (a *Asker) store(ctx context.Context, settings config.Config) (*store.Redis, error) {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	opened, err := OpenLimits(ctx, a.connection, settings, "")
	var rules limits.Ruleset
	if err == nil {
		_, rules, err = opened.InForce(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("the live limits cannot be read: %w", setup.ExplainDenied(err, a.connection))
	}
	shared := setup.Store(a.redis, settings.Redis, store.Settings{
		Tree: rules.Tree, Lease: settings.NATS.AckWait, Retention: Retention(settings),
	})
	shared.Adopt(rules)
	if _, absent := opened.Bucket(); absent != nil {
		if inForce, _, err := shared.Positions.InForce(ctx); err == nil && inForce != (limits.Position{}) {
			return nil, fmt.Errorf("the live limits cannot be read, and %s are in force: %w", inForce, absent)
		}
	}
	return shared, nil
}

// SentAnyway completes the sentence that an event would be denied now, in shadow mode.
const SentAnyway = "NOTIFIER_SHADOW=true sends it anyway"

// denied completes the sentence that an event would be denied now.
func denied(settings config.Config, category string) string {
	if settings.Limits.Shadow {
		return SentAnyway
	}
	if longest := settings.Delay.For(category); longest > 0 {
		return fmt.Sprintf("by NOTIFIER_DELAY it would wait for a slot that opens within %s behind the events that wait already, or be dropped", model.Duration(longest))
	}
	return ""
}

func (a *Asker) letters(ctx context.Context, settings config.Config) ([]why.Letter, error) {
	store, err := OpenLetters(ctx, a.connection, settings)
	if err != nil {
		return nil, err
	}
	found, err := store.List(ctx, func(int64, int64) {})
	var letters []why.Letter
	for _, l := range found {
		letter := why.Letter{Number: l.Number, ID: l.ShownID(), Category: l.Category, Title: l.Title, Reason: l.Reason, Error: l.Error, Stored: l.Stored}
		if entry, err := l.Event(); err == nil {
			letter.Sequence, letter.Published = entry.Origin.Sequence, entry.Origin.Stored
		}
		letters = append(letters, letter)
	}
	return letters, err
}

// OpenLetters opens the stream of dead letters.
func OpenLetters(ctx context.Context, connection *stream.Connection, settings config.Config) (*deadletters.Store, error) {
	return deadletters.Open(ctx, connection.Conn, deadletters.Options{
		Stream: settings.DLQ.Stream, Subject: settings.DLQ.Subject, Room: settings.Room.Stream, Decoder: setup.Decoder(settings),
	})
}

// Status returns what the deployment does now.
func (a *Asker) Status(ctx context.Context) (status.Status, error) {
	return status.Collect(ctx, StatusOptions(a.settings, a.connection, a.redis))
}

// Why returns what became of the events that a text names and that meet the conditions.
func (a *Asker) Why(ctx context.Context, text string, conditions why.Question) why.Answer {
	return a.Finder().Find(ctx, why.Meanings(text, conditions))[0]
}

// Decisions follows the journal from a time on.
func (a *Asker) Decisions(ctx context.Context, since time.Time) (<-chan journal.Batch, error) {
	return journal.Reader{JetStream: a.js, Names: setup.JournalNames(a.settings)}.Follow(ctx, since)
}
