package consume

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// LevelUnpaired is the level of a resolved event that is dropped because nobody was told of what it resolves.
const LevelUnpaired = "unpaired"

// Waiting times of a resolved event for the messages before it: a quarter of a second, doubling to 30 s.
const (
	firstUnpairedWait   = 250 * time.Millisecond
	longestUnpairedWait = 30 * time.Second
)

// unpairedPatience is how old a resolved event is at least when it is dropped: the events of two bodies that were split at
// once may have been stored in another order.
const unpairedPatience = 2 * time.Second

// unpaired drops a resolved event for which no pair is open, as soon as it is certain that none will be: while a message
// that was stored before it is not settled, that may be what it resolves.
func (w *Worker) unpaired(ctx context.Context, m *message) {
	if time.Since(m.stored) < unpairedPatience || !w.settledBefore(ctx, m) {
		w.giveBack(m, jitter(m.unpairedWait()))
		return
	}
	w.metrics.Resolved("unpaired")
	w.settler.settle(w.dropped(m, LevelUnpaired))
}

func (m *message) unpairedWait() time.Duration {
	return min(longestUnpairedWait, firstUnpairedWait<<min(m.delivered-1, 10))
}

// patience is when to ask again about an event that someone else has to do with. What a resolved event waits for is posted
// long before its lease ends, as a rule.
func (c candidate) patience(wait time.Duration) time.Duration {
	if c.event.Resolves() {
		return min(wait, c.unpairedWait())
	}
	return wait
}

// earliestKept is how long an answer about the earliest message counts.
const earliestKept = 200 * time.Millisecond

// earliest is where the first message may stand that is not settled and may open a pair, as far as it is known.
type earliest struct {
	mu       sync.Mutex
	place    *place
	sequence uint64
	asked    time.Time
}

// settledBefore tells whether every message before m is settled that may open a pair. In doubt it says no. Events that
// resolve open none: else a crowd of them would wait for each other, one by one.
func (w *Worker) settledBefore(ctx context.Context, m *message) bool {
	w.earliest.mu.Lock()
	defer w.earliest.mu.Unlock()
	at := w.place.Load()
	if w.earliest.place != at { // the consumer was made anew, and counts anew
		w.earliest.place, w.earliest.sequence, w.earliest.asked = at, 0, time.Time{}
	}
	if w.earliest.sequence < m.sequence && time.Since(w.earliest.asked) > earliestKept {
		w.earliest.asked = time.Now()
		ctx, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		w.earliest.sequence, _ = w.firstOpening(ctx, at, w.earliest.sequence)
	}
	return w.earliest.sequence >= m.sequence
}

var errNoStream = errors.New("the stream cannot be asked about")

// firstOpening finds the first message behind the consumer's acknowledgement floor that may open a pair; there is none
// before known. On an error too it returns how far it came. The floor alone may lag: it does not pass what the consumer was
// never asked to deliver, other subjects and messages that are gone.
func (w *Worker) firstOpening(ctx context.Context, at *place, known uint64) (uint64, error) {
	if at.stream == nil {
		return known, errNoStream
	}
	info, err := at.consumer.Info(ctx)
	if err != nil {
		return known, err
	}
	from := max(known, info.AckFloor.Stream+1)
	for {
		next, err := w.names.firstEvent(ctx, at.stream, from)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return max(from, info.Delivered.Stream+1), nil
		case err != nil:
			return from, err
		case !w.resolves(next):
			return next.Sequence, nil
		}
		from = next.Sequence + 1
	}
}

// firstEvent gets the first event of a stream whose sequence is not below a number.
func (n Names) firstEvent(ctx context.Context, stream jetstream.Stream, from uint64) (first *jetstream.RawStreamMsg, err error) {
	for _, subject := range n.subjects() {
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
	m := event.Message{
		Subject: stored.Subject, Header: stored.Header, Data: stored.Data, Stream: w.names.Stream, Sequence: stored.Sequence,
	}
	if w.o.Decoder.Parts(m) != nil {
		return false
	}
	e, err := w.o.Decoder.Decode(m)
	return err == nil && e.Resolves()
}
