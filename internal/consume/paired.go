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

// awaitOther lets an event wait for whoever is delivering it. One that resolves another waits in the room, perhaps for what it
// resolves. It holds a place in hand.
func (w *Worker) awaitOther(c candidate, wait time.Duration) {
	if c.event.Resolves() {
		w.wait(c, room.Pair, min(wait, w.pairWait(c)), c.entry.Behind, func() { w.vacate(1) })
		return
	}
	w.giveBack(c.message, wait+jitter(50*time.Millisecond))
	w.vacate(1)
}

// unpaired is about resolved events for which no pair is open. Each is dropped as soon as it is certain that none will be: until then
// it waits in the room. What may open a pair and is not decided stands in the producers' stream, before the event; then, if it was
// part of a body or Redis refused it, in the room, before all that is stored there later. The streams are looked at after the throttle
// was asked, and what opens the pair may have been decided in between: so the throttle is asked once more, and that answer counts. The
// events hold a place in hand each.
func (w *Worker) unpaired(pulling, ctx context.Context, events []candidate) {
	var again []candidate
	end := uint64(0)
	for _, c := range events {
		behind := c.entry.Behind
		if behind == 0 && w.openings.producers.noneBefore(c.entry.Origin.Sequence, w.place.Load(), w.firstOfProducers(ctx)) {
			if end == 0 {
				end = w.endOfRoom(ctx)
			}
			behind = end
		}
		if behind == 0 || !w.openings.room.noneBefore(behind+1, w.place.Load(), w.firstOfRoom(ctx)) {
			w.wait(c, room.Pair, w.pairWait(c), behind, func() { w.vacate(1) })
			continue
		}
		c.certain = true
		again = append(again, c)
	}
	if len(again) > 0 && !w.decide(pulling, ctx, again) {
		for _, c := range again {
			w.giveBack(c.message, 0)
		}
	}
}

// neverOpened is the settlement of a resolved event for which it is certain that no pair will be open; asked is when the throttle was.
func (w *Worker) neverOpened(c candidate, asked time.Time) settlement {
	w.metrics.Resolved("unpaired")
	w.throttle.LearnUnpaired(c.event.Pair(), asked)
	return w.dropped(c.message, throttle.LevelUnpaired)
}

// openings is where messages may stand that are not decided and may open a pair.
type openings struct{ producers, room firstOpening }

// openingKept is how long an answer about the first of them counts.
const openingKept = 200 * time.Millisecond

// firstOpening is how far a stream certainly holds none of them.
type firstOpening struct {
	mu    sync.Mutex
	place *place
	first uint64 // none stands before it
	asked time.Time
}

// noneBefore tells whether no message before a sequence may open a pair. In doubt it says no.
func (o *firstOpening) noneBefore(sequence uint64, at *place, look func(at *place, from uint64) (uint64, error)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.place != at { // the streams may have been made anew, and count anew
		o.place, o.first, o.asked = at, 0, time.Time{}
	}
	if o.first < sequence && time.Since(o.asked) > openingKept {
		o.first, _ = look(at, o.first)
		o.asked = time.Now()
	}
	return o.first >= sequence
}

var errNoStream = errors.New("the stream cannot be asked about")

// firstOfProducers returns a function that finds the first message behind the consumer's acknowledgement floor that may open a
// pair. The floor alone may lag: it does not pass what the consumer was never asked to deliver, other subjects and messages that
// are gone.
func (w *Worker) firstOfProducers(ctx context.Context) func(*place, uint64) (uint64, error) {
	return func(at *place, known uint64) (uint64, error) {
		if at.stream == nil {
			return known, errNoStream
		}
		ctx, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		info, err := at.consumer.Info(ctx)
		if err != nil {
			return known, err
		}
		from := max(known, info.AckFloor.Stream+1)
		return w.firstThatOpens(ctx, at.stream, w.names.subjects(), from, max(from, info.Delivered.Stream+1))
	}
}

// firstOfRoom returns a function that finds the first undecided event in the room that may open a pair. What is decided there
// Redis knows of.
func (w *Worker) firstOfRoom(ctx context.Context) func(*place, uint64) (uint64, error) {
	return func(at *place, known uint64) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		end := w.endOfRoom(ctx)
		if end == 0 {
			return known, errNoStream
		}
		return w.firstThatOpens(ctx, at.room.stream, w.names.room().Undecided(), max(known, 1), end+1)
	}
}

// endOfRoom is the room's latest sequence, 0 if it cannot be had; an empty room has had one message.
func (w *Worker) endOfRoom(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	info, err := w.place.Load().room.stream.Info(ctx)
	if err != nil {
		return 0
	}
	return max(info.State.LastSeq, 1)
}

// mostLooks bounds the messages that are looked at in one go.
const mostLooks = 256

// firstThatOpens returns the sequence of the first message on some subjects, from a sequence on, that may open a pair; end if there
// is none. On an error too it returns how far it came. Events that resolve open none: else a crowd of them would wait for each
// other, one by one.
func (w *Worker) firstThatOpens(ctx context.Context, stream jetstream.Stream, subjects []string, from, end uint64) (uint64, error) {
	for range mostLooks {
		next, err := firstOn(ctx, stream, subjects, from)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return end, nil
		case err != nil:
			return from, err
		case !w.resolves(next):
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

// resolves tells whether a message is certainly an event that resolves another one, and no other.
func (w *Worker) resolves(stored *jetstream.RawStreamMsg) bool {
	if !event.MayResolve(stored.Data) {
		return false
	}
	m := event.Message{Subject: stored.Subject, Header: stored.Header, Data: stored.Data, Sequence: stored.Sequence}
	if entry, err := room.Read(stored.Header, stored.Time); err == nil && w.names.room().First(stored.Subject) != "" {
		m.Subject, m.Room = entry.Subject, &event.RoomIdentity{ID: entry.ID, Derived: entry.Derived, Part: entry.Part}
	}
	if parts, _ := w.o.Decoder.Parts(m); parts != nil {
		return false
	}
	e, err := w.o.Decoder.Decode(m)
	return err == nil && e.Resolves()
}
