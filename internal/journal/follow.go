package journal

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Follow hands over the entries that are published after a time and from now on, in batches as the workers wrote them, until ctx ends.
// It closes the channel when ctx has ended, and within quietTime when the stream is gone. A message that no worker wrote, or that
// cannot be decoded, is passed over.
func (r Reader) Follow(ctx context.Context, since time.Time) (<-chan []Entry, error) {
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, messages, err := r.open(asking, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, InactiveThreshold: inactiveReader,
	})
	if err != nil {
		return nil, err
	}
	batches := make(chan []Entry)
	go func() {
		defer close(batches)
		defer messages.Stop()
		for {
			message, err := r.next(ctx, messages)
			if err != nil {
				return
			}
			if message == nil {
				continue
			}
			if !trusted.IsMarked(message.Headers()) {
				if r.Forged != nil {
					r.Forged(1)
				}
				continue
			}
			entries, err := decode(message.Headers(), message.Data(), nil)
			if err != nil || len(entries) == 0 {
				continue
			}
			select {
			case batches <- entries:
			case <-ctx.Done():
				return
			}
		}
	}()
	return batches, nil
}

// quietTime is how long nothing may come before it is asked whether the stream is there: its consumer would wait for ever.
const quietTime = 15 * time.Second

// next waits for a message. It returns none if nothing came for a while, and an error if nothing will come any more.
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

// inactiveReader is when the server removes the consumer of a reader that is gone.
const inactiveReader = 30 * time.Second
