package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"time"
	"unique"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// History is the events to replay, and what of the input could not be used.
type History struct {
	// Invalid counts the lines or messages that are not replayed, or not with all of their alerts.
	Invalid int
	// Read counts the lines or messages, those included that cannot be used. One may hold several events.
	Read int
	// Problems tells of the first few of them what is wrong, in their order.
	Problems []Problem

	events []Event
}

// Problem is a line or a message that cannot be used.
type Problem struct {
	Number uint64 // of the line, from 1, or the message's sequence
	Err    error
}

// maxProblems is how many problems are told.
const maxProblems = 10

// Progress is told now and then how far a piece of work is. The total is 0 where it is not known.
type Progress func(done, total int64)

// progressEvery is how many events lie between two calls of a Progress, and between two looks at the context.
const progressEvery = 1024

// Len is the number of events.
func (h *History) Len() int { return len(h.events) }

// The times that are taken: those from which every span is a time.Duration.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Unix(0, 1<<63-1)
)

// errNoTime is the fault of an event that the worker would take, but that says not when it was.
var errNoTime = errors.New("no time; expected a member such as \"time\": \"2006-01-02T15:04:05Z\"")

// eventOf is what an evaluator sees of an event, at the time that its producer gave.
func eventOf(number uint64, e event.Event) Event {
	return Event{
		Number: number, At: e.Time, Identity: e.Identity(), Derived: e.Derived, Category: e.Category, Cost: e.Cost,
		Pair: e.Pair(), Resolves: e.Resolves(),
	}
}

// eventsOf are the events that a worker makes of a message: those of its alerts, else its own. The error, a *event.Fault,
// tells what cannot be used of it, which may be some of the alerts. An event with nothing to show counts where mayBeEmpty.
func eventsOf(m event.Message, decoder event.Decoder, mayBeEmpty bool) ([]Event, error) {
	parts, bad := decoder.Parts(m)
	if parts == nil {
		e, err := decoder.Decode(m)
		if fault, faulty := errors.AsType[*event.Fault](err); faulty && (fault.Reason != event.ReasonEmpty || !mayBeEmpty) {
			return nil, fault
		}
		return []Event{eventOf(m.Sequence, e)}, nil
	}
	events := make([]Event, len(parts))
	for i, part := range parts {
		e, err := decoder.Decode(event.Message{
			Subject: part.Subject, Data: part.Data, Stream: m.Stream, Sequence: m.Sequence, Room: &part.Room,
		})
		if err != nil {
			return nil, err
		}
		events[i] = eventOf(m.Sequence, e)
	}
	if bad != nil {
		return events, bad
	}
	return events, nil
}

// add takes the events of a line or message, and notes what cannot be used of it: err, or a time of an event.
func (h *History) add(number uint64, events []Event, err error) {
	h.Read++
	for _, e := range events {
		fault := checkTime(e.At)
		err = cmp.Or(err, fault)
		if fault == nil {
			e.At = e.At.UTC().Truncate(time.Microsecond)
			e.Category = unique.Make(e.Category).Value() // millions of events have few categories
			h.events = append(h.events, e)
		}
	}
	if err == nil {
		return
	}
	h.Invalid++
	if len(h.Problems) < maxProblems {
		h.Problems = append(h.Problems, Problem{Number: number, Err: err})
	}
}

func checkTime(at time.Time) error {
	if at.IsZero() {
		return errNoTime
	}
	if at.Before(earliest) || at.After(latest) {
		return fmt.Errorf("time %s is not between %d and %d",
			at.Format(time.RFC3339), earliest.UTC().Year(), latest.UTC().Year())
	}
	return nil
}
