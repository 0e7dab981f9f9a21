package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// stays ends the stays of events that no longer wait in the room, in a goroutine of its own. A stay that is not ended here expires.
type stays struct {
	room    stay.Room
	names   stream.Names
	leaving *queue[[]store.Stay]
}

func newStays(room stay.Room, names stream.Names) *stays {
	return &stays{room: room, names: names, leaving: newQueue[[]store.Stay](leavingQueue)}
}

// stayIn is how long an event without a known return time counts at most: longer than a channel is likely to be paused.
const stayIn = 24 * time.Hour

// comesBackWithin is how much longer than planned a returning event counts.
const comesBackWithin = 5 * time.Minute

// leaveSettled ends the stays of events that go on in no other message, without waiting. A stay that is not ended here expires.
func (s *stays) leaveSettled(settled []settlement) {
	var ended []store.Stay
	for _, one := range settled {
		if place, waited := s.of(one.message); waited && !one.goesOn {
			ended = append(ended, place)
		}
	}
	s.leave(ended...)
}

// of returns the stay of a message in the room. A message outside the room has none.
func (s *stays) of(m *message) (place store.Stay, waited bool) {
	if !m.from.inRoom {
		return store.Stay{}, false
	}
	first := s.names.Room().First(m.Subject)
	return stay.Of(first, *m.entry, room.Kept(m.Header, m.Data), 0), first != ""
}

// leavingQueue is how many batches of ended stays may be queued. Stays of further batches expire.
const leavingQueue = 64

func (s *stays) leave(ended ...store.Stay) {
	if len(ended) == 0 {
		return
	}
	select {
	case s.leaving.items <- ended:
	default:
	}
}

func (s *stays) start() {
	s.leaving.start(1, func(stays []store.Stay) { _ = s.room.LeaveRoom(context.Background(), stays) })
}

// refusedFor is how long a category's denied events are dropped without a request, once an event of that category was refused its wait.
const refusedFor = time.Second

const mostRefusals = 10_000

// RoomMetrics counts events on their way to the room. Its methods may be called concurrently.
type RoomMetrics interface {
	Split()                           // a body that held several events
	Delayed(category, level string)   // an event that waits for a slot; level: of the rule that denied it, "" if not known
	RoomRefused(reason string, n int) // events refused because the room was full for their category
}

// refusals remembers whose events may not enter the room at present. Its methods may be called concurrently.
type refusals struct {
	delay   func(category string) time.Duration // see reader
	crowds  *expiring.Map[string, string]       // by category or crowd: why its events may not wait (journal.TooMany, journal.TooLate)
	metrics RoomMetrics
	now     func() time.Time
}

func newRefusals(delay func(string) time.Duration, metrics RoomMetrics, now func() time.Time) *refusals {
	return &refusals{delay: delay, crowds: expiring.New[string, string](mostRefusals, now), metrics: metrics, now: now}
}

// crowd returns the key of a first level's events that wait in the room for a reason. No category has such a name.
func crowd(reason room.Reason, first string) string { return string(reason) + " " + first }

// addLate remembers for refusedFor that the slots of a category open too late.
func (r *refusals) addLate(category string) {
	r.crowds.Put(category, journal.TooLate, r.now().Add(refusedFor))
}

// addCrowded remembers for refusedFor that too many events wait. The key is a category or a crowd.
func (r *refusals) addCrowded(key string) {
	r.crowds.Put(key, journal.TooMany, r.now().Add(refusedFor))
}

// crowded reports whether the room has just refused an event of a first level that was to wait for a reason.
func (r *refusals) crowded(reason room.Reason, first string) bool {
	_, refused := r.crowds.Get(crowd(reason, first))
	return refused
}

// waits reports whether the settings let denied events of a category wait for a slot.
func (r *refusals) waits(category string) bool { return r.delay(category) > 0 }

// mayWait reports whether denied events of a category may wait for a slot now.
func (r *refusals) mayWait(category string) bool {
	_, refused := r.crowds.Get(category)
	return r.waits(category) && !refused
}

// dropped returns the settlement of an event that is dropped. Only an event whose slot opens at a known time may wait.
func (r *refusals) dropped(m *message, denial *store.Denial) settlement {
	dropped := settlement{message: m, outcome: journal.Dropped, denial: denial}
	if denial.ByLimit() && !denial.Opens.IsZero() && r.waits(m.about.category) {
		dropped.refused, _ = r.crowds.Get(m.about.category)
		if dropped.refused == journal.TooMany {
			r.metrics.RoomRefused(string(room.Slot), 1)
		}
	}
	return dropped
}

// dropCrowded returns the settlement of a message whose event may not wait because the room holds too many events.
func (r *refusals) dropCrowded(m *message, reason room.Reason) settlement {
	r.metrics.RoomRefused(string(reason), 1)
	return r.dropped(m, store.DeniedByRoom)
}
