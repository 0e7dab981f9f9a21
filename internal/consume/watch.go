package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// watchEvery is how often a worker looks at its consumers.
const watchEvery = 2 * time.Second

// watch looks at the consumers until the context ends: for the server's clock, how many messages are unacknowledged, how many wait
// in the room, and whether some have vanished.
func (w *Worker) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if w.conn.IsConnected() {
			w.lookAtProducers(ctx)
			w.lookAtRoom(ctx)
			w.removeForgedLetters(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *Worker) lookAtProducers(ctx context.Context) {
	at := w.topology.Load()
	info, err := w.ask(ctx, at.consumer)
	if err != nil {
		return
	}
	w.metrics.AckPending(info.NumAckPending)
	w.health.unacknowledged(info.NumAckPending, info.Config.MaxAckPending)
	vanished, err := w.throttle.Passed(ctx,
		fmt.Sprintf("%s %s %d", w.names.Stream, w.names.Consumer, info.Created.UnixMilli()), info.Delivered.Stream, info.Delivered.Consumer)
	if err == nil && vanished > 0 {
		w.metrics.Vanished(int(vanished))
		w.logger.Error("messages have left the stream without the workers' doing", "stream", w.names.Stream, "at_least", vanished,
			"before_sequence", info.Delivered.Stream+1)
	}
}

// ask asks for a consumer's state, and learns the server's time from the answer.
func (w *Worker) ask(ctx context.Context, consumer jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	asked := time.Now()
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking for the state of a consumer: %w", err)
	}
	w.clock.learn(asked, time.Now(), info.TimeStamp)
	return info, nil
}

// readyReason is the label of what a worker may take from the room at once.
const readyReason = "ready"

func (w *Worker) lookAtRoom(ctx context.Context) {
	at := w.topology.Load()
	if info, err := w.ask(ctx, at.room.consumer); err == nil {
		w.metrics.RoomPending(readyReason, int(info.NumPending)+info.NumAckPending) //nolint:gosec // far below the end of an int
	}
	for _, reason := range room.Scheduled() {
		if n, err := at.room.waiting(ctx, reason); err == nil {
			w.metrics.RoomPending(string(reason), n)
			if n > 0 {
				w.removeForged(ctx, reason)
			}
		}
	}
	w.removeForged(ctx, room.Channel)
	held := 0
	for _, channel := range w.sink.Destinations() {
		consumer, err := at.room.channel(ctx, room.Token(channel))
		if err != nil {
			return
		}
		info, err := w.ask(ctx, consumer)
		if err != nil {
			return
		}
		held += int(info.NumPending) + info.NumAckPending //nolint:gosec // far below the end of an int
	}
	w.metrics.RoomPending(string(room.Channel), held)
}

// leaveRoom ends the stays of events that go on in no other message, without waiting. A stay that is not ended here ends by itself.
func (w *Worker) leaveRoom(settled []settlement) {
	var stays []throttle.Stay
	for _, s := range settled {
		if stay, waited := w.stayOfStored(s.message); waited && !s.goesOn {
			stays = append(stays, stay)
		}
	}
	w.leave(stays...)
}

// stayOfStored is the stay of a message of the room; there is none of another message.
func (w *Worker) stayOfStored(m *message) (stay throttle.Stay, waited bool) {
	first := w.names.room().First(m.Subject())
	return stayOf(first, m.entry, len(m.Data()), 0), first != ""
}

// leavingQueue is how many batches of stays may wait for their end; further ones end by themselves.
const leavingQueue = 64

func (w *Worker) leave(stays ...throttle.Stay) {
	if len(stays) == 0 {
		return
	}
	select {
	case w.leaving <- stays:
	default:
	}
}

// endStays ends stays as they come, and after the context those that have come.
func (w *Worker) endStays(ctx context.Context) {
	for ctx.Err() == nil || len(w.leaving) > 0 {
		select {
		case stays := <-w.leaving:
			_ = w.throttle.LeaveRoom(context.WithoutCancel(ctx), stays)
		case <-ctx.Done():
		}
	}
}
