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

	"github.com/seed-4578ace9/notifier/internal/consume/health"
	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Number of messages that a worker requests at once: few at first, more while they are handled quickly, fewer when they wait. So a worker
// pulls no more messages than it handles well within the acknowledgement wait.
const (
	firstDemand    = 64
	smallestDemand = 16
	largestDemand  = 512
)

// pollTime is how long the server waits for messages at most before it ends a request. It bounds the duration of a shutdown.
const pollTime = time.Second

type puller struct {
	streams  *stream.Client
	throttle Throttle
	settler  *outcome.Settler
	lanes    *lane.Lanes
	queues   *move.Queues
	bodies   *bodies
	health   *health.Health[*delivery]
	inbox    *inbox
	hand     *received.Hand
	finding  *oplog.Condition // finding the consumers of channels' queues
	logger   *slog.Logger
	pulling  sync.WaitGroup
}

type inbox struct {
	messages chan *received.Message
	behind   atomic.Bool // producers' messages wait to be delivered
}

func newInbox() *inbox {
	return &inbox{messages: make(chan *received.Message, 2*store.MaxBatch)}
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
		return p.pull(ctx, received.Source{}, func() jetstream.Consumer { return p.streams.Layout().Consumer })
	})
	start(func(ctx context.Context) error {
		return p.pull(ctx, received.Source{InRoom: true}, func() jetstream.Consumer { return p.streams.Layout().Room.Consumer })
	})
	p.pulling.Go(func() { p.bodies.run(ctx) })
	p.pulling.Go(func() { p.queues.Each(ctx, p.queues.Serve) })
	p.pulling.Go(func() {
		for {
			select {
			case queue := <-p.queues.Unserved:
				start(func(ctx context.Context) error { return p.pullQueue(ctx, queue) })
			case <-ctx.Done():
				return
			}
		}
	})
	p.pulling.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, stream.ErrClosed) || errors.Is(cause, stream.ErrUnfit) {
		return cause
	}
	return nil
}

// pull requests messages while the worker can handle them, until the context ends. It requests more as soon as half of them, or half of the
// bytes of a request, have come.
func (p *puller) pull(ctx context.Context, from received.Source, consumer func() jetstream.Consumer) error {
	requests := p.streams.Connection.NewRequests(p.settler.Lease)
	defer requests.Close()
	defer p.drain(ctx, requests, from)
	demand := firstDemand
	for {
		if err := p.mayPull(ctx); err != nil {
			return err
		}
		to := consumer()
		var got taken
		err := p.ask(ctx, requests, to, demand)
		if err == nil {
			got, err = p.receive(ctx, requests, from, demand/2)
		}
		if err == nil && !from.InRoom && !got.full { // the server has no more
			p.inbox.behind.Store(false)
		}
		demand = nextDemand(demand, got, p.settler.Lease)
		if err != nil {
			demand = smallestDemand // the server may yet answer this request and the next one
			if err := p.pullFailed(ctx, to, err); err != nil {
				return err
			}
		}
	}
}

// drain passes on what the server sends for open requests, until it has answered each.
func (p *puller) drain(ctx context.Context, requests *stream.Requests, from received.Source) {
	for requests.Left() > 0 {
		if _, err := p.receive(ctx, requests, from, 0); err != nil {
			return
		}
	}
}

// taken is what came of requests for messages.
type taken struct {
	messages int
	handing  time.Duration // how long the messages waited to be passed on
	full     bool          // as many came as the requests admit: the server may have more
}

// errBodiless keeps a worker from taking messages whose bodies would be lost: each would end as a dead letter without a body.
var errBodiless = errors.New("somebody edited the consumer, which leaves out the bodies of messages")

// ask requests messages, until the server may send as many as are wanted.
func (p *puller) ask(ctx context.Context, requests *stream.Requests, consumer jetstream.Consumer, wanted int) error {
	info := consumer.CachedInfo()
	if info.Config.HeadersOnly {
		return errBodiless
	}
	if err := p.settler.AwaitSpace(ctx, info.Name); err != nil {
		return err
	}
	if more := wanted - requests.Left(); more > 0 {
		return requests.Ask(consumer, more, p.wait())
	}
	return nil
}

// wait is how long the server waits for messages before it ends a request.
func (p *puller) wait() time.Duration { return min(pollTime, p.settler.Lease/4) }

