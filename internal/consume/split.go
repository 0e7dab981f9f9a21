package consume

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
)

// split stores the events of a body that holds several, each in a message of its own, and then settles the message. Each
// has a name from which JetStream knows a second copy, and an ID by which the throttle does.
func (w *Worker) split(ctx context.Context, m *message, parts []event.Part) {
	err := w.storeParts(ctx, parts)
	w.trouble.partsStored(err)
	if err != nil {
		w.giveBack(m, jitter(misconfiguredBackoff))
		return
	}
	failpoint.Reach(failpoint.AfterSplit)
	w.metrics.Split()
	w.settler.settle(settlement{message: m})
}

func (w *Worker) storeParts(ctx context.Context, parts []event.Part) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stored := make([]jetstream.PubAckFuture, len(parts))
	for i, part := range parts {
		message := &nats.Msg{Subject: part.Subject, Header: nats.Header{}, Data: part.Data}
		var err error
		if stored[i], err = w.js.PublishMsgAsync(message, jetstream.WithMsgID(part.ID)); err != nil {
			return fmt.Errorf("storing event %d of %d: %w", i+1, len(parts), err)
		}
	}
	for i, future := range stored {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return fmt.Errorf("storing event %d of %d: %w", i+1, len(parts), err)
		case <-ctx.Done():
			return fmt.Errorf("storing event %d of %d: %w", i+1, len(parts), context.Cause(ctx))
		}
	}
	return nil
}
