package consume

import (
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

// pairWait returns the delay before the next request about an event that resolves another event.
func (w *Worker) pairWait(c candidate) time.Duration {
	return min(max(w.streams.Clock.Since(c.entry.Since)/2, shortestPairWait), longestPairWait)
}

// leastAge returns the minimum time since an event was stored, by the server's clock.
func (w *Worker) leastAge(m *message) time.Duration {
	latest := w.streams.Clock.Earliest(time.Now())
	if m.stored.After(latest) { // the time at which it came back from the room
		latest = m.stored
	}
	return latest.Sub(m.entry.Since)
}

// awaitOther makes an event wait while another worker delivers it. An event that resolves another event waits in the room.
func (w *Worker) awaitOther(c candidate, wait time.Duration) {
	if c.event.Resolves() {
		w.move(w.newMove(c, goal{reason: room.Pair, in: min(wait, w.pairWait(c)), until: c.entry.Until, behind: c.entry.Behind}), w.release)
		return
	}
	w.nak(c.message, wait+jitter(50*time.Millisecond))
	w.release()
}

// unpaired handles resolved events without an open pair. An event waits in the room for pairPatience. If mostBegun events of its first
// level have just begun to wait, the event is dropped instead. After pairPatience, the event waits until all earlier messages that may open
// its pair are decided. If the pair still is not open, the event is dropped.
//
// An undecided event that may open the pair is in the producers' stream. Parts of bodies, and events that Redis refused, are in the room
// instead, before everything that is stored there later. Another worker may decide after the throttle's answer and before the look at the
// streams. So the worker asks the throttle once more, and the second answer counts. The events hold no element of the pool, so other events
// are decided while the streams are searched.
func (w *Worker) unpaired(pulling, ctx context.Context, events []candidate) {
	var again []candidate
	var dropped []settlement
	now := w.streams.Clock.Earliest(time.Now())
	at := w.streams.Layout()
	ends := ends{ // 0 if not known
		producers: sync.OnceValue(func() uint64 { end, _ := endOf(ctx, at.Stream); return end }),
		room:      sync.OnceValue(func() uint64 { end, _ := endOf(ctx, at.Room.Stream); return end }),
	}
	for _, c := range events {
		first := event.FirstLevel(c.event.Category)
		if c.entry.Reason != room.Pair && (w.crowded(room.Pair, first) || !w.openings.begun.take(first, time.Now())) {
			dropped = append(dropped, w.dropCrowded(c.message, room.Pair))
			continue
		}
		to := goal{reason: room.Pair, in: w.pairWait(c), until: c.entry.Until, behind: c.entry.Behind}
		patience := pairPatience - w.leastAge(c.message)
		switch {
		case to.until == 0 && patience > 0:
			to.in = patience
		case w.openersAreDecided(ctx, &to, ends):
			c.certain = true
			if c.entry.Until == 0 {
				c.decidedUpTo = now
			}
			again = append(again, c)
			continue
		}
		w.move(w.newMove(c, to), func() {})
	}
	w.settle(dropped...)
	for _, m := range w.decideInParts(pulling, ctx, again) {
		w.nak(m, 0)
	}
}

// ends are the latest sequences of the streams. They are read on first use.
type ends struct{ producers, room func() uint64 }

// openersAreDecided reports whether every event that may open the pair of a resolved event is decided. It stores in the goal up to which
// sequences the streams have to be searched.
func (w *Worker) openersAreDecided(ctx context.Context, to *goal, ends ends) bool {
	at := w.streams.Layout()
	if to.until == 0 {
		to.until = ends.producers()
	}
	if to.behind == 0 && to.until > 0 && w.openings.producers.noneBefore(ctx, to.until+1, at, w.firstOfProducers) {
		to.behind = ends.room()
	}
	return to.behind > 0 && w.openings.room.noneBefore(ctx, to.behind+1, at, w.firstOfRoom)
}

// neverOpened returns the settlement of a resolved event whose pair certainly never opens.
func (w *Worker) neverOpened(c candidate) settlement {
	w.metrics.Resolved("unpaired")
	if !c.decidedUpTo.IsZero() {
		w.throttle.LearnUnpaired(c.event.Pair(), c.decidedUpTo)
	}
	return w.dropped(c.message, store.DeniedUnpaired)
}

// openings caches, per stream, where undecided messages that open a pair may begin. It also counts the resolved events that began to wait
// for such messages.
type openings struct {
	producers, room firstOpening
	begun           quota
}

// mostBegun is how many resolved events of one first level, without an open pair, a worker lets begin to wait in the room within
// pairPatience. Each of them costs JetStream a schedule, two messages and their removal.
const mostBegun = 1000

// quota counts the events of each first level that began to wait within pairPatience.
type quota struct {
	mu    sync.Mutex
	until time.Time      // when the counts are reset
	begun map[string]int // by first level
}

// take counts an event that begins to wait. It returns false if mostBegun events of its first level have begun to wait in this period.
func (q *quota) take(first string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !now.Before(q.until) {
		q.until, q.begun = now.Add(pairPatience), make(map[string]int)
	}
	if q.begun[first] >= mostBegun {
		return false
	}
	q.begun[first]++
	return true
}

// openingKept is how long a firstOpening is cached.
const openingKept = 200 * time.Millisecond

// firstOpening is the sequence below which a stream holds no undecided message that could open a pair.
type firstOpening struct {
	mu       sync.Mutex
	topology *stream.Layout
	first    uint64 // no such message has a lower sequence
	asked    time.Time
}

// noneBefore reports whether no message below a sequence may open a pair. In doubt it returns false. It also returns false while another
// goroutine searches: otherwise a crowd of resolved events would all wait for each search.
func (o *firstOpening) noneBefore(
	ctx context.Context, sequence uint64, at *stream.Layout, look func(ctx context.Context, at *stream.Layout, from uint64) (uint64, error),
) bool {
	if !o.mu.TryLock() {
		return false
	}
	defer o.mu.Unlock()
	if o.topology != at { // the streams may have been recreated, with new sequences
		o.topology, o.first, o.asked = at, 0, time.Time{}
	}
	if o.first < sequence && time.Since(o.asked) > openingKept {
		o.first, _ = look(ctx, at, o.first)
		o.asked = time.Now()
	}
	return o.first >= sequence
}

// firstOfProducers finds the first message above the acknowledgement floor that may open a pair. The floor alone is not enough: it does not
// advance past other subjects and deleted messages.
func (w *Worker) firstOfProducers(ctx context.Context, at *stream.Layout, known uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	end, err := endOf(ctx, at.Stream)
	if err != nil {
		return known, err
	}
	info, err := at.Consumer.Info(ctx)
	if err != nil {
		return known, err
	}
	from := max(known, info.AckFloor.Stream+1)
	return w.firstThatOpens(ctx, at.Stream, w.streams.Names.Subjects(), from, max(from, end+1))
}

// firstOfRoom finds the first undecided event in the room that may open a pair. Redis has the decided events.
func (w *Worker) firstOfRoom(ctx context.Context, at *stream.Layout, known uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	end, err := endOf(ctx, at.Room.Stream)
	if err != nil {
		return known, err
	}
	return w.firstThatOpens(ctx, at.Room.Stream, w.streams.Names.Room().Undecided(), max(known, 1), end+1)
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

// mostLooks bounds the messages that one search examines.
const mostLooks = 16

// firstThatOpens returns the sequence of the first message on the subjects that may open a pair, or end. After an error it returns how far
// it came. It skips events that resolve: they open no pair, and a crowd of them would wait for each other.
func (w *Worker) firstThatOpens(ctx context.Context, stream jetstream.Stream, subjects []string, from, end uint64) (uint64, error) {
	heads := newHeads(stream, subjects)
	for range mostLooks {
		next, err := heads.first(ctx, from)
		switch {
		case err != nil:
			return from, err
		case next == nil:
			return end, nil
		case !w.opensNone(next):
			return next.Sequence, nil
		}
		from = next.Sequence + 1
	}
	return from, nil
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
func (w *Worker) opensNone(stored *jetstream.RawStreamMsg) bool {
	inRoom := w.streams.Names.Room().First(stored.Subject) != ""
	if inRoom && !trusted.IsMarked(stored.Header) {
		return true
	}
	if !event.HintsOf(stored.Data).Resolves || len(stored.Data) >= heavyBytes {
		return false
	}
	entry := entryOf(inRoom, stored.Subject, stored.Header, room.Origin{Sequence: stored.Sequence, Stored: stored.Time})
	m := asStored(entry, stored.Header, stored.Data)
	if parts, _ := w.o.Decoder.Parts(m); parts != nil {
		return false
	}
	e, err := w.o.Decoder.Decode(m)
	return err == nil && e.Resolves()
}
