package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// History is the events to replay, and what of the input could not be used.
type History struct {
	// Invalid counts the lines or messages that cannot be used, or some of whose alerts cannot, which are not replayed.
	Invalid int
	// Read counts the lines or messages, those included that cannot be used. One may hold several events.
	Read int
	// Problems tells of the first few of them what is wrong, in their order.
	Problems []Problem

	events     []storedEvent
	categories []string          // each once
	places     map[string]uint32 // category -> place in categories
}

// Problem is a line or a message that cannot be used.
type Problem struct {
	Number uint64 // of the line, from 1, or the message's sequence
	Err    error
}

// maxProblems is how many problems are told.
const maxProblems = 10

// storedEvent is small, since there may be millions.
type storedEvent struct {
	at       int64 // microseconds since 1970
	number   uint64
	identity string
	pair     string
	category uint32 // place in History.categories
	cost     uint16
	derived  bool
	resolves bool
}

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

// replayed is what a replay needs of an event.
type replayed struct {
	number   uint64 // of its line or message
	identity string
	derived  bool
	category string
	cost     int
	pair     string
	resolves bool
	time     time.Time // that the producer gave
}

func replayedOf(number uint64, e event.Event) replayed {
	return replayed{
		number: number, identity: e.Identity(), derived: e.Derived, category: e.Category, cost: e.Cost,
		pair: e.Pair(), resolves: e.Resolves(), time: e.Time,
	}
}

// eventsOf are the events that a worker makes of a message: those of its alerts, else its own. The error, a *event.Fault,
// tells what cannot be used of it, which may be some of the alerts. An event with nothing to show counts where mayBeEmpty.
func eventsOf(m event.Message, decoder event.Decoder, mayBeEmpty bool) ([]replayed, error) {
	parts, bad := decoder.Parts(m)
	if parts == nil {
		e, err := decoder.Decode(m)
		if fault, faulty := errors.AsType[*event.Fault](err); faulty && (fault.Reason != event.ReasonEmpty || !mayBeEmpty) {
			return nil, fault
		}
		return []replayed{replayedOf(m.Sequence, e)}, nil
	}
	events := make([]replayed, len(parts))
	for i, part := range parts {
		e, err := decoder.Decode(event.Message{
			Subject: part.Subject, Data: part.Data, Stream: m.Stream, Sequence: m.Sequence, Room: part.Room(),
		})
		if err != nil {
			return nil, err
		}
		events[i] = replayedOf(m.Sequence, e)
	}
	if bad != nil {
		return events, bad
	}
	return events, nil
}

// add takes an event that was at a time.
func (h *History) add(at time.Time, e replayed) error {
	if at.IsZero() {
		return errNoTime
	}
	if at.Before(earliest) || at.After(latest) {
		return fmt.Errorf("time %s is not between %d and %d",
			at.Format(time.RFC3339), earliest.UTC().Year(), latest.UTC().Year())
	}
	place, known := h.places[e.category]
	if !known {
		if h.places == nil {
			h.places = make(map[string]uint32)
		}
		place = uint32(len(h.categories)) //nolint:gosec // there are fewer categories than events, and those fit in memory
		h.categories = append(h.categories, e.category)
		h.places[e.category] = place
	}
	h.events = append(h.events, storedEvent{
		at: at.UnixMicro(), number: e.number, identity: e.identity, derived: e.derived, pair: e.pair, resolves: e.resolves, category: place,
		cost: uint16(e.cost), //nolint:gosec // at most event.MaxCost
	})
	return nil
}

func (h *History) reject(number uint64, err error) {
	h.Invalid++
	if len(h.Problems) < maxProblems {
		h.Problems = append(h.Problems, Problem{Number: number, Err: err})
	}
}

// sort puts the events in the order of their times; those of one time stay in the order of the input.
func (h *History) sort() {
	slices.SortStableFunc(h.events, func(a, b storedEvent) int { return cmp.Compare(a.at, b.at) })
}
