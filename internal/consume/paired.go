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

// Waiting times of a resolved event in the room: half its age, within these bounds.
const (
	shortestPairWait = 500 * time.Millisecond
	longestPairWait  = 30 * time.Second
)

// pairWait is when to ask again about an event that resolves another one.
func (w *Worker) pairWait(c candidate) time.Duration {
	return min(max(w.clock.since(c.entry.Since)/2, shortestPairWait), longestPairWait)
}

// awaitOther lets an event wait while another worker delivers it. An event that resolves another one waits in the room.
func (w *Worker) awaitOther(c candidate, wait time.Duration) {
	if c.event.Resolves() {
		w.move(w.newMove(c, goal{reason: room.Pair, in: min(wait, w.pairWait(c)), behind: c.entry.Behind}), w.release)
		return
	}
	w.nak(c.message, wait+jitter(50*time.Millisecond))
	w.release()
}

// unpaired deals with resolved events for which no pair is open. An event is dropped once it is certain that none will be. Until then
// it waits in the room.
//
// An undecided event that may open the pair stands before it in the producers' stream. Parts of bodies, and events that Redis refused,
// stand in the room instead, before everything that is stored there later. Another worker may decide between the question to the
// throttle and the look at the streams. So the throttle is asked once more, and that answer counts. Each event holds an element of the pool.
func (w *Worker) unpaired(pulling, ctx context.Context, events []candidate) {
	var again []candidate
	end := uint64(0)
	for _, c := range events {
		behind := c.entry.Behind
		if behind == 0 && w.openings.producers.noneBefore(ctx, c.entry.Origin.Sequence, w.topology.Load(), w.firstOfProducers) {
			if end == 0 {
				end, _ = w.endOfRoom(ctx)
			}
			behind = end
		}
		if behind == 0 || !w.openings.room.noneBefore(ctx, behind+1, w.topology.Load(), w.firstOfRoom) {
			w.move(w.newMove(c, goal{reason: room.Pair, in: w.pairWait(c), behind: behind}), w.release)
			continue
		}
		c.certain = true
		again = append(again, c)
	}
	if len(again) > 0 && !w.decide(pulling, ctx, again) {
		for _, c := range again {
			w.nak(c.message, 0)
		}
	}
}

// neverOpened is the settlement of a resolved event whose pair certainly never opens; asked is when the throttle was.
func (w *Worker) neverOpened(c candidate, asked time.Time) settlement {
	w.metrics.Resolved("unpaired")
	w.throttle.LearnUnpaired(c.event.Pair(), asked)
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

// noneBefore tells whether no message before a sequence may open a pair. In doubt it says no.
func (o *firstOpening) noneBefore(
	ctx context.Context, sequence uint64, at *topology, look func(ctx context.Context, at *topology, from uint64) (uint64, error),
) bool {
	o.mu.Lock()
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
	info, err := at.consumer.Info(ctx)
	if err != nil {
		return known, err
	}
	from := max(known, info.AckFloor.Stream+1)
	return w.firstThatOpens(ctx, at.stream, w.names.subjects(), from, max(from, info.Delivered.Stream+1))
}

// firstOfRoom finds the first undecided event in the room that may open a pair. Redis knows of the decided ones.
func (w *Worker) firstOfRoom(ctx context.Context, at *topology, known uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	end, err := w.endOfRoom(ctx)
	if err != nil {
		return known, err
	}
	return w.firstThatOpens(ctx, at.room.stream, w.names.room().Undecided(), max(known, 1), end+1)
}

// endOfRoom is the room's latest sequence; an empty room has had one message.
func (w *Worker) endOfRoom(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	info, err := w.topology.Load().room.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return max(info.State.LastSeq, 1), nil
}

// mostLooks bounds the messages that are looked at in one go: other events wait meanwhile for the elements of the pool. With 256, a burst of
// resolved events delayed their neighbours by half a second.
const mostLooks = 16

// firstThatOpens returns the sequence of the first message on some subjects that may open a pair, or end. After an error it returns
// how far it came. Events that resolve open none, or a crowd of them would wait for each other.
func (w *Worker) firstThatOpens(ctx context.Context, stream jetstream.Stream, subjects []string, from, end uint64) (uint64, error) {
	for range mostLooks {
		next, err := firstOn(ctx, stream, subjects, from)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return end, nil
		case err != nil:
			return from, err
		case !w.opensNone(next):
			return next.Sequence, nil
		}
		from = next.Sequence + 1
	}
	return from, nil
}

// firstOn gets the first message of a stream on some subjects whose sequence is not below a number.
func firstOn(ctx context.Context, stream jetstream.Stream, subjects []string, from uint64) (first *jetstream.RawStreamMsg, err error) {
	for _, subject := range subjects {
		next, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
		case err != nil:
			return nil, err
		case first == nil || next.Sequence < first.Sequence:
			first = next
		}
	}
	if first == nil {
		return nil, jetstream.ErrMsgNotFound
	}
	return first, nil
}

// opensNone tells whether a message certainly opens no pair: it is an event that resolves another one, and no other, or a forged message.
func (w *Worker) opensNone(stored *jetstream.RawStreamMsg) bool {
	inRoom := w.names.room().First(stored.Subject) != ""
	if inRoom && !trusted.IsMarked(stored.Header) {
		return true
	}
	if !event.MayResolve(stored.Data) {
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
