package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// candidate is a message whose event asks to be delivered.
type candidate struct {
	*message
	event    event.Event
	received time.Time // when it was decoded
	lookUp   bool      // it is too old, and only asks what is known of it
	again    bool      // a worker may have had the event before
	certain  bool      // nothing that may open its pair was left undecided before the throttle is asked

	decidedUpTo time.Time // certain: by the server's clock, everything stored until then was decided; zero if that time is not known
}

// request is what the throttle is asked about a candidate, but for whether it may wait.
func (c candidate) request() throttle.Request {
	request := throttle.Request{
		ID: c.event.Identity(), Derived: c.event.Derived, Message: throttle.Message(c.entry.Origin),
		Category: c.event.Category, Cost: c.event.Cost, Pair: c.event.Pair(), Resolves: c.event.Resolves(),
		HasWaited: c.waited(), Again: c.again && !c.source.inRoom,
	}
	if c.lookUp {
		request.Cost = 0
	}
	return request
}

// knownDenial finds the denial that the category of a message is known to get, without decoding the message. An event that may have been
// admitted before is not dropped here. Nor is an event that resolves another one: no limit concerns it. Nor is a firing event of a pair: it may
// repeat one that was posted, which is a duplicate and no drop. Nor is a group: each alert may have a category.
func (w *Worker) knownDenial(ctx context.Context, m *message, again bool) *throttle.Denial {
	category, bare, err := w.o.Decoder.CategoryOf(m.entry.Subject)
	if err != nil || bare || m.decoded == nil && event.MayHoldGroup(m.Data()) {
		return nil
	}
	m.category = category
	if event.MayResolve(m.Data()) || event.MayFire(m.Data()) || w.mayWait(category) || again && !w.isNew(ctx, m) {
		return nil
	}
	return w.throttle.Full(category)
}

// read finds the event of a message, the denial that the event is known to get, or what is wrong with the message.
func (w *Worker) read(m *message, again bool) (e event.Event, denial *throttle.Denial, fault *event.Fault) {
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
			return e, throttle.DeniedUnpaired, nil
		}
	case e.Pair() != "" && !e.Derived:
	case !w.mayWait(e.Category):
		return e, w.throttle.Full(e.Category), nil
	}
	return e, nil, nil
}

// shownID is the ID of a message's event. An event that was dropped undecoded is decoded here, unless that takes long.
func (w *Worker) shownID(m *message) string {
	if m.shownID == "" {
		var e event.Event
		if len(m.Data()) >= heavyBytes {
			e = w.o.Decoder.Identify(m.asStored())
		} else {
			e, _ = m.decode(w.o.Decoder) // it has its ID whatever is wrong with it
		}
		m.shownID, m.cost = e.ShownID(), e.Cost
	}
	return m.shownID
}

// clockSkew is how far what is known of the server's clock may be wrong without harm.
const clockSkew = 5 * time.Second

// forgottenUntil is the time up to which the server may have forgotten deliveries: a new consumer knows of none, and a server that was
// killed may have lost some.
func (w *Worker) forgottenUntil() time.Time {
	created, reconnected := w.topology.Load().created, w.clock.at(w.o.Connection.lastReconnect()).Add(clockSkew)
	if created.After(reconnected) {
		return created
	}
	return reconnected
}

// deliveredBefore tells whether a worker may have had the event before.
func (m *message) deliveredBefore(forgotten time.Time) bool {
	return m.delivered > 1 || m.source.inRoom || m.stored.Before(forgotten)
}

// tooOld reports whether an event has expired at a time of this host's clock. An event whose category may wait for slots lives at least
// until the end of that wait, and for timeToDeliver after it.
func (w *Worker) tooOld(now time.Time, m *message) bool {
	age := w.clock.at(now).Sub(m.entry.Since)
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
