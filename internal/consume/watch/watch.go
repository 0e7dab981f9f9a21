// Package watch looks at the streams and consumers of the workers from time to time, and removes what does not belong there.
//
// A [Watcher] counts what waits and what has vanished, learns the server's clock, and removes forged messages and acknowledged messages that a
// killed server has brought back. It decides about no event, and removes no message that a worker may still have to settle. Its methods run
// at once, each in one goroutine. After a failure it tries again.
package watch

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/room"
)

const watchEvery = 2 * time.Second

// Positions records how far the workers have come: a part of [throttle.Limiter].
type Positions interface {
	// Passed reports the consumer's position: the sequence of its latest message and its number of deliveries. It returns how many messages
	// have vanished from the stream since any instance last reported the position. The name includes the consumer's creation time.
	Passed(ctx context.Context, consumer string, sequence, deliveries uint64) (vanished int64, err error)
}

// Metrics counts what a worker sees in the streams. Its methods may be called concurrently.
type Metrics interface {
	AckPending(n int, err error)                 // messages that all workers together have not acknowledged; err: the number cannot be read
	RoomPending(reason string, n int, err error) // events that wait in the room; err: the number cannot be read
	Vanished(n int)                              // messages that something other than a worker removed from the stream
	Forged(place string, n int)                  // messages that neither a worker nor an operator wrote, in a place of package trusted
}

// Options configure a Watcher. The functions are no interface: the linker would keep every method of the queues' fields, since templates call
// methods by name.
type Options struct {
	Streams        *stream.Client // Find has succeeded
	Positions      Positions
	EachQueue      func(ctx context.Context, take func(token string)) // calls take for the queue of each channel in the room, one at a time
	Serves         func(token string) bool                            // whether this worker pulls from a queue
	Serve          func(token string)                                 // has the worker pull from it
	Channels       func() []string                                    // the channels that the settings name
	Unacknowledged func(n, most int)                                  // takes how many messages nobody has acknowledged, and how many may be
	Metrics        Metrics
	Logger         *slog.Logger
}

// Watcher looks at the streams and consumers from time to time, and removes what does not belong there.
type Watcher struct {
	o Options

	examined examined         // only Watch uses it, and the sweeps
	sweeps   []*stream.Sweep  // of the streams besides the room
	removing *oplog.Condition // of reappeared messages
}

// New returns a Watcher that does not run yet.
func New(o Options) *Watcher {
	return &Watcher{
		o: o, sweeps: newSweeps(o),
		removing: oplog.NewCondition(o.Logger, "cannot remove acknowledged messages that reappeared", "removing messages that reappeared again"),
	}
}

// Watch checks the consumers until the context ends. It learns the server's time, the number of unacknowledged messages, the number of
// events that wait in the room, and whether messages have vanished. It reports unreadable numbers, because old ones would look fresh.
func (w *Watcher) Watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if w.o.Streams.Connection.Conn.IsConnected() {
			w.lookAtProducers(ctx)
			w.lookAtRoom(ctx)
			w.sweep(ctx)
		} else {
			w.unread(nats.ErrDisconnected)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *Watcher) lookAtProducers(ctx context.Context) {
	at := w.o.Streams.Layout()
	info, err := w.o.Streams.Info(ctx, at.Consumer)
	if err != nil {
		w.o.Metrics.AckPending(0, err)
		return
	}
	w.o.Metrics.AckPending(info.NumAckPending, nil)
	w.o.Unacknowledged(info.NumAckPending, info.Config.MaxAckPending)
	vanished, err := w.o.Positions.Passed(ctx,
		fmt.Sprintf("%s %s %d", w.o.Streams.Names.Stream, w.o.Streams.Names.Consumer, info.Created.UnixMilli()), info.Delivered.Stream, info.Delivered.Consumer)
	if err == nil && vanished > 0 {
		w.o.Metrics.Vanished(int(vanished))
		w.o.Logger.Error("messages left the stream without being processed", "stream", w.o.Streams.Names.Stream, "at_least", vanished,
			"before_sequence", info.Delivered.Stream+1)
	}
}

// lookAtRoom counts what waits in the room. Messages beyond these numbers are in queues of other channels than the sink's.
func (w *Watcher) lookAtRoom(ctx context.Context) {
	at := w.o.Streams.Layout()
	ready, err := w.unfinished(ctx, at.Room.Consumer)
	w.o.Metrics.RoomPending(stream.ReadyReason, ready, err)
	counted := ready
	for _, reason := range room.Scheduled() {
		n, err := at.Room.Waiting(ctx, reason)
		w.o.Metrics.RoomPending(string(reason), n, err)
		if err == nil && n > 0 {
			w.removeForged(ctx, reason)
		}
		counted += n
	}
	held, err := w.held(ctx, at.Room)
	w.o.Metrics.RoomPending(string(room.Channel), held, err)
	if all, err := at.Room.Messages(ctx); err == nil && all > uint64(counted+held) { //nolint:gosec // counts are not negative
		w.removeForged(ctx, room.Channel)
	}
}

func (w *Watcher) held(ctx context.Context, at *stream.Room) (held int, err error) {
	for _, channel := range w.o.Channels() {
		consumer, err := at.Channel(ctx, room.Token(channel))
		if err != nil {
			return 0, err
		}
		n, err := w.unfinished(ctx, consumer)
		if err != nil {
			return 0, err
		}
		held += n
	}
	return held, nil
}

// unfinished counts the messages of a consumer that are not acknowledged, whether they are delivered or not.
func (w *Watcher) unfinished(ctx context.Context, consumer jetstream.Consumer) (int, error) {
	info, err := w.o.Streams.Info(ctx, consumer)
	if err != nil {
		return 0, err
	}
	return int(info.NumPending) + info.NumAckPending, nil //nolint:gosec // far below the end of an int
}

func (w *Watcher) unread(err error) {
	w.o.Metrics.AckPending(0, err)
	for _, reason := range append(room.Scheduled(), room.Channel, stream.ReadyReason) {
		w.o.Metrics.RoomPending(string(reason), 0, err)
	}
}
