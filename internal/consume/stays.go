package consume

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Room bounds the events that wait in the room: a [throttle.Room]. Its methods may be called concurrently, and repeated.
type Room interface {
	// EnterRoom reports for each stay whether the event may wait in the room, by the bound of its first level. LeaveRoom ends stays.
	EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error)
	LeaveRoom(ctx context.Context, stays []store.Stay) error

	// Stays returns the stays of a first level with their ends: see [store.Queues.Stays]. Claim returns true for one worker in each period.
	Stays(ctx context.Context, first string) (map[store.Stay]time.Time, error)
	Claim(ctx context.Context, task store.Task, period time.Duration) (bool, error)
}

// stays ends the stays of events that no longer wait in the room, in a goroutine of its own. A stay that is not ended here expires.
type stays struct {
	room    Room
	names   stream.Names
	leaving *queue[[]store.Stay]
}

func newStays(room Room, names stream.Names) *stays {
	return &stays{room: room, names: names, leaving: newQueue[[]store.Stay](leavingQueue)}
}

// stayIn is how long an event without a known return time counts at most: longer than a channel is likely to be paused.
const stayIn = 24 * time.Hour

// comesBackWithin is how much longer than planned a returning event counts.
const comesBackWithin = 5 * time.Minute

// weightBytes is the size for which an event counts as one more event in the room.
const weightBytes = 16 << 10

// weightOf returns for how many events an event of a size counts in the room.
func weightOf(size int) int { return 1 + size/weightBytes }

// undecodedBytes is the weightBytes of an undecoded body, which may hold an alert in every few hundred bytes.
const undecodedBytes = 1 << 10

// stayOf returns a message's stay in the room. A message that moves again has the same stay. The undecoded bodies of a first level have a
// separate share, so they leave room for the parts into which they are split. The updates of posted messages have a share of their own too, so
// they leave room for events: each message has one place. So do the events that wait to be folded, so a flood of one key leaves room for resolved
// events.
func stayOf(first string, entry room.Entry, size int, d time.Duration) store.Stay {
	stay := store.Stay{First: first, Member: entry.Origin.String() + " " + entry.Part, Weight: weightOf(size), For: d}
	if entry.Reason == room.Body {
		stay.First, stay.Weight = first+shareOfBodies, 1+size/undecodedBytes
	}
	if entry.Fires {
		stay.First = first + shareOfFolds
	}
	if entry.Reason == room.Update {
		stay.First, stay.Member = first+shareOfUpdates, "update "+messageOf(entry.Receipt)
	}
	if entry.Steady > 0 {
		stay.First, stay.Member = first+shareOfUpdates, "steady "+entry.ID+" "+entry.Origin.String()
	}
	return stay
}

// The separate shares of a first level. Each is counted like a first level of its own, with a name that no category has.
const (
	shareOfBodies  = " bodies"
	shareOfFolds   = " folds"
	shareOfUpdates = " updates"
)

func sharesOf(first string) []string {
	return []string{first, first + shareOfBodies, first + shareOfFolds, first + shareOfUpdates}
}

// leaveSettled ends the stays of events that go on in no other message, without waiting. A stay that is not ended here expires.
func (s *stays) leaveSettled(settled []settlement) {
	var ended []store.Stay
	for _, one := range settled {
		if stay, waited := s.of(one.message); waited && !one.goesOn {
			ended = append(ended, stay)
		}
	}
	s.leave(ended...)
}

// of returns the stay of a message in the room. A message outside the room has none.
func (s *stays) of(m *message) (stay store.Stay, waited bool) {
	if !m.from.inRoom {
		return store.Stay{}, false
	}
	first := s.names.Room().First(m.Subject)
	return stayOf(first, *m.entry, room.Kept(m.Header, m.Data), 0), first != ""
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
	crowds  *expiring.Map[string, bool]         // by category or crowd: whether too many events wait, or the slots open too late
	metrics RoomMetrics
}

func newRefusals(delay func(string) time.Duration, metrics RoomMetrics) *refusals {
	return &refusals{delay: delay, crowds: expiring.New[string, bool](mostRefusals, time.Now), metrics: metrics}
}

// crowd returns the key of a first level's events that wait in the room for a reason. No category has such a name.
func crowd(reason room.Reason, first string) string { return string(reason) + " " + first }

// addLate remembers for refusedFor that the slots of a category open too late.
func (r *refusals) addLate(category string) {
	r.crowds.Put(category, false, time.Now().Add(refusedFor))
}

// addCrowded remembers for refusedFor that too many events wait. The key is a category or a crowd.
func (r *refusals) addCrowded(key string) {
	r.crowds.Put(key, true, time.Now().Add(refusedFor))
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

func (r *refusals) dropped(m *message, denial *store.Denial) settlement {
	if denial != store.DeniedUnpaired && denial != store.DeniedByRoom && denial != store.DeniedByOperator && r.waits(m.about.category) {
		if crowded, _ := r.crowds.Get(m.about.category); crowded {
			r.metrics.RoomRefused(string(room.Slot), 1)
		}
	}
	return settlement{message: m, outcome: journal.Dropped, denial: denial}
}

// dropCrowded returns the settlement of a message whose event may not wait because the room holds too many events.
func (r *refusals) dropCrowded(m *message, reason room.Reason) settlement {
	r.metrics.RoomRefused(string(reason), 1)
	return r.dropped(m, store.DeniedByRoom)
}

// newCache returns a cache that evicts the least recently used entry.
func newCache[K comparable, V any](most int) *lru.Cache[K, V] {
	cache, _ := lru.New[K, V](most) // fails only if most is not positive
	return cache
}
