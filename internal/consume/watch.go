package consume

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

// StreamMetrics counts what a worker sees in the streams. Its methods may be called concurrently.
type StreamMetrics interface {
	AckPending(n int, err error)                 // messages that all workers together have not acknowledged; err: the number cannot be read
	RoomPending(reason string, n int, err error) // events that wait in the room; err: the number cannot be read
	Vanished(n int)                              // messages that something other than a worker removed from the stream
	Forged(place string, n int)                  // messages that neither a worker nor an operator wrote, in a place of package trusted
}

// watcher looks at the streams and consumers from time to time, and removes what does not belong there.
type watcher struct {
	streams   *stream.Client
	positions Positions
	metrics   StreamMetrics
	health    *health
	sink      Sink
	queues    *channelQueues
	examined  examined         // only watch uses it, and the sweeps
	sweeps    []*stream.Sweep  // of the streams besides the room
	removing  *oplog.Condition // of reappeared messages
	recounts  *recounter
	logger    *slog.Logger
}

func newWatcher(o Options, health *health, queues *channelQueues, recounts *recounter) *watcher {
	return &watcher{
		streams: o.Streams, positions: o.Limits.Positions, metrics: o.Metrics.Streams, health: health, sink: o.Sink,
		queues: queues, sweeps: newSweeps(o), recounts: recounts, logger: o.Logger,
		removing: oplog.NewCondition(o.Logger, "cannot remove acknowledged messages that reappeared", "removing messages that reappeared again"),
	}
}

// watch checks the consumers until the context ends. It learns the server's time, the number of unacknowledged messages, the number of
// events that wait in the room, and whether messages have vanished. It reports unreadable numbers, because old ones would look fresh.
func (w *watcher) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if w.streams.Connection.Conn.IsConnected() {
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

func (w *watcher) lookAtProducers(ctx context.Context) {
	at := w.streams.Layout()
	info, err := w.streams.Info(ctx, at.Consumer)
	if err != nil {
		w.metrics.AckPending(0, err)
		return
	}
	w.metrics.AckPending(info.NumAckPending, nil)
	w.health.unacknowledged(info.NumAckPending, info.Config.MaxAckPending)
	vanished, err := w.positions.Passed(ctx,
		fmt.Sprintf("%s %s %d", w.streams.Names.Stream, w.streams.Names.Consumer, info.Created.UnixMilli()), info.Delivered.Stream, info.Delivered.Consumer)
	if err == nil && vanished > 0 {
		w.metrics.Vanished(int(vanished))
		w.logger.Error("messages left the stream without being processed", "stream", w.streams.Names.Stream, "at_least", vanished,
			"before_sequence", info.Delivered.Stream+1)
	}
}

// lookAtRoom counts what waits in the room. Messages beyond these numbers are in queues of other channels than the sink's.
func (w *watcher) lookAtRoom(ctx context.Context) {
	at := w.streams.Layout()
	ready, err := w.unfinished(ctx, at.Room.Consumer)
	w.metrics.RoomPending(stream.ReadyReason, ready, err)
	counted := ready
	for _, reason := range room.Scheduled() {
		n, err := at.Room.Waiting(ctx, reason)
		w.metrics.RoomPending(string(reason), n, err)
		if err == nil && n > 0 {
			w.removeForged(ctx, reason)
		}
		counted += n
	}
	held, err := w.held(ctx, at.Room)
	w.metrics.RoomPending(string(room.Channel), held, err)
	if all, err := at.Room.Messages(ctx); err == nil && all > uint64(counted+held) { //nolint:gosec // counts are not negative
		w.removeForged(ctx, room.Channel)
	}
}

func (w *watcher) held(ctx context.Context, at *stream.Room) (held int, err error) {
	for _, channel := range w.sink.Destinations() {
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
func (w *watcher) unfinished(ctx context.Context, consumer jetstream.Consumer) (int, error) {
	info, err := w.streams.Info(ctx, consumer)
	if err != nil {
		return 0, err
	}
	return int(info.NumPending) + info.NumAckPending, nil //nolint:gosec // far below the end of an int
}

func (w *watcher) unread(err error) {
	w.metrics.AckPending(0, err)
	for _, reason := range append(room.Scheduled(), room.Channel, stream.ReadyReason) {
		w.metrics.RoomPending(string(reason), 0, err)
	}
}
