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
func (p *puller) pullAll(ctx context.Context) error {
	defer close(p.inbox.messages)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := func(pull func(context.Context) error) {
		p.pulling.Go(func() {
			if err := pull(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	start(func(ctx context.Context) error {
		return p.pull(ctx, source{}, func() jetstream.Consumer { return p.streams.Layout().Consumer })
	})
	start(func(ctx context.Context) error {
		return p.pull(ctx, source{inRoom: true}, func() jetstream.Consumer { return p.streams.Layout().Room.Consumer })
	})
	p.pulling.Go(func() { p.bodies.run(ctx) })
	p.pulling.Go(func() {
		p.queues.each(ctx, func(queue source) {
			if p.queues.claim(queue) {
				start(func(ctx context.Context) error { return p.pullQueue(ctx, queue) })
			}
		})
	})
	p.pulling.Go(func() {
		for {
			select {
			case queue := <-p.queues.unserved:
				start(func(ctx context.Context) error { return p.pullQueue(ctx, queue) })
			case <-ctx.Done():
				return
			}
		}
	})
	p.pulling.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, stream.ErrClosed) {
		return cause
	}
	return nil
}

// pull requests messages and passes them on, until the context ends. It requests none while the worker could not handle them.
func (p *puller) pull(ctx context.Context, from source, consumer func() jetstream.Consumer) error {
	demand := firstDemand
	for {
		if err := p.mayPull(ctx); err != nil {
			return err
		}
		got, err := p.fetch(ctx, from, consumer(), demand)
		if err != nil {
			return err
		}
		demand = nextDemand(demand, got.received, got.handing, p.settler.lease)
	}
}

// fetched is the result of one request for messages.
type fetched struct {
	received int
	handing  time.Duration // how long the messages waited to be passed on
	answered bool          // the server has no more messages than these, or more than were requested
}

// fetch sends one request for messages and passes on what it receives. It returns early after a reconnect: a restarted server does not know
// the request.
func (p *puller) fetch(ctx context.Context, from source, consumer jetstream.Consumer, demand int) (got fetched, err error) {
	if err := p.settler.settlers.AwaitSpace(ctx, consumer.CachedInfo().Name); err != nil {
		return got, err
	}
	demand = p.hand.demand(consumer.CachedInfo().Name, demand)
	reconnected := p.streams.Connection.UntilReconnect().Done()
	by := &pullRequest{source: from, asked: time.Now(), connection: p.streams.Connection.Conn.Stats().Reconnects}
	batch, err := consumer.Fetch(demand, jetstream.FetchMaxWait(min(pollTime, p.settler.lease/4)))
	for open := err == nil; open; {
		var msg jetstream.Msg
		select {
		case msg, open = <-batch.Messages():
			if open {
				got.received++
				got.handing += p.pass(ctx, msg, by)
			} else {
				err = batch.Error()
			}
		case <-reconnected:
			late := *by
			late.deciding = nil
			p.pulling.Go(func() { // a server that was not restarted may still answer the request
				for msg := range batch.Messages() {
					p.pass(ctx, msg, &late)
				}
			})
			return got, nil
		}
	}
	if err != nil && ctx.Err() == nil {
		return got, p.pullFailed(ctx, consumer, err)
	}
	got.answered = err == nil
	return got, nil
}

// pass hands a message on, and returns how long the message waited.
func (p *puller) pass(ctx context.Context, msg jetstream.Msg, by *pullRequest) time.Duration {
	m, err := newMessage(msg, by, p.settler.lease)
	if err != nil {
		p.logger.Error("ignoring a message without JetStream metadata", "error", err)
		return 0
	}
	if !by.inRoom {
		p.inbox.behind.Store(m.meta.NumPending > 0)
	}
	if by.deciding != nil {
		by.deciding.Add(1)
	}
	start := time.Now()
	p.hand.arrived(m.meta.Consumer, m.Size())
	p.hand.take(ctx, m)
	p.inbox.messages <- m
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
func (p *puller) pullQueue(ctx context.Context, from source) error {
	from.deciding = new(sync.WaitGroup)
	for {
		if err := p.mayPull(ctx); err != nil {
			return err
		}
		if from.channel == "" {
			from.channel = p.queues.channelOf(from.token()) // known since an event for the channel came
		}
		if err := p.awaitPause(ctx, from.lane()); err != nil {
			return err
		}
		consumer, err := p.streams.Layout().Room.Channel(ctx, from.token())
		if err != nil {
			if err := p.queueFailed(ctx, err); err != nil {
				return err
			}
			continue
		}
		p.finding.Note(nil)
		free, err := p.lanes.AwaitFree(ctx, from.lane())
		switch {
		case err != nil:
			return err
		case free == 0:
			continue
		}
		got, err := p.fetch(ctx, from, consumer, free)
		if got.answered || got.received > 0 {
			p.lanes.Fetched(from.lane(), got.received)
		} else {
			p.lanes.FetchFailed(from.lane())
		}
		if err != nil {
			return err
		}
		from.deciding.Wait()
	}
}

// awaitPause waits while a channel is paused for longer than lane.MemoryWait.
func (p *puller) awaitPause(ctx context.Context, channel string) error {
	for {
		paused := p.lanes.Paused(channel)
		if paused <= lane.MemoryWait {
			return nil
		}
		if err := p.streams.Connection.Sleep(ctx, min(paused-lane.MemoryWait, time.Second)); err != nil {
			return err
		}
	}
}

// queueFailed waits after the consumer of a channel's queue could not be found or created.
func (p *puller) queueFailed(ctx context.Context, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) && p.streams.Connection.Conn.IsConnected() {
		return p.streams.Find(ctx)
	}
	if p.streams.Connection.Conn.IsConnected() && ctx.Err() == nil {
		p.finding.Note(err)
	}
	return p.streams.Connection.Sleep(ctx, time.Second)
}

// mayPull waits until messages can be handled: the worker is connected, the throttle can decide, and deliveries are not misconfigured.
func (p *puller) mayPull(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.throttle.Await(ctx); err != nil {
			return err
		}
		changed, misconfigured := p.health.misconfiguration()
		switch {
		case misconfigured != nil:
			select {
			case <-changed:
			case <-ctx.Done():
			case <-p.streams.Connection.Closed():
				return stream.ErrClosed
			}
		case !p.streams.Connection.Conn.IsConnected():
			if err := p.streams.AwaitConnected(ctx); err != nil {
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
func (p *puller) pullFailed(ctx context.Context, consumer jetstream.Consumer, err error) error {
	gone := errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
	if !gone {
		p.logger.Debug("a request for messages ended", "error", err)
		return p.streams.Connection.Sleep(ctx, 100*time.Millisecond)
	}
	exists, err := p.streams.Exists(ctx, consumer)
	switch {
	case err != nil:
		return err
	case !exists:
		return p.streams.Find(ctx)
	}
	return p.streams.Connection.Sleep(ctx, 100*time.Millisecond)
}
