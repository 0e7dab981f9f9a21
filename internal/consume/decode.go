package consume

import (
	"context"
	"errors"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// candidate is a message whose event asks to be delivered.
type candidate struct {
	*message
	event   event.Event
	lookUp  bool // it is too old, and only asks what is known of it
	certain bool // nothing that may open its pair was left undecided before the throttle is asked
}

// request is what the throttle is asked about a candidate, but for whether it may wait.
func (c candidate) request() throttle.Request {
	request := throttle.Request{
		ID: c.event.Identity(), Derived: c.event.Derived, Message: throttle.Message(c.entry.Origin),
		Category: c.event.Category, Cost: c.event.Cost, Pair: c.event.Pair(), Resolves: c.event.Resolves(),
		HasWaited: c.waited(),
	}
	if c.lookUp {
		request.Cost = 0
	}
	return request
}

// read finds out what a message is about: an event, or the level that is known to be full (found without decoding
// where the subject names the category), or what is wrong with it. A message that was delivered before is not dropped unless it
// is certain that its event was not admitted then. Nor is, unasked, an event that resolves another one, which no limit concerns.
func (w *Worker) read(ctx context.Context, m *message, again bool) (e event.Event, full string, fault *event.Fault) {
	category, bare, err := w.o.Decoder.CategoryOf(m.entry.Subject)
	decodeFirst := bare || event.MayResolve(m.Data()) || w.mayWait(category)
	if err == nil && !bare {
		m.category = category
		if !decodeFirst && (!again || w.isNew(ctx, m)) {
			if level, known := w.throttle.Full(category); known {
				return event.Event{}, level, nil
			}
		}
	}
	e, err = m.decode(w.o.Decoder)
	m.category = e.Category
	if err != nil {
		errors.As(err, &fault)
		return e, "", fault
	}
	switch {
	case !decodeFirst || again:
	case e.Resolves():
		if w.throttle.KnownUnpaired(e.Pair(), m.entry.Origin.Stored) {
			w.metrics.Resolved("unpaired")
			return e, throttle.LevelUnpaired, nil
		}
	case !w.mayWait(e.Category):
		if level, known := w.throttle.Full(e.Category); known {
			return e, level, nil
		}
	}
	return e, "", nil
}

// clockSkew is how far what is known of the server's clock may be wrong without harm.
const clockSkew = 5 * time.Second

// forgottenUntil returns the time up to which the server may have delivered messages without knowing that any more: a consumer
// that was made anew knows nothing of what is older, and a server that was killed may have forgotten what it had delivered.
func (w *Worker) forgottenUntil() time.Time {
	created, reconnected := w.place.Load().created, w.clock.at(w.o.Connection.lastReconnect()).Add(clockSkew)
	if created.After(reconnected) {
		return created
	}
	return reconnected
}

// deliveredBefore tells whether a worker may have had the event before: the consumer says so, or the event comes from the room, or
// the message was stored before `forgotten`.
func (m *message) deliveredBefore(forgotten time.Time) bool {
	return m.delivered > 1 || m.source.inRoom || m.stored.Before(forgotten)
}

func (w *Worker) tooOld(m *message) bool { return w.tooOldAt(time.Now(), m) }

func (w *Worker) tooOldAt(now time.Time, m *message) bool {
	return w.o.MaxAge > 0 && w.clock.at(now).Sub(m.entry.Since) > w.o.MaxAge
}
