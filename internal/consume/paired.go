package consume

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// pairPatience is how long an event that resolves another event waits for that event to be stored.
const pairPatience = 2 * time.Second

// Further waits of a resolved event in the room: half its age, within these bounds.
const (
	shortestPairWait = 500 * time.Millisecond
	longestPairWait  = 30 * time.Second
)

// pairs finds out whether an undecided message may still open the pair of a resolved event. Its methods may be called concurrently.
type pairs struct {
	streams  *stream.Client
	reader   *reader
	known    Known
	refusals *refusals
	metrics  EventMetrics

	producers, room firstOpening // where undecided messages that open a pair may begin
	begun           quota        // of the resolved events that begin to wait for such messages
}

// comesBackLate is how much later than planned an event may come back that waits for a message of its key, before a resolved event overtakes it.
const comesBackLate = 2 * time.Second

// letFold lets a decision fold an event with a key into a message of its key, if the settings have folds for its category or the key may be
// flapping. With folds, an event without a status has a pair too.
func (p *pairs) letFold(c candidate, request *store.Request) {
	within := p.reader.fold(c.event.Category)
	counts := p.reader.flaps && request.Pair != "" && !c.entry.IsReport()
	if within == 0 && !counts || c.event.Key == "" || request.Cost == 0 {
		return
	}
	if request.Fold.Counts = counts; request.Resolves {
		return
	}
	request.Pair = c.event.Keyed()
	request.Fold.Within, request.Fold.ComesBack = within, p.goalOf(c).in+comesBackLate
}

// goalOf returns how long an event waits in the room for another event of its key before the next request about it.
func (p *pairs) goalOf(c candidate) goal {
	wait := min(max(p.streams.Clock.Since(c.entry.Since)/2, shortestPairWait), longestPairWait)
	return goal{reason: room.Pair, in: wait, until: c.entry.Until, behind: c.entry.Behind}
}

type waiting struct {
	candidate
	goal goal
}

// sort decides what becomes of resolved events without an open pair. An event waits in the room for pairPatience. If the quota of its first
// level is used up, the event is dropped instead. After pairPatience, the event waits until all earlier messages that may open its pair are
// decided. If the pair still is not open, the event is dropped.
//
// An undecided event that may open the pair is in the producers' stream. Parts of bodies, and events that Redis refused, are in the room
// instead, before everything that is stored there later. Another worker may decide after the throttle's answer and before the look at the
// streams. So the worker asks the throttle once more, and the second answer counts.
func (p *pairs) sort(ctx context.Context, events []candidate) (waits []waiting, again []candidate, dropped []settlement) {
	now := p.streams.Clock.Earliest(time.Now())
	at := p.streams.Layout()
	end := sync.OnceValue(func() uint64 { end, _ := endOf(ctx, at.Stream); return end }) // 0 if not known
	for _, c := range events {
		first := event.FirstLevel(c.event.Category)
		if c.entry.Reason != room.Pair && (p.refusals.crowded(room.Pair, first) || !p.begun.take(first, time.Now())) {
			dropped = append(dropped, p.refusals.dropCrowded(c.message, room.Pair))
			continue
		}
		to := p.goalOf(c)
		patience := pairPatience - p.reader.leastAge(c.message)
		switch {
		case to.until == 0 && patience > 0:
			to.in = patience
		case p.openersAreDecided(ctx, &to, end):
			c.certain = true
			if c.entry.Until == 0 {
				c.decidedUpTo = now
			}
			again = append(again, c)
			continue
		}
		waits = append(waits, waiting{c, to})
	}
	return waits, again, dropped
}

