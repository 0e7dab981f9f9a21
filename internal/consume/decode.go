package consume

import (
	"time"

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
	reader   *reader
	known    Known
	mutes    Mutes
	refusals *refusals
	bodies   *bodies
	updater  *updater
	settler  *settler
	letters  *letterQueue
	replans  *replanner
	pool     *pool
	metrics  EventMetrics
	forged   watch.Metrics
}

// knownDenial returns a cached denial for a candidate's category, without decoding the message. It returns none for an event that may have
// been admitted before, for an event that resolves another one (no limit applies), for a firing event of a pair (it may repeat a posted
// event, which is a duplicate and no drop), for an event that may be folded, and for a group (each alert may have its own category).
func (i *intake) knownDenial(c *candidate, hints event.Hints) *store.Denial {
	category, bare, err := i.reader.CategoryOf(c.entry.Subject)
	if err != nil || bare {
		return nil
	}
	if hints.Group && c.decoded == nil {
		return nil
	}
	c.about.category = category
	if hints.Resolves || hints.Fires || c.again {
		return nil
	}
	return i.fullOrMuted(category, anySeverity, "", i.reader.fold(category) > 0)
}

// fullOrMuted returns a cached denial for a fresh event; nil: there is none, or the event may wait for a slot or be folded.
func (i *intake) fullOrMuted(category string, severity event.Severity, key string, mayFold bool) *store.Denial {
	if denial := i.mutes.Muted(category, severity); denial != nil {
		return denial
	}
	if i.refusals.mayWait(category) || mayFold {
		return nil
	}
	return i.known.Full(category, key)
}

// read decodes the event of a candidate. It returns a cached denial for the event's category or a decoding fault.
func (i *intake) read(c *candidate) (denial *store.Denial, fault *event.Fault) {
	m, of := c.message, c.decoded
	if of == nil {
		of = decodedOf(i.reader.Decode(m.published()))
	}
	c.event = of.event
	e := &c.event
	m.about = about{category: e.Category, shownID: e.ShownID(), title: e.Title, key: e.Key, pair: e.Pair(), resolves: e.Resolves(), cost: e.Cost}
	if m.entry.IsReport() { // the key is neither resolved nor fired by it
		m.about.pair, m.about.resolves = "", false
	}
	switch {
	case of.fault != nil:
		return nil, of.fault
	case c.again:
	case e.Resolves():
		if i.known.KnownUnpaired(e.Pair(), m.entry.Since.Add(pairPatience)) {
			i.metrics.Resolved("unpaired")
			return store.DeniedUnpaired, nil
		}
	case e.Pair() != "" && (!e.Derived || i.reader.flaps):
	default:
		return i.fullOrMuted(e.Category, e.Severity, e.Key, e.Key != "" && i.reader.fold(e.Category) > 0), nil
	}
	return nil, nil
}
