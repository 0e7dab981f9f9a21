package consume

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How many messages are asked for at once: few at first, more while they are handled quickly, fewer when they wait. So
// no more are in hand than are handled well within the acknowledgement wait.
const (
	firstDemand   = 64
	smallestFetch = 16
	largestFetch  = 2000
)

// pollTime is how long the server waits for messages before it answers with none. It bounds how long a stop takes.
const pollTime = time.Second

// pull asks for messages and passes them on, until the context ends. It asks for none while they could not be handled.
func (w *Worker) pull(ctx context.Context) error {
	defer close(w.incoming)
	demand := firstDemand
	for {
		if err := w.mayPull(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		asked, connection := time.Now(), w.conn.Stats().Reconnects
		batch, err := w.place.Load().consumer.Fetch(demand, jetstream.FetchMaxWait(min(pollTime, w.ackWait/4)))
		if err == nil {
			received := 0
			handing := time.Duration(0)
			for msg := range batch.Messages() {
				received++
				handing += w.pass(msg, asked, connection)
			}
			demand = nextDemand(demand, received, handing, w.ackWait)
			err = batch.Error()
		}
		if err != nil && ctx.Err() == nil {
			if err := w.pullFailed(ctx, err); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// pass hands a message on and tells how long that took.
func (w *Worker) pass(msg jetstream.Msg, asked time.Time, connection uint64) time.Duration {
	m, err := newMessage(msg, asked, connection, w.ackWait)
	if err != nil {
		w.logger.Error("a message without JetStream's metadata was left alone", "error", err)
		return 0
	}
	select {
	case w.incoming <- m:
		return 0
	default:
	}
	start := time.Now()
	w.incoming <- m
	return time.Since(start)
}

// nextDemand doubles after a full batch that was taken over in a small part of the acknowledgement wait, and shrinks
// after one that had to wait for a large part of it.
func nextDemand(demand, received int, handing, ackWait time.Duration) int {
	switch {
	case handing > ackWait/8:
		return max(smallestFetch, demand/4)
	case received == demand && handing < ackWait/32:
		return min(largestFetch, demand*2)
	}
	return demand
}

// mayPull waits until messages can be handled: the connection is there, decisions can be made, and deliveries are not
// misconfigured.
func (w *Worker) mayPull(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.throttle.Await(ctx); err != nil {
			return err
		}
		changed, misconfigured := w.trouble.misconfiguration()
		switch {
		case misconfigured != nil:
			select {
			case <-changed:
			case <-ctx.Done():
			case <-w.o.Connection.Closed():
				return errClosed
			}
		case !w.conn.IsConnected():
			if err := w.rest(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// pullFailed deals with the end of a request for messages. A consumer or stream that is gone is looked for again, and
// made anew where that is wanted.
func (w *Worker) pullFailed(ctx context.Context, err error) error {
	gone := errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
	if !gone {
		w.logger.Debug("a request for messages ended", "error", err)
		return w.rest(ctx, 100*time.Millisecond)
	}
	info, cancel := context.WithTimeout(ctx, apiTimeout)
	_, infoErr := w.place.Load().consumer.Info(info)
	cancel()
	if w.conn.IsConnected() && ctx.Err() == nil {
		w.trouble.consumerFound(infoErr)
		if errors.Is(infoErr, jetstream.ErrConsumerNotFound) || errors.Is(infoErr, jetstream.ErrStreamNotFound) {
			return w.findConsumer(ctx)
		}
	}
	return w.rest(ctx, 100*time.Millisecond)
}
