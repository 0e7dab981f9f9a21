package consume

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
)

// keepRemoving calls removeReappeared at once and after each reconnect, until the context ends. A server may bring back many thousands of
// messages, so keepRemoving has a goroutine of its own. After a reconnect it waits until pulling has resumed.
func (w *watcher) keepRemoving(ctx context.Context) {
	for {
		present := w.streams.Connection.UntilReconnect()
		_ = w.streams.Connection.Request(ctx, func(ctx context.Context) error { w.removeReappeared(ctx); return nil })
		if !await.Ready(ctx, present.Done()) || !await.For(ctx, watchEvery) {
			return
		}
	}
}

// removeReappeared removes acknowledged messages that have reappeared in a stream. A server that was killed may bring them back (seen with
// nats-server 2.15), because it deletes the record of a deletion too early. It redelivers none of them. Until they expired, they would take
// up space and could keep resolved events waiting.
func (w *watcher) removeReappeared(ctx context.Context) {
	at, subjects := w.streams.Layout(), w.streams.Names.Room()
	w.removeAcknowledged(ctx, at.Stream, at.Consumer, w.streams.Names.Subjects())
	w.removeAcknowledged(ctx, at.Room.Stream, at.Room.Consumer, subjects.Ready())
	w.queues.each(ctx, func(queue source) {
		if consumer, err := at.Room.Channel(ctx, queue.token()); err == nil {
			w.removeAcknowledged(ctx, at.Room.Stream, consumer, []string{subjects.ChannelFilter(queue.token())})
		}
	})
}

// isOfReconnect reports whether a time of the server's clock is after the latest reconnect.
func (w *watcher) isOfReconnect(t time.Time) bool {
	reconnect := w.streams.Connection.LastReconnect()
	return !reconnect.IsZero() && t.After(w.streams.Clock.At(reconnect))
}

// removeAcknowledged removes the messages on a consumer's subjects up to the consumer's acknowledgement floor.
func (w *watcher) removeAcknowledged(ctx context.Context, from jetstream.Stream, consumer jetstream.Consumer, subjects []string) {
	info, err := w.streams.Info(ctx, consumer)
	if err != nil {
		return // the connection is lost again
	}
	removed := 0
	for _, subject := range subjects {
		for m, failure := range streamscan.From(ctx, from, subject, 1) {
			// A later message may belong to a stream that was recreated meanwhile. A message that was stored after the reconnect has not
			// reappeared: a server that lost messages gives their sequences to new ones.
			if err = failure; err != nil || m.Sequence > info.AckFloor.Stream || m.Time.After(info.TimeStamp) || w.isOfReconnect(m.Time) {
				break
			}
			if err = stream.Remove(ctx, from, m.Sequence, func() { removed++ }); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	attributes := []any{"stream", info.Stream, "consumer", info.Name, "removed", removed}
	switch {
	case err != nil && ctx.Err() == nil:
		w.logger.Warn("cannot remove acknowledged messages that reappeared in the stream", append(attributes, "error", err)...)
	case removed > 0:
		w.logger.Info("removed acknowledged messages that reappeared in the stream", attributes...)
	}
}
