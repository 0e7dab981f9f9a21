package journal

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Batch has entries that a worker published together.
type Batch struct {
	Entries []Entry
	Stored  time.Time // in the journal's stream, by the server's clock
}

// Follow sends the entries that workers publish from a time on, in the workers' batches, until ctx ends. It closes the channel when ctx has
// ended, and within quietTime after the stream has been deleted. It skips messages that no worker wrote and messages that it cannot decode.
func (r Reader) Follow(ctx context.Context, since time.Time) (<-chan Batch, error) {
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, messages, err := r.open(asking, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, InactiveThreshold: inactiveReader,
	})
	if err != nil {
		return nil, err
	}
	batches := make(chan Batch)
	go func() {
		defer close(batches)
		defer messages.Stop()
		for {
			message, err := r.next(ctx, messages)
			if err != nil {
				return
			}
			if message == nil || !trusted.IsMarked(message.Headers()) {
				continue
			}
			entries, err := decode(message.Headers(), message.Data(), nil)
			if err != nil || len(entries) == 0 {
				continue
			}
			origin, err := message.Metadata()
			if err != nil {
				continue
			}
			select {
			case batches <- Batch{entries, origin.Timestamp}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return batches, nil
}

// quietTime is how long Follow waits for a message before it checks that the stream exists: a consumer of a deleted stream waits for ever.
const quietTime = 15 * time.Second

// next waits for a message. It returns nil if no message came within quietTime, and an error if no more messages will come.
func (r Reader) next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	waiting, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	message, err := messages.Next(jetstream.NextContext(waiting))
	if err == nil || ctx.Err() != nil || waiting.Err() == nil {
		return message, err
	}
	_, err = r.JetStream.Stream(ctx, r.Names.Stream)
	return nil, err
}

// inactiveReader is how long the server keeps the consumer of a reader that has disconnected.
const inactiveReader = 30 * time.Second
