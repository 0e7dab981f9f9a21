package outcome

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// RefusedFor is how long a category's denied events are dropped without a request, once an event of that category was refused its wait.
const RefusedFor = time.Second

const mostRefusals = 10_000

// RoomMetrics counts events on their way to the room. Its methods may be called concurrently.
type RoomMetrics interface {
	Split()                           // a body that held several events
	Delayed(category, level string)   // an event that waits for a slot; level: of the rule that denied it, "" if not known
	RoomRefused(reason string, n int) // events refused because the room was full for their category
}

// Refusals remembers whose events may not enter the room at present. Its methods may be called concurrently.
type Refusals struct {
	Delay   func(category string) time.Duration // see [received.Reader]
	crowds  *expiring.Map[string, string]       // by category or crowd: why its events may not wait (journal.TooMany, journal.TooLate)
	metrics RoomMetrics
	now     func() time.Time
}

// NewRefusals remembers refusals by the clock now. Delay is as in [received.Reader].
func NewRefusals(delay func(string) time.Duration, metrics RoomMetrics, now func() time.Time) *Refusals {
	return &Refusals{Delay: delay, crowds: expiring.New[string, string](mostRefusals, now), metrics: metrics, now: now}
}

// Crowd returns the key of a first level's events that wait in the room for a reason. No category has such a name.
func Crowd(reason room.Reason, first string) string { return string(reason) + " " + first }

// AddLate remembers for RefusedFor that the slots of a category open too late.
func (r *Refusals) AddLate(category string) {
	r.crowds.Put(category, journal.TooLate, r.now().Add(RefusedFor))
}

// AddCrowded remembers for RefusedFor that too many events wait. The key is a category or a crowd.
func (r *Refusals) AddCrowded(key string) {
	r.crowds.Put(key, journal.TooMany, r.now().Add(RefusedFor))
}

// Crowded reports whether the room has just refused an event of a first level that was to wait for a reason.
func (r *Refusals) Crowded(reason room.Reason, first string) bool {
	_, refused := r.crowds.Get(Crowd(reason, first))
	return refused
}

// Waits reports whether the settings let denied events of a category wait for a slot.
func (r *Refusals) Waits(category string) bool { return r.Delay(category) > 0 }

// MayWait reports whether denied events of a category may wait for a slot now.
func (r *Refusals) MayWait(category string) bool {
	_, refused := r.crowds.Get(category)
	return r.Waits(category) && !refused
}

// Dropped returns the settlement of an event that is dropped. Only an event whose slot opens at a known time may wait.
func (r *Refusals) Dropped(m *received.Message, denial *store.Denial) Settlement {
	dropped := Settlement{Message: m, Outcome: journal.Dropped, Denial: denial}
	if denial.ByLimit() && !denial.Opens.IsZero() && r.Waits(m.About.Category) {
		dropped.Refused, _ = r.crowds.Get(m.About.Category)
		if dropped.Refused == journal.TooMany {
			r.metrics.RoomRefused(string(room.Slot), 1)
		}
	}
	return dropped
}

// DropCrowded returns the settlement of a message whose event may not wait because the room holds too many events.
func (r *Refusals) DropCrowded(m *received.Message, reason room.Reason) Settlement {
	r.metrics.RoomRefused(string(reason), 1)
	return r.Dropped(m, store.DeniedByRoom)
}