// receive passes messages on, until the server may send only a few more messages or bytes, or has no more. If few is 0, it receives all.
func (p *puller) receive(ctx context.Context, requests *stream.Requests, from received.Source, few int) (got taken, err error) {
	by := &received.PullRequest{Source: from}
	for requests.Left() > few {
		msg, request, err := requests.Receive(p.wait())
		switch {
		case errors.Is(err, stream.ErrFilled):
			got.full = true
			return got, nil
		case msg == nil:
			return got, err
		}
		if by.Request != request {
			by = &received.PullRequest{Source: from, Request: request}
		}
		got.messages++
		got.handing += p.pass(ctx, requests, msg, by)
		if few > 0 && requests.FewBytes() {
			break
		}
	}
	got.full = true
	return got, nil
}

// pass hands a message on, and returns how long the message waited. If the consumer may have been recreated, the worker first learns when: the
// earlier consumer may have delivered the message to another worker, which the message does not show.
func (p *puller) pass(ctx context.Context, requests *stream.Requests, msg *nats.Msg, by *received.PullRequest) time.Duration {
	m, err := received.NewMessage(msg, by, p.settler.Lease)
	if err != nil {
		p.logger.Error("ignoring a message without JetStream metadata", "error", err)
		return 0
	}
	if !by.InRoom {
		if requests.MayBeRecreated(m.Meta.Sequence.Consumer) {
			_ = p.streams.Find(ctx) // the next request reports an error
		}
		p.inbox.behind.Store(m.Meta.NumPending > 0)
	}
	if by.Deciding != nil {
		by.Deciding.Add(1)
	}
	start := time.Now()
	p.hand.Take(ctx, m)
	p.inbox.messages <- m
	return time.Since(start)
}

// nextDemand doubles the demand after messages that were passed on in a small part of the acknowledgement wait, if there may be more. It
// lowers the demand after messages that waited for a large part of the acknowledgement wait.
func nextDemand(demand int, got taken, ackWait time.Duration) int {
	switch {
	case got.handing > ackWait/8:
		return max(smallestDemand, demand/4)
	case got.full && got.handing < ackWait/32:
		return min(largestDemand, demand*2)
	}
	return demand
}

// pullQueue takes as many events from a channel's queue as the channel takes, and more once they are decided, until the context ends.
func (p *puller) pullQueue(ctx context.Context, from received.Source) error {
	from.Deciding = new(sync.WaitGroup)
	requests := p.streams.Connection.NewRequests(p.settler.Lease)
	defer requests.Close()
	for {
		if err := p.mayPull(ctx); err != nil {
			return err
		}
		if from.Channel == "" {
			from.Channel = p.queues.ChannelOf(from.Token) // known since an event for the channel came
		}
		if err := p.awaitPause(ctx, from.Lane()); err != nil {
			return err
		}
		consumer, err := p.streams.Layout().Room.Channel(ctx, from.Token)
		if err != nil {
			if err := p.queueFailed(ctx, err); err != nil {
				return err
			}
			continue
		}
		p.finding.Note(nil)
		free, err := p.lanes.AwaitFree(ctx, from.Lane())
		switch {
		case err != nil:
			return err
		case free == 0:
			continue
		}
		var got taken
		if err = p.ask(ctx, requests, consumer, free); err == nil {
			got, err = p.receive(ctx, requests, from, 0)
		}
		p.lanes.Fetched(from.Lane(), got.messages, err)
		if err != nil {
			if err := p.pullFailed(ctx, consumer, err); err != nil {
				return err
			}
		}
		from.Deciding.Wait()
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
		changed, misconfigured := p.health.Misconfiguration()
		switch {
		case misconfigured != nil:
			select {
			case <-changed:
			case <-ctx.Done():
			case <-p.streams.Connection.Closed():
				return p.streams.Connection.ClosedError()
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
// if allowed. While a cluster elects a leader, nobody knows whether it is gone: the worker asks until the server answers.
func (p *puller) pullFailed(ctx context.Context, consumer jetstream.Consumer, err error) error {
	if errors.Is(err, stream.ErrReconnected) {
		return nil
	}
	gone := errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
	if !gone {
		p.logger.Debug("a request for messages ended", "error", err)
		return p.streams.Connection.Sleep(ctx, 100*time.Millisecond)
	}
	switch exists, err := p.streams.Exists(ctx, consumer); {
	case err != nil:
		return err
	case !exists:
		return p.streams.Find(ctx)
	}
	return p.streams.Connection.Sleep(ctx, 100*time.Millisecond)
}
