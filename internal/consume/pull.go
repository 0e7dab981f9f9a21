package consume

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Number of messages per request: few at first, more while they are handled quickly, fewer when they wait. So a worker pulls no more
// messages than it handles well within the acknowledgement wait.
const (
	firstDemand   = 64
	smallestFetch = 16
	largestFetch  = 2000
)

// pollTime is how long the server waits for messages before it returns an empty answer. It bounds the duration of a shutdown.
const pollTime = time.Second

// puller requests messages and passes them on.
type puller struct {
	streams  *stream.Client
	throttle Throttle
	settler  *settler
	lanes    *lane.Lanes
	queues   *channelQueues
	bodies   *bodies
	health   *health
	inbox    *inbox
	hand     *hand
	finding  *oplog.Condition // finding the consumers of channels' queues
	logger   *slog.Logger
	pulling  sync.WaitGroup
}

// inbox passes received messages to the goroutine that decides.
type inbox struct {
	messages chan *message
	behind   atomic.Bool // producers' messages wait to be delivered
}

func newInbox() *inbox {
	return &inbox{messages: make(chan *message, 2*store.MaxBatch)}
}

// pullAll pulls from the producers' stream, from the room and from each channel's queue in the room, until the context ends.
func (w *puller) pullAll(ctx context.Context) error {
	defer close(w.inbox.messages)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := func(pull func(context.Context) error) {
		w.pulling.Go(func() {
			if err := pull(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	start(func(ctx context.Context) error {
		return w.pull(ctx, source{}, func() jetstream.Consumer { return w.streams.Layout().Consumer })
	})
	start(func(ctx context.Context) error {
		return w.pull(ctx, source{inRoom: true}, func() jetstream.Consumer { return w.streams.Layout().Room.Consumer })
	})
	w.pulling.Go(func() { w.bodies.run(ctx) })
	for _, queue := range w.queues.list(ctx) {
		w.queues.serve(queue)
	}
	w.pulling.Go(func() {
		for {
			select {
			case queue := <-w.queues.next():
				start(func(ctx context.Context) error { return w.pullQueue(ctx, queue) })
			case <-ctx.Done():
				return
			}
		}
	})
	w.pulling.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, stream.ErrClosed) {
		return cause
	}
	return nil
}

// pull requests messages and passes them on, until the context ends. It requests none while the worker could not handle them.
func (w *puller) pull(ctx context.Context, from source, consumer func() jetstream.Consumer) error {
	demand := firstDemand
	for {
		if err := w.mayPull(ctx); err != nil {
			return err
		}
		received, handing, err := w.fetch(ctx, from, consumer(), demand)
		if err != nil {
			return err
		}
		demand = nextDemand(demand, received, handing, w.settler.lease())
	}
}

// fetch sends one request for messages and passes on what it receives. It returns how many messages it received, and how long they waited
// to be passed on. It returns early after a reconnect: a restarted server does not know the request.
func (w *puller) fetch(ctx context.Context, from source, consumer jetstream.Consumer, demand int) (received int, handing time.Duration, err error) {
	if err := w.settler.awaitSpace(ctx, consumer.CachedInfo().Name); err != nil {
		return 0, 0, err
	}
	demand = w.hand.demand(consumer.CachedInfo().Name, demand)
	reconnected := w.streams.Connection.UntilReconnect().Done()
	asked, connection := time.Now(), w.streams.Connection.Conn.Stats().Reconnects
	batch, err := consumer.Fetch(demand, jetstream.FetchMaxWait(min(pollTime, w.settler.lease()/4)))
	for open := err == nil; open; {
		var msg jetstream.Msg
		select {
		case msg, open = <-batch.Messages():
			if open {
				received++
				handing += w.pass(ctx, msg, from, asked, connection)
			} else {
				err = batch.Error()
			}
		case <-reconnected:
			from.deciding = nil
			w.pulling.Go(func() { // a server that was not restarted may still answer the request
				for msg := range batch.Messages() {
					w.pass(ctx, msg, from, asked, connection)
				}
			})
			return received, handing, nil
		}
	}
	if err != nil && ctx.Err() == nil {
		return received, handing, w.pullFailed(ctx, consumer, err)
	}
	return received, handing, nil
}

// pass hands a message on, and returns how long the message waited.
func (w *puller) pass(ctx context.Context, msg jetstream.Msg, from source, asked time.Time, connection uint64) time.Duration {
	m, err := newMessage(msg, from, asked, connection, w.settler.lease())
	if err != nil {
		w.logger.Error("a message without JetStream's metadata was left alone", "error", err)
		return 0
	}
	if !from.inRoom {
		w.inbox.behind.Store(m.behind > 0)
	}
	if from.deciding != nil {
		from.deciding.Add(1)
	}
	start := time.Now()
	w.hand.arrived(m.consumer, m.Size())
	w.hand.take(ctx, m)
	w.inbox.messages <- m
	return time.Since(start)
}

// nextDemand doubles the demand after a full batch that was passed on in a small part of the acknowledgement wait. It lowers the demand
// after a batch that waited for a large part of the acknowledgement wait.
func nextDemand(demand, received int, handing, ackWait time.Duration) int {
	switch {
	case handing > ackWait/8:
		return max(smallestFetch, demand/4)
	case received == demand && handing < ackWait/32:
		return min(largestFetch, demand*2)
	}
	return demand
}

// pullQueue takes events from a channel's queue, in order and as many as the channel takes, until the context ends. It requests more once
// the previous events are decided.
func (w *puller) pullQueue(ctx context.Context, from source) error {
	from.deciding = new(sync.WaitGroup)
	for {
		if err := w.mayPull(ctx); err != nil {
			return err
		}
		if from.channel == "" {
			from.channel = w.queues.channelOf(from.token()) // known since an event for the channel came
		}
		if err := w.awaitPause(ctx, from.channel); err != nil {
			return err
		}
		free, err := w.lanes.AwaitFree(ctx, from.channel)
		if err != nil {
			return err
		}
		consumer, err := w.streams.Layout().Room.Channel(ctx, from.token())
		if err != nil {
			if err := w.queueFailed(ctx, err); err != nil {
				return err
			}
			continue
		}
		w.finding.Note(nil)
		received, _, err := w.fetch(ctx, from, consumer, free)
		if err != nil {
			return err
		}
		w.lanes.Fetched(from.channel, received)
		from.deciding.Wait()
	}
}

// awaitPause waits while a channel is paused for longer than lane.MemoryWait.
func (w *puller) awaitPause(ctx context.Context, channel string) error {
	for {
		paused := w.lanes.Paused(channel)
		if paused <= lane.MemoryWait {
			return nil
		}
		if err := w.streams.Connection.Sleep(ctx, min(paused-lane.MemoryWait, time.Second)); err != nil {
			return err
		}
	}
}

// queueFailed waits after the consumer of a channel's queue could not be found or created.
func (w *puller) queueFailed(ctx context.Context, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) && w.streams.Connection.Conn.IsConnected() {
		return w.streams.Find(ctx)
	}
	if w.streams.Connection.Conn.IsConnected() && ctx.Err() == nil {
		w.finding.Note(err)
	}
	return w.streams.Connection.Sleep(ctx, time.Second)
}

// mayPull waits until messages can be handled: the worker is connected, the throttle can decide, and deliveries are not misconfigured.
func (w *puller) mayPull(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.throttle.Await(ctx); err != nil {
			return err
		}
		changed, misconfigured := w.health.misconfiguration()
		switch {
		case misconfigured != nil:
			select {
			case <-changed:
			case <-ctx.Done():
			case <-w.streams.Connection.Closed():
				return stream.ErrClosed
			}
		case !w.streams.Connection.Conn.IsConnected():
			if err := w.streams.AwaitConnected(ctx); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// pullFailed handles the end of a request for messages. If a consumer or stream is gone, the worker searches for it again and recreates it
// if allowed. While a cluster elects a leader, nobody knows whether they are gone: the worker asks until the server answers, and is not
// ready meanwhile.
func (w *puller) pullFailed(ctx context.Context, consumer jetstream.Consumer, err error) error {
	gone := errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
	if !gone {
		w.logger.Debug("a request for messages ended", "error", err)
		return w.streams.Connection.Sleep(ctx, 100*time.Millisecond)
	}
	exists, err := w.streams.Exists(ctx, consumer)
	switch {
	case err != nil:
		return err
	case !exists:
		return w.streams.Find(ctx)
	}
	return w.streams.Connection.Sleep(ctx, 100*time.Millisecond)
}