// openersAreDecided reports whether every event that may open the pair of a resolved event is decided. It stores in the goal up to which
// sequences the streams have to be searched. The argument end returns the latest sequence of the producers' stream.
func (p *pairs) openersAreDecided(ctx context.Context, to *goal, end func() uint64) bool {
	at := p.streams.Layout()
	// The stream ends earlier than before if it was recreated or lost its newest messages.
	if end := end(); to.until == 0 || end > 0 && end < to.until {
		to.until = end
	}
	if to.behind == 0 && to.until > 0 {
		if found, none := p.producers.noneBefore(ctx, to.until+1, at, p.firstOfProducers); none {
			to.behind = found.roomEnd
		}
	}
	if to.behind == 0 {
		return false
	}
	found, none := p.room.noneBefore(ctx, to.behind+1, at, p.firstOfRoom)
	if none && found.origin > 0 && found.origin <= to.until && found.sequence > to.behind {
		to.behind = found.sequence // an earlier event has moved on: it was due, Redis refused it again, or it is a part of a body
		return false
	}
	return none
}

// neverOpened returns the settlement of a resolved event whose pair certainly never opens.
func (p *pairs) neverOpened(c candidate) settlement {
	p.metrics.Resolved("unpaired")
	if !c.decidedUpTo.IsZero() {
		p.known.LearnUnpaired(c.event.Pair(), c.decidedUpTo)
	}
	return p.refusals.dropped(c.message, store.DeniedUnpaired)
}

// mostBegun is how many resolved events of one first level, without an open pair, a worker lets begin to wait in the room within
// pairPatience. Each of them costs JetStream a schedule, two messages and their removal.
const mostBegun = 1000

// quota bounds how many events of each first level begin to wait within a period.
type quota struct {
	most   int
	period time.Duration

	mu    sync.Mutex
	until time.Time      // when the counts are reset
	begun map[string]int // by first level
}

// take counts an event that begins to wait. It returns false if the quota of its first level is used up for this period.
func (q *quota) take(first string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !now.Before(q.until) {
		q.until, q.begun = now.Add(q.period), make(map[string]int)
	}
	if q.begun[first] >= q.most {
		return false
	}
	q.begun[first]++
	return true
}

// openingKept is how long a firstOpening is cached.
const openingKept = 200 * time.Millisecond

// openings are what a search found of the undecided messages in a stream that may open a pair.
type openings struct {
	first uint64 // no such message has a lower sequence
	// In the room: the earliest event of the messages found, by its sequence in the producers' stream, and the sequence of its message. 0: none.
	origin, sequence uint64
	// In the producers' stream: the latest sequence of the room after the search. A message below first that has moved to the room is not above it.
	roomEnd uint64
}

type firstOpening struct {
	mu       sync.Mutex
	topology *stream.Layout
	found    openings
	asked    time.Time
}

// noneBefore reports whether no message below a sequence may open a pair. In doubt it returns false. It also returns false while another
// goroutine searches: otherwise a crowd of resolved events would all wait for each search.
func (o *firstOpening) noneBefore(
	ctx context.Context, sequence uint64, at *stream.Layout, look func(ctx context.Context, at *stream.Layout, known openings) openings,
) (found openings, none bool) {
	if !o.mu.TryLock() {
		return openings{}, false
	}
	defer o.mu.Unlock()
	if o.topology != at { // the streams may have been recreated, with new sequences
		o.topology, o.found, o.asked = at, openings{}, time.Time{}
	}
	if o.found.first < sequence && time.Since(o.asked) > openingKept {
		o.found = look(ctx, at, o.found)
		o.asked = time.Now()
	}
	return o.found, o.found.first >= sequence
}

// firstOfProducers finds the first message above the acknowledgement floor that may open a pair. The floor alone is not enough: it does not
// advance past other subjects and deleted messages.
func (p *pairs) firstOfProducers(ctx context.Context, at *stream.Layout, known openings) openings {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	end, err := endOf(ctx, at.Stream)
	if err != nil {
		return known
	}
	info, err := at.Consumer.Info(ctx)
	if err != nil {
		return known
	}
	from := max(known.first, info.AckFloor.Stream+1)
	found := p.openingsOf(ctx, newHeads(at.Stream, p.streams.Names.Subjects()), from, max(from, end+1))
	if found.roomEnd, err = endOf(ctx, at.Room.Stream); err != nil {
		return known
	}
	return found
}

