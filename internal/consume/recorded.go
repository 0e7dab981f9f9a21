package consume

import (
	"context"
	"sync/atomic"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// recordCopies shares one copy of the delivery record among the messages that were received before the copy was begun. In a flood of
// possible redeliveries, one copy serves several batches.
type recordCopies struct {
	begun    atomic.Uint64  // number of copies begun; each message stores it on receipt
	latest   uint64         // number of the latest copy
	recorded store.Recorded // content of the latest copy; nil: the record is not known
}

// isNew reports whether certainly no worker has admitted the event of a message. Only receive calls isNew.
func (w *Worker) isNew(ctx context.Context, m *message) bool {
	e, ok := w.o.Decoder.QuickIdentity(m.asStored(), m.category)
	if !ok {
		return false
	}
	recorded := w.recordedAfter(ctx, m)
	return recorded != nil && !recorded(candidate{message: m, event: e}.request())
}

// recordedAfter returns a copy of the delivery record that was begun after the message was received.
func (w *Worker) recordedAfter(ctx context.Context, m *message) store.Recorded {
	if c := &w.copies; c.latest <= m.copiesBegun {
		c.latest = c.begun.Add(1)
		c.recorded = w.throttle.Records(ctx)
	}
	return w.copies.recorded
}
