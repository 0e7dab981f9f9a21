package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// watchEvery is how often a worker looks at its consumers.
const watchEvery = 2 * time.Second

// watch checks the consumers until the context ends. It learns the server's time, the number of unacknowledged messages, the number of
// events that wait in the room, and whether messages have vanished.
func (w *Worker) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if w.streams.Connection.Conn.IsConnected() {
			w.lookAtProducers(ctx)
			w.lookAtRoom(ctx)
			w.letters.RemoveForged(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *Worker) lookAtProducers(ctx context.Context) {
	at := w.streams.Layout()
	info, err := w.streams.Info(ctx, at.Consumer)
	if err != nil {
		return
	}
	w.metrics.AckPending(info.NumAckPending)
	w.health.unacknowledged(info.NumAckPending, info.Config.MaxAckPending)
	vanished, err := w.throttle.Passed(ctx,
		fmt.Sprintf("%s %s %d", w.streams.Names.Stream, w.streams.Names.Consumer, info.Created.UnixMilli()), info.Delivered.Stream, info.Delivered.Consumer)
	if err == nil && vanished > 0 {
		w.metrics.Vanished(int(vanished))
		w.logger.Error("messages have left the stream without the workers' doing", "stream", w.streams.Names.Stream, "at_least", vanished,
			"before_sequence", info.Delivered.Stream+1)
	}
}

func (w *Worker) lookAtRoom(ctx context.Context) {
	at := w.streams.Layout()
	if info, err := w.streams.Info(ctx, at.Room.Consumer); err == nil {
		w.metrics.RoomPending(stream.ReadyReason, int(info.NumPending)+info.NumAckPending) //nolint:gosec // far below the end of an int
	}
	for _, reason := range room.Scheduled() {
		if n, err := at.Room.Waiting(ctx, reason); err == nil {
			w.metrics.RoomPending(string(reason), n)
			if n > 0 {
				w.removeForged(ctx, reason)
			}
		}
	}
	w.removeForged(ctx, room.Channel)
	held := 0
	for _, channel := range w.sink.Destinations() {
		consumer, err := at.Room.Channel(ctx, room.Token(channel))
		if err != nil {
			return
		}
		info, err := w.streams.Info(ctx, consumer)
		if err != nil {
			return
		}
		held += int(info.NumPending) + info.NumAckPending //nolint:gosec // far below the end of an int
	}
	w.metrics.RoomPending(string(room.Channel), held)
}

// leaveRoom ends the stays of events that go on in no other message, without waiting. A stay that is not ended here expires.
func (w *Worker) leaveRoom(settled []settlement) {
	var stays []store.Stay
	for _, s := range settled {
		if stay, waited := w.stayOfStored(s.message); waited && !s.goesOn {
			stays = append(stays, stay)
		}
	}
	w.leave(stays...)
}

// stayOfStored returns the stay of a message in the room. A message outside the room has none.
func (w *Worker) stayOfStored(m *message) (stay store.Stay, waited bool) {
	if !m.source.inRoom {
		return store.Stay{}, false
	}
	first := w.streams.Names.Room().First(m.Subject())
	return stayOf(first, m.entry, len(m.Data()), 0), first != ""
}

// leavingQueue is how many batches of ended stays may be queued. Stays of further batches expire.
const leavingQueue = 64

func (w *Worker) leave(stays ...store.Stay) {
	if len(stays) == 0 {
		return
	}
	select {
	case w.leaving <- stays:
	default:
	}
}

// endStays ends queued stays until the context ends, and then the stays that are still queued.
func (w *Worker) endStays(ctx context.Context) {
	for ctx.Err() == nil || len(w.leaving) > 0 {
		select {
		case stays := <-w.leaving:
			_ = w.throttle.LeaveRoom(context.WithoutCancel(ctx), stays)
		case <-ctx.Done():
		}
	}
}