// firstOfRoom finds the first undecided events in the room that may open a pair. Redis has the decided events.
func (p *pairs) firstOfRoom(ctx context.Context, at *stream.Layout, known openings) openings {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	end, err := endOf(ctx, at.Room.Stream)
	if err != nil {
		return known
	}
	return p.openingsOf(ctx, newHeads(at.Room.Stream, p.streams.Names.Room().Undecided()), max(known.first, 1), end+1)
}

// endOf returns the latest sequence of a stream. An empty stream counts as a stream that has had one message.
func endOf(ctx context.Context, messages jetstream.Stream) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	info, err := messages.Info(ctx)
	if err != nil {
		return 0, err
	}
	return max(info.State.LastSeq, 1), nil
}

const mostLooks = 16

// openingsOf searches messages from a sequence to the end of their stream. After an error it returns what it has found. It skips events that
// resolve: they open no pair, and a crowd of them would wait for each other.
func (p *pairs) openingsOf(ctx context.Context, heads heads, from, end uint64) (found openings) {
	defer func() { found.first = cmp.Or(found.first, from) }()
	for range mostLooks {
		next, err := heads.first(ctx, from)
		switch {
		case err != nil:
			return found
		case next == nil:
			from = end
			return found
		case p.opensNone(next):
		case !p.inRoom(next):
			return openings{first: next.Sequence}
		default:
			found.add(next.Sequence, p.entryOfStored(next).Origin, p.streams.Names.Stream)
		}
		from = next.Sequence + 1
	}
	return found
}

// add notes a message that may open a pair, whose event came to the producers' stream, or to another stream, at its origin.
func (o *openings) add(sequence uint64, origin room.Origin, producers string) {
	o.first = cmp.Or(o.first, sequence)
	if origin.Stream == producers && (o.origin == 0 || origin.Sequence < o.origin) {
		o.origin, o.sequence = origin.Sequence, sequence
	}
}

// heads holds the first messages of a stream on some subjects, at or above a sequence that only grows.
type heads struct {
	stream jetstream.Stream
	next   map[string]*jetstream.RawStreamMsg // nil: not known
}

func newHeads(stream jetstream.Stream, subjects []string) heads {
	h := heads{stream: stream, next: make(map[string]*jetstream.RawStreamMsg, len(subjects))}
	for _, subject := range subjects {
		h.next[subject] = nil
	}
	return h
}

// first returns the first message at or above a sequence; nil if there is none.
func (h heads) first(ctx context.Context, from uint64) (first *jetstream.RawStreamMsg, err error) {
	for subject, next := range h.next {
		if next == nil || next.Sequence < from {
			next, err = h.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				delete(h.next, subject)
				continue
			}
			if err != nil {
				return nil, err
			}
			h.next[subject] = next
		}
		if first == nil || next.Sequence < first.Sequence {
			first = next
		}
	}
	return first, nil
}

// opensNone reports whether a message certainly opens no pair: it is a forged message, or a single event that resolves another event.
func (p *pairs) opensNone(stored *jetstream.RawStreamMsg) bool {
	if p.inRoom(stored) && !trusted.IsMarked(stored.Header) {
		return true
	}
	if !event.HintsOf(stored.Data).Resolves || len(stored.Data) >= heavyBytes {
		return false
	}
	m := p.entryOfStored(stored).Published(stored.Header, stored.Data)
	if parts, _ := p.reader.Parts(m); parts != nil {
		return false
	}
	e, err := p.reader.Decode(m)
	return err == nil && e.Resolves()
}

// inRoom reports whether a message is in the room, rather than in the producers' stream.
func (p *pairs) inRoom(stored *jetstream.RawStreamMsg) bool {
	return p.streams.Names.Room().First(stored.Subject) != ""
}

// entryOfStored returns the entry of a message that no worker has received.
func (p *pairs) entryOfStored(stored *jetstream.RawStreamMsg) *room.Entry {
	return entryOf(source{inRoom: p.inRoom(stored)}, stored.Subject, stored.Header, room.Origin{Sequence: stored.Sequence, Stored: stored.Time})
}
