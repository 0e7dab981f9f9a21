package setup

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Names returns the streams, subjects and consumers in JetStream.
func Names(settings config.Config) stream.Names {
	return stream.Names{
		Stream:            settings.NATS.Stream,
		Subject:           settings.NATS.Subject,
		Consumer:          settings.NATS.Consumer,
		MaxBytes:          settings.Stream.MaxBytes,
		MaxAge:            settings.Stream.MaxAge,
		RoomStream:        settings.Room.Stream,
		LongestWait:       max(settings.Delay.MostPatient(), settings.Flap.Window),
		DeadLetterStream:  settings.DLQ.Stream,
		DeadLetterSubject: settings.DLQ.Subject,
		DeadLetters: stream.DeadLetterBounds{
			PerSubject: settings.DLQ.MaxPerSubject, Bytes: settings.DLQ.MaxBytes, Age: settings.DLQ.MaxAge,
		},
		Journal:  JournalNames(settings),
		Replicas: settings.NATS.Replicas,
	}
}

// JournalNames returns the stream and the subjects of the journal.
func JournalNames(settings config.Config) journal.Names {
	return journal.Names{
		Stream: settings.Journal.Stream, Subject: settings.NATS.Subject, Age: settings.Journal.Age, MaxBytes: settings.Journal.MaxBytes,
		Replicas: settings.NATS.Replicas,
	}
}

// Decoder returns the decoder of a worker with these settings.
func Decoder(settings config.Config) event.Decoder {
	return event.Decoder{Prefix: settings.NATS.Subject, MaxBytes: settings.Event.MaxBytes}
}

// LongestLife returns the age at which every event has expired; 0 if no event expires.
func LongestLife(settings config.Config) time.Duration {
	return received.LongestLife(settings.Event.MaxAge, settings.Delay.MostPatient())
}

// Expiry names the age at which events of a category expire.
func Expiry(settings config.Config, category string) string {
	if received.LongestLife(settings.Event.MaxAge, settings.Delay.For(category)) > settings.Event.MaxAge {
		return "NOTIFIER_DELAY and a minute"
	}
	return "NOTIFIER_EVENT_MAX_AGE"
}

// Flap returns the rule for flapping keys.
func Flap(settings config.Config) store.Flap {
	return store.Flap{Changes: int(settings.Flap.Count), Window: settings.Flap.Window}
}

// Overrides returns how to open the bucket of live limits.
func Overrides(settings config.Config, logger *slog.Logger) overrides.Options {
	return overrides.Options{
		Name: settings.Limits.Bucket, Provision: settings.NATS.Provision, Replicas: settings.NATS.Replicas, Logger: logger,
	}
}

// earlierTimeout bounds how long a search for the earlier values of a live limit takes.
const earlierTimeout = 2 * time.Second

// Live returns what overrides the limits of the settings. It finds earlier values of a live limit in the bucket's history, and none without
// a bucket.
func Live(js jetstream.JetStream, settings config.Config, options overrides.Options) *limits.Live {
	earlier := func(of limits.LiveLevel) ([]string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), earlierTimeout)
		defer cancel()
		bucket, err := overrides.Open(ctx, js, options)
		switch {
		case errors.Is(err, overrides.ErrNoBucket):
			return nil, nil
		case err != nil:
			return nil, err
		}
		return bucket.Earlier(ctx, overrides.Name{Pattern: of.Level, Shadow: of.Shadow})
	}
	return limits.NewLive(settings.Limits.Plan(), settings.Limits.ShadowLimits, earlier, options.Logger)
}

// LiveEntries returns the overrides of a snapshot.
func LiveEntries(s overrides.Snapshot) []limits.LiveEntry {
	entries := make([]limits.LiveEntry, len(s.Entries))
	for i, e := range s.Entries {
		entries[i] = LiveEntry(e)
	}
	return entries
}

// Mutes returns the mutes in force of a snapshot.
func Mutes(s overrides.Snapshot) (mutes []*limits.Mute) {
	for _, c := range s.Mutes {
		if c.Name.Kind == overrides.Mute && !c.Until.IsZero() && !c.Lost { // only another program stores a mute without an end
			mutes = append(mutes, Mute(s, c))
		}
	}
	return mutes
}

// Mute returns a mute of a snapshot.
func Mute(s overrides.Snapshot, c overrides.Change) *limits.Mute {
	return &limits.Mute{
		Path: c.Name.MutedPath(), Reason: plain.Title(c.Value), By: c.By, Spare: c.Muting.Spare, Every: c.Muting.Every, Rule: c.Name.Rule,
		Begin: c.Changed.UTC(), Until: c.Until.UTC(), Generation: s.Generation, Revision: c.Revision,
	}
}

// LiveEntry returns one override.
func LiveEntry(e overrides.Change) limits.LiveEntry {
	return limits.LiveEntry{LiveLevel: limits.LiveLevel{Level: e.Name.Pattern, Shadow: e.Name.Shadow}, Limits: e.Value, Lost: e.Lost, Revision: e.Revision}
}

// Position returns the position of a snapshot among all states of the limits.
func Position(s overrides.Snapshot) limits.Position {
	return limits.Position{Generation: s.Generation, Revision: s.Revision}
}

// Length returns how long an override with an end was set for.
func Length(c overrides.Change) string {
	return model.Duration(c.Until.Sub(c.Changed).Round(time.Second)).String()
}
