package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// candidate is a message whose event needs the throttle's decision.
type candidate struct {
	*message
	event    event.Event
	received time.Time // when it was decoded
	lookUp   bool      // expired: only look up the delivery record
	again    bool      // a worker may have received the event before
	certain  bool      // all earlier events that could open its pair have been decided

	decidedUpTo time.Time // if certain: everything stored up to this time of the server's clock was decided; zero: the time is not known
}

// request returns the candidate's request to the throttle, except whether the event may wait.
func (c candidate) request() store.Request {
	request := store.Request{
		ID: c.event.Identity(), Derived: c.event.Derived, Message: store.Message(c.entry.Origin),
		Category: c.event.Category, Cost: c.event.Cost, Pair: c.event.Pair(), Resolves: c.event.Resolves(),
		HasWaited: c.waited(), Again: c.again && !c.source.inRoom,
	}
	if c.lookUp {
		request.Cost = 0
	}
	return request
}

// knownDenial returns a cached denial for the message's category, without decoding the message. It returns none for an event that may have
// been admitted before, for an event that resolves another one (no limit applies), for a firing event of a pair (it may repeat a posted
// event, which is a duplicate and no drop), and for a group (each alert may have its own category).
func (w *Worker) knownDenial(ctx context.Context, m *message, again bool) *store.Denial {
	category, bare, err := w.o.Decoder.CategoryOf(m.entry.Subject)
	if err != nil || bare {
		return nil
	}
	hints := event.HintsOf(m.Data())
	if hints.Group && m.decoded == nil {
		return nil
	}
	m.category = category
	if hints.Resolves || hints.Fires || w.mayWait(category) || again {
		return nil
	}
	return w.throttle.Full(category)
}

// read returns the decoded event, a cached denial for its category, or a decoding fault.
func (w *Worker) read(m *message, again bool) (e event.Event, denial *store.Denial, fault *event.Fault) {
	of := m.decoded
	if of == nil {
		of = decodedOf(m.decode(w.o.Decoder))
	}
	e, fault = of.event, of.fault
	m.category, m.shownID, m.title, m.cost = e.Category, e.ShownID(), e.Title, e.Cost
	switch {
	case fault != nil:
		return e, nil, fault
	case again:
	case e.Resolves():
		if w.throttle.KnownUnpaired(e.Pair(), m.entry.Since.Add(pairPatience)) {
			w.metrics.Resolved("unpaired")
			return e, store.DeniedUnpaired, nil
		}
	case e.Pair() != "" && !e.Derived:
	case !w.mayWait(e.Category):
		return e, w.throttle.Full(e.Category), nil
	}
	return e, nil, nil
}

// shownID returns the ID of a message's event. It decodes an event that was dropped undecoded, unless decoding takes long.
func (w *Worker) shownID(m *message) string {
	if m.shownID == "" {
		var e event.Event
		if len(m.Data()) >= heavyBytes {
			e = w.o.Decoder.Identify(m.asStored())
		} else {
			e, _ = m.decode(w.o.Decoder) // even a faulty event has its ID
		}
		m.shownID, m.cost = e.ShownID(), e.Cost
	}
	return m.shownID
}

// clockSkew is the tolerated error of the estimate of the server's clock.
const clockSkew = 5 * time.Second

// forgottenUntil is the time up to which the server may have forgotten deliveries: a new consumer has no earlier deliveries, and a server
// that was killed may have lost some.
func (w *Worker) forgottenUntil() time.Time {
	created, reconnected := w.streams.Layout().Created, w.streams.Clock.At(w.streams.Connection.LastReconnect()).Add(clockSkew)
	if created.After(reconnected) {
		return created
	}
	return reconnected
}

// deliveredBefore reports whether a worker may have received the event before.
func (m *message) deliveredBefore(forgotten time.Time) bool {
	return m.delivered > 1 || m.source.inRoom || m.stored.Before(forgotten)
}

// tooOld reports whether an event has expired at a time of this host's clock. If the event's category may wait for slots, the event lives
// at least until the end of the longest wait, plus timeToDeliver.
func (w *Worker) tooOld(now time.Time, m *message) bool {
	age := w.streams.Clock.At(now).Sub(m.entry.Since)
	if w.o.MaxAge == 0 || age <= w.o.MaxAge {
		return false
	}
	if w.o.Delay == nil {
		return true
	}
	delay := w.o.Delay(w.categoryOf(m))
	return delay == 0 || age > delay+timeToDeliver
}

// categoryOf returns the category of a message that may not have been decoded yet, or "" if the message has none.
func (w *Worker) categoryOf(m *message) string {
	if m.category != "" {
		return m.category
	}
	category, bare, err := w.o.Decoder.CategoryOf(m.entry.Subject)
	if err != nil || !bare {
		return category
	}
	e, _ := m.decode(w.o.Decoder)
	return e.Category
}
