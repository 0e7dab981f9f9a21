package received

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Candidate is a message whose event needs the throttle's decision.
type Candidate struct {
	*Message
	Event    event.Event
	Received time.Time // when it was decoded
	LookUp   bool      // expired or dropped by an operator: only look up the delivery record
	Again    bool      // a worker may have received the event before
	Certain  bool      // all earlier events that could open its pair have been decided

	DecidedUpTo time.Time // if certain: everything stored up to this time of the server's clock was decided; zero: the time is not known
}

// Request returns the candidate's request to the throttle, except whether the event may wait.
func (c Candidate) Request() store.Request {
	request := store.Request{
		ID: c.Event.Identity(), Derived: c.Event.Derived, Message: store.Message(c.Entry.Origin),
		Category: c.Event.Category, Key: c.Event.Key, Severity: c.Event.Severity, Cost: c.Event.Cost, Pair: c.Event.Pair(), Resolves: c.Event.Resolves(),
		Fold: store.Folding{Severity: c.Event.Severity.Rank()}, Slotless: c.Entry.Order.Action == room.Release,
		HasWaited: c.Waited(), Again: c.Again && !c.From.InRoom, Attempted: !c.Attempted().IsZero(), Recorded: c.Again,
	}
	if request.Slotless && request.Resolves { // it does not wait for its firing event
		request.Pair = ""
	}
	if c.Entry.IsReport() {
		request.Pair = c.Event.Keyed()
		request = request.Report(store.Change(c.Entry.Steady))
	}
	if c.LookUp {
		request.Cost = 0
	}
	return request
}
