package consume

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// pairPatience is how long an event that resolves another one waits for that event to be stored.
const pairPatience = 2 * time.Second

// Waiting times of a resolved event in the room beyond that: half its age, within these bounds.
const (
	shortestPairWait = 500 * time.Millisecond
	longestPairWait  = 30 * time.Second
)

// pairWait is when to ask again about an event that resolves another one.
func (w *Worker) pairWait(c candidate) time.Duration {
	return min(max(w.clock.since(c.entry.Since)/2, shortestPairWait), longestPairWait)
}

// leastAge is how long ago an event was stored, at least, by the server's clock.
func (w *Worker) leastAge(m *message) time.Duration {
	latest := w.clock.earliest(time.Now())
	if m.stored.After(latest) { // it came back from the room at that time
		latest = m.stored
	}
	return latest.Sub(m.entry.Since)
}

// awaitOther lets an event wait while another worker delivers it. An event that resolves another one waits in the room.
func (w *Worker) awaitOther(c candidate, wait time.Duration) {
	if c.event.Resolves() {
		w.move(w.newMove(c, goal{reason: room.Pair, in: min(wait, w.pairWait(c)), until: c.entry.Until, behind: c.entry.Behind}), w.release)
		return
	}
	w.nak(c.message, wait+jitter(50*time.Millisecond))
	w.release()
}

// unpaired deals with resolved events for which no pair is open. An event waits in the room for pairPatience. Then it waits until
// everything is decided that was stored before and may open its pair. If the pair still is not open, the event is dropped.
//
// An undecided event that may open the pair stands in the producers' stream. Parts of bodies, and events that Redis refused,
// stand in the room instead, before everything that is stored there later. Another worker may decide between the question to the
// throttle and the look at the streams. So the throttle is asked once more, and that answer counts. The events hold no element of the pool:
// others go on while the streams are looked at.
func (w *Worker) unpaired(pulling, ctx context.Context, events []candidate) {
	var again []candidate
	var dropped []settlement
	now := w.clock.earliest(time.Now())
	at := w.topology.Load()
	ends := ends{ // 0 in doubt
		producers: sync.OnceValue(func() uint64 { end, _ := endOf(ctx, at.stream); return end }),
		room:      sync.OnceValue(func() uint64 { end, _ := endOf(ctx, at.room.stream); return end }),
	}
	for _, c := range events {
		if c.entry.Reason != room.Pair && w.crowded(room.Pair, event.FirstLevel(c.event.Category)) {
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

// ends are the latest sequences of the streams, which are asked for when they are needed first.
type ends struct{ producers, room func() uint64 }

// openersAreDecided tells whether everything is decided that may open the pair of a resolved event. It notes in the goal how far the streams
// are to be looked at.
func (w *Worker) openersAreDecided(ctx context.Context, to *goal, ends ends) bool {
	at := w.topology.Load()
	if to.until == 0 {
		to.until = ends.producers()
	}
	if to.behind == 0 && to.until > 0 && w.openings.producers.noneBefore(ctx, to.until+1, at, w.firstOfProducers) {
		to.behind = ends.room()
	}
	return to.behind > 0 && w.openings.room.noneBefore(ctx, to.behind+1, at, w.firstOfRoom)
}

// neverOpened is the settlement of a resolved event whose pair certainly never opens.
func (w *Worker) neverOpened(c candidate) settlement {
	w.metrics.Resolved("unpaired")
	if !c.decidedUpTo.IsZero() {
		w.throttle.LearnUnpaired(c.event.Pair(), c.decidedUpTo)
	}
	return w.dropped(c.message, throttle.DeniedUnpaired)
}

// openings is where undecided messages may stand that open a pair.
type openings struct{ producers, room firstOpening }

// openingKept is how long an answer about the first of them counts.
const openingKept = 200 * time.Millisecond

// firstOpening is how far a stream certainly holds none of them.
type firstOpening struct {
	mu       sync.Mutex
	topology *topology
	first    uint64 // none stands before it
	asked    time.Time
}

// noneBefore tells whether no message before a sequence may open a pair. In doubt it says no, and so it does while others have a look: in a
// crowd of resolved events all would wait for each look.
func (o *firstOpening) noneBefore(
	ctx context.Context, sequence uint64, at *topology, look func(ctx context.Context, at *topology, from uint64) (uint64, error),
) bool {
	if !o.mu.TryLock() {
		return false
	}
	defer o.mu.Unlock()
	if o.topology != at { // the streams may have been made anew, and count anew
		o.topology, o.first, o.asked = at, 0, time.Time{}
	}
	if o.first < sequence && time.Since(o.asked) > openingKept {
		o.first, _ = look(ctx, at, o.first)
		o.asked = time.Now()
	}
	return o.first >= sequence
}

// firstOfProducers finds the first message behind the acknowledgement floor that may open a pair. The floor alone may lag: it does not
// pass other subjects and deleted messages.
func (w *Worker) firstOfProducers(ctx context.Context, at *topology, known uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	end, err := endOf(ctx, at.stream)
	if err != nil {
		return known, err
	}
	info, err := at.consumer.Info(ctx)
	if err != nil {
		return known, err
	}
	from := max(known, info.AckFloor.Stream+1)
	return w.firstThatOpens(ctx, at.stream, w.names.subjects(), from, max(from, end+1))
}

// firstOfRoom finds the first undecided event in the room that may open a pair. Redis knows of the decided ones.
func (w *Worker) firstOfRoom(ctx context.Context, at *topology, known uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	end, err := endOf(ctx, at.room.stream)
	if err != nil {
		return known, err
	}
	return w.firstThatOpens(ctx, at.room.stream, w.names.room().Undecided(), max(known, 1), end+1)
}

// endOf is the latest sequence of a stream; an empty stream counts as one that has had one message.
func endOf(ctx context.Context, stream jetstream.Stream) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	info, err := stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return max(info.State.LastSeq, 1), nil
}

// mostLooks bounds the messages that are looked at in one go.
const mostLooks = 16

// firstThatOpens returns the sequence of the first message on some subjects that may open a pair, or end. After an error it returns
// how far it came. Events that resolve open none, or a crowd of them would wait for each other.
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

// heads are the first messages of a stream on some subjects, from a sequence on that only grows.
type heads struct {
	stream jetstream.Stream
	next   map[string]*jetstream.RawStreamMsg // nil: it is not known
}

func newHeads(stream jetstream.Stream, subjects []string) heads {
	h := heads{stream: stream, next: make(map[string]*jetstream.RawStreamMsg, len(subjects))}
	for _, subject := range subjects {
		h.next[subject] = nil
	}
	return h
}

// first gets the first message whose sequence is not below a number; nil if there is none.
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

// opensNone tells whether a message certainly opens no pair: it is an event that resolves another one, and no other, or a forged message.
func (w *Worker) opensNone(stored *jetstream.RawStreamMsg) bool {
	inRoom := w.names.room().First(stored.Subject) != ""
	if inRoom && !trusted.IsMarked(stored.Header) {
		return true
	}
	if !event.MayResolve(stored.Data) || len(stored.Data) >= heavyBytes {
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
