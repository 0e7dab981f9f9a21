package consume

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/update"
	"github.com/seed-4578ace9/notifier/internal/consume/watch"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Known is what a worker knows about events without a decision: a part of [throttle.Limiter]. Its methods may be called concurrently.
type Known interface {
	// Full returns a cached denial for the events of a category and a key; nil: none. Without a key, it knows the limits of paths alone.
	Full(category, key string) *store.Denial

	// LearnUnpaired records that a pair was not open when every event stored up to a time of the server's clock was decided. KnownUnpaired
	// reports whether LearnUnpaired recently recorded a later time than the given one.
	KnownUnpaired(pair string, after time.Time) bool
	LearnUnpaired(pair string, decidedUpTo time.Time)
}

// intake decodes messages, and ends those that need no decision. One goroutine uses it.
type intake struct {
	reader   *received.Reader
	known    Known
	mutes    Mutes
	refusals *outcome.Refusals
	bodies   *bodies
	updater  *update.Updater
	settler  *outcome.Settler
	letters  *outcome.Letters
	replans  *move.Replanner
	pool     *stage.Pool
	metrics  outcome.EventMetrics
	forged   watch.Metrics
}

// knownDenial returns a cached denial for a candidate's category, without decoding the message. It returns none for an event that may have
// been admitted before, for an event that resolves another one (no limit applies), for a firing event of a pair (it may repeat a posted
// event, which is a duplicate and no drop), for an event that may be folded, and for a group (each alert may have its own category).
func (i *intake) knownDenial(c *received.Candidate, hints event.Hints) *store.Denial {
	category, bare, err := i.reader.CategoryOf(c.Entry.Subject)
	if err != nil || bare {
		return nil
	}
	if hints.Group && c.Decoded == nil {
		return nil
	}
	c.About.Category = category
	if hints.Resolves || hints.Fires || c.Again {
		return nil
	}
	return i.fullOrMuted(category, anySeverity, "", i.reader.Fold(category) > 0)
}

// fullOrMuted returns a cached denial for a fresh event; nil: there is none, or the event may wait for a slot or be folded.
func (i *intake) fullOrMuted(category string, severity event.Severity, key string, mayFold bool) *store.Denial {
	if denial := i.mutes.Muted(category, severity); denial != nil {
		return denial
	}
	if i.refusals.MayWait(category) || mayFold {
		return nil
	}
	return i.known.Full(category, key)
}

// read decodes the event of a candidate. It returns a cached denial for the event's category or a decoding fault.
func (i *intake) read(c *received.Candidate) (denial *store.Denial, fault *event.Fault) {
	m, of := c.Message, c.Decoded
	if of == nil {
		of = received.DecodedOf(i.reader.Decode(m.Published()))
	}
	c.Event = of.Event
	e := &c.Event
	m.About = received.About{Category: e.Category, ShownID: e.ShownID(), Title: e.Title, Key: e.Key, Pair: e.Pair(), Resolves: e.Resolves(), Cost: e.Cost}
	if m.Entry.IsReport() { // the key is neither resolved nor fired by it
		m.About.Pair, m.About.Resolves = "", false
	}
	switch {
	case of.Fault != nil:
		return nil, of.Fault
	case c.Again:
	case e.Resolves():
		if i.known.KnownUnpaired(e.Pair(), m.Entry.Since.Add(pairPatience)) {
			i.metrics.Resolved("unpaired")
			return store.DeniedUnpaired, nil
		}
	case e.Pair() != "" && (!e.Derived || i.reader.Flaps):
	default:
		return i.fullOrMuted(e.Category, e.Severity, e.Key, e.Key != "" && i.reader.Fold(e.Category) > 0), nil
	}
	return nil, nil
}
