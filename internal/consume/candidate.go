package consume

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// candidate is a message whose event needs the throttle's decision.
type candidate struct {
	*message
	event    event.Event
	received time.Time // when it was decoded
	lookUp   bool      // expired or dropped by an operator: only look up the delivery record
	again    bool      // a worker may have received the event before
	certain  bool      // all earlier events that could open its pair have been decided

	decidedUpTo time.Time // if certain: everything stored up to this time of the server's clock was decided; zero: the time is not known
}

// request returns the candidate's request to the throttle, except whether the event may wait.
func (c candidate) request() store.Request {
	request := store.Request{
		ID: c.event.Identity(), Derived: c.event.Derived, Message: store.Message(c.entry.Origin),
		Category: c.event.Category, Key: c.event.Key, Severity: c.event.Severity, Cost: c.event.Cost, Pair: c.event.Pair(), Resolves: c.event.Resolves(),
		Fold: store.Folding{Severity: c.event.Severity.Rank()}, Slotless: c.entry.Order.Action == room.Release,
		HasWaited: c.waited(), Again: c.again && !c.from.inRoom, Attempted: !c.attempted().IsZero(),
	}
	if request.Slotless && request.Resolves { // it does not wait for its firing event
		request.Pair = ""
	}
	if c.entry.IsReport() {
		request.Pair = c.event.Keyed()
		request = request.Report(store.Change(c.entry.Steady))
	}
	if c.lookUp {
		request.Cost = 0
	}
	return request
}
