package consume

import (
	"context"
	"sync/atomic"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// recordCopies shares one copy of the delivery record between the messages that were received before it was begun. In a flood of
// messages that may be redeliveries, one copy serves several batches.
type recordCopies struct {
	begun    atomic.Uint64     // how many copies were; each message notes the number when it is received
	latest   uint64            // number of the latest copy
	recorded throttle.Recorded // what that says; nil: the record is not known
}

// isNew tells whether nobody has admitted the event of a message, for certain. Only receive calls it.
func (w *Worker) isNew(ctx context.Context, m *message) bool {
	e, ok := w.o.Decoder.QuickIdentity(m.asStored(), m.category)
	if !ok {
		return false
	}
	recorded := w.recordedAfter(ctx, m)
	return recorded != nil && !recorded(candidate{message: m, event: e}.request())
}

// recordedAfter returns what a copy of the delivery record says that was begun after the message was received.
func (w *Worker) recordedAfter(ctx context.Context, m *message) throttle.Recorded {
	if c := &w.copies; c.latest <= m.copiesBegun {
		c.latest = c.begun.Add(1)
		c.recorded = w.throttle.Records(ctx)
	}
	return w.copies.recorded
}
