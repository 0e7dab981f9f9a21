package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
	"unique"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// History is the events to replay, and the unusable parts of the input.
type History struct {
	// Invalid counts the lines or messages that are not replayed completely.
	Invalid int
	// Read counts all lines or messages. One may hold several events.
	Read int
	// Problems are the faults of the first unusable lines or messages, in their order.
	Problems []Problem

	events []Event
}

// Problem is a line or a message that cannot be used.
type Problem struct {
	Number uint64 // number of the line from 1; of a message, its sequence
	Err    error
}

const maxProblems = 10

// Progress is called from time to time with the progress of a task. The total is 0 if it is unknown.
type Progress func(done, total int64)

// progressEvery is the number of events between two calls of a Progress and between two checks of the context.
const progressEvery = 1024

// Bounds of the times of events. Every span between them is a time.Duration.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Unix(0, 1<<63-1)
)

// errNoTime is the fault of an event without a time, which a worker would accept.
var errNoTime = errors.New("no time; expected a member such as \"time\": \"2006-01-02T15:04:05Z\"")

// eventOf returns an event for an evaluator, at the time that its producer gave.
func eventOf(number uint64, e event.Event) Event {
	made := Event{
		Number: number, At: e.Time, Identity: e.Identity(), Derived: e.Derived, Category: e.Category, Key: e.Key, Cost: e.Cost,
		Fires: e.Pair() != "" && !e.Resolves(), Resolves: e.Resolves(),
	}
	if made.Key != "" {
		made.Severity = e.Severity.Rank()
	}
	return made
}

// eventsOf returns the events that a worker makes of a message. A body of alerts becomes one event for each alert, any other message a
// single event. The error is a *event.Fault, which may concern only some of the alerts. Faults with an accepted reason do not count.
func eventsOf(m event.Message, decoder event.Decoder, accepted ...event.Reason) ([]Event, error) {
	messages, bad := event.MessagesOf(decoder, m)
	events := make([]Event, len(messages))
	for i, message := range messages {
		e, err := decoder.Decode(message)
		if fault, faulty := errors.AsType[*event.Fault](err); faulty && !slices.Contains(accepted, fault.Reason) {
			return nil, fault
		}
		events[i] = eventOf(m.Sequence, e)
	}
	if bad != nil {
		return events, bad
	}
	return events, nil
}

// add adds the events of a line or message. It records err as a fault, and an event's invalid time too.
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
