package consume

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How many messages are asked for at once: few at first, more while they are handled quickly, fewer when they wait. So
// no more are pulled than are handled well within the acknowledgement wait.
const (
	firstDemand   = 64
	smallestFetch = 16
	largestFetch  = 2000
)

// connectedPoll is how often a worker without a connection checks whether the connection is there again.
const connectedPoll = 20 * time.Millisecond

// pollTime is how long the server waits for messages before it answers with none. It bounds how long a stop takes.
const pollTime = time.Second

// pullAll takes messages of the producers, of the room and of each channel's queue there, until the context ends.
func (w *Worker) pullAll(ctx context.Context) error {
	defer close(w.incoming)
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
		return w.pull(ctx, source{}, func() jetstream.Consumer { return w.topology.Load().consumer })
	})
	start(func(ctx context.Context) error {
		return w.pull(ctx, source{inRoom: true}, func() jetstream.Consumer { return w.topology.Load().room.consumer })
	})
	w.pulling.Go(func() { w.bodies.run(ctx) })
	for _, queue := range w.queues(ctx) {
		w.serve(queue)
	}
	w.pulling.Go(func() {
		for {
			select {
			case queue := <-w.unserved:
				start(func(ctx context.Context) error { return w.pullQueue(ctx, queue) })
			case <-ctx.Done():
				return
			}
		}
	})
	w.pulling.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, errClosed) {
		return cause
	}
	return nil
}

// pull asks for messages and passes them on, until the context ends. It asks for none while they could not be handled.
func (w *Worker) pull(ctx context.Context, from source, consumer func() jetstream.Consumer) error {
	demand := firstDemand
	for {
		if err := w.mayPull(ctx); err != nil {
			return err
		}
		received, handing, err := w.fetch(ctx, from, consumer(), demand)
		if err != nil {
			return err
		}
		demand = nextDemand(demand, received, handing, w.ackWait)
	}
}

// fetch asks once for a number of messages and passes on what came. It tells how many came, and how long they waited to be taken over. It
// returns when a lost connection is there again: a server that was restarted does not know the request.
func (w *Worker) fetch(ctx context.Context, from source, consumer jetstream.Consumer, demand int) (received int, handing time.Duration, err error) {
	if err := w.settlers.AwaitSpace(ctx, consumer.CachedInfo().Name); err != nil {
		return 0, 0, err
	}
	demand = w.hand.demand(consumer.CachedInfo().Name, demand)
	reconnected := w.o.Connection.untilReconnect().Done()
	asked, connection := time.Now(), w.conn.Stats().Reconnects
	batch, err := consumer.Fetch(demand, jetstream.FetchMaxWait(min(pollTime, w.ackWait/4)))
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
			w.pulling.Go(func() { // a server that went on may still answer the request
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

// pass hands a message on, and tells how long that took.
func (w *Worker) pass(ctx context.Context, msg jetstream.Msg, from source, asked time.Time, connection uint64) time.Duration {
	m, err := newMessage(msg, from, asked, connection, w.ackWait)
	if err != nil {
		w.logger.Error("a message without JetStream's metadata was left alone", "error", err)
		return 0
	}
	m.copiesBegun = w.copies.begun.Load()
	if !from.inRoom {
		w.behind.Store(m.behind > 0)
	}
	if from.deciding != nil {
		from.deciding.Add(1)
	}
	start := time.Now()
	w.hand.arrived(m.consumer, m.Size())
	w.hand.take(ctx, m)
	w.incoming <- m
	return time.Since(start)
}

// nextDemand doubles after a full batch that was taken over in a small part of the acknowledgement wait. It shrinks after a batch that
// waited for a large part of it.
func nextDemand(demand, received int, handing, ackWait time.Duration) int {
	switch {
	case handing > ackWait/8:
		return max(smallestFetch, demand/4)
	case received == demand && handing < ackWait/32:
		return min(largestFetch, demand*2)
	}
	return demand
}

// serve has a channel's queue served, once.
func (w *Worker) serve(queue source) {
	if _, served := w.served.LoadOrStore(queue.token(), queue.channel); !served {
		w.unserved <- queue
	}
}

// queues lists the channels whose queues are served from the start: those of the settings, and by their tokens those with events in
// the room.
func (w *Worker) queues(ctx context.Context) []source {
	var queues []source
	for _, channel := range w.sink.Destinations() {
		queues = append(queues, source{inRoom: true, channel: channel})
	}
	subjects := w.names.room()
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	info, err := w.topology.Load().room.stream.Info(asking, jetstream.WithSubjectFilter(subjects.ChannelFilter("*")))
	if ctx.Err() != nil {
		return queues // the worker stops
	}
	if err != nil {
		w.logger.Warn("queues of channels that the settings no longer name are not served", "error", err)
		return queues
	}
	for subject := range info.State.Subjects {
		token, isQueue := subjects.ChannelOf(subject)
		if isQueue && !slices.ContainsFunc(queues, func(queue source) bool { return queue.token() == token }) {
			queues = append(queues, source{inRoom: true, onlyToken: token})
		}
	}
	return queues
}

// pullQueue takes events from a channel's queue, in order and as many as the channel takes, until the context ends. It asks for more
// when the last ones are decided.
func (w *Worker) pullQueue(ctx context.Context, from source) error {
	from.deciding = new(sync.WaitGroup)
	for {
		if err := w.mayPull(ctx); err != nil {
			return err
		}
		if channel, _ := w.served.Load(from.token()); from.channel == "" {
			from.channel, _ = channel.(string) // an event for it has told
		}
		if err := w.awaitPause(ctx, from.channel); err != nil {
			return err
		}
		free, err := w.channels.awaitFree(ctx, from.channel)
		if err != nil {
			return err
		}
		consumer, err := w.topology.Load().room.channel(ctx, from.token())
		if err != nil {
			if err := w.queueFailed(ctx, err); err != nil {
				return err
			}
			continue
		}
		w.health.queues.note(nil)
		received, _, err := w.fetch(ctx, from, consumer, free)
		if err != nil {
			return err
		}
		w.channels.fetched(from.channel, received)
		from.deciding.Wait()
	}
}

// awaitPause waits while a channel is paused for longer than memoryWait.
func (w *Worker) awaitPause(ctx context.Context, channel string) error {
	for {
		paused := w.paused(channel)
		if paused <= memoryWait {
			return nil
		}
		if err := w.sleep(ctx, min(paused-memoryWait, time.Second)); err != nil {
			return err
		}
	}
}

// queueFailed waits after the consumer of a channel's queue could not be had.
func (w *Worker) queueFailed(ctx context.Context, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) && w.conn.IsConnected() {
		return w.findConsumer(ctx)
	}
	if w.conn.IsConnected() && ctx.Err() == nil {
		w.health.queues.note(err)
	}
	return w.sleep(ctx, time.Second)
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
		changed, misconfigured := w.health.misconfiguration()
		switch {
		case misconfigured != nil:
			select {
			case <-changed:
			case <-ctx.Done():
			case <-w.o.Connection.Closed():
				return errClosed
			}
		case !w.conn.IsConnected():
			if err := w.sleep(ctx, connectedPoll); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// pullFailed deals with the end of a request for messages. A consumer or stream that is gone is looked for again, and
// made anew where that is wanted. While a cluster elects a leader nobody knows whether they are gone: the worker asks until it is
// told, and is not ready meanwhile.
func (w *Worker) pullFailed(ctx context.Context, consumer jetstream.Consumer, err error) error {
	gone := errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
	if !gone {
		w.logger.Debug("a request for messages ended", "error", err)
		return w.sleep(ctx, 100*time.Millisecond)
	}
	there, err := w.isThere(ctx, consumer)
	switch {
	case err != nil:
		return err
	case !there:
		return w.findConsumer(ctx)
	}
	return w.sleep(ctx, 100*time.Millisecond)
}

// isGone reports whether a server has answered that a stream or a consumer does not exist.
func isGone(err error) bool {
	return errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
}

// isThere asks for a consumer until the server says whether it exists. One source asks at a time, so that the log tells of an election once.
func (w *Worker) isThere(ctx context.Context, consumer jetstream.Consumer) (bool, error) {
	w.finding.Lock()
	defer w.finding.Unlock()
	for {
		asking, cancel := context.WithTimeout(ctx, apiTimeout)
		err := w.o.Connection.request(asking, func(ctx context.Context) error {
			_, err := consumer.Info(ctx)
			return err
		})
		cancel()
		if err == nil || w.conn.IsConnected() && ctx.Err() == nil {
			w.health.lookedForConsumer(err)
		}
		switch {
		case err == nil:
			return true, nil
		case isGone(err):
			return false, nil
		}
		if err := w.sleep(ctx, 100*time.Millisecond); err != nil {
			return false, err
		}
	}
}
