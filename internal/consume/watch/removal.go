package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// KeepRemoving removes reappeared messages at the start and after each reconnect, until the context ends. A server may bring back many thousands
// of messages, so KeepRemoving has a goroutine of its own. After a reconnect it waits until pulling has resumed.
func (w *Watcher) KeepRemoving(ctx context.Context) {
	for {
		present := w.o.Streams.Connection.UntilReconnect()
		for before := make(map[string]uint64); present.Err() == nil; {
			isDone := false
			err := w.o.Streams.Connection.Request(ctx, func(ctx context.Context) (err error) {
				isDone, err = w.RemoveReappeared(ctx, before)
				return err
			})
			if ctx.Err() == nil && !errors.Is(err, nats.ErrDisconnected) {
				w.removing.Note(err)
			}
			if isDone {
				break
			}
			if !await.For(ctx, removeEvery) {
				return
			}
		}
		if !await.Ready(ctx, present.Done()) || !await.For(ctx, watchEvery) {
			return
		}
	}
}

const removeEvery = 5 * time.Second

// RemoveReappeared removes acknowledged messages that have reappeared in a stream. A server that was killed may bring them back (seen with
// nats-server 2.15), because it deletes the record of a deletion too early. It redelivers none of them. Until they expired, they would take
// up space and could keep resolved events waiting.
//
// Above the acknowledgement floor of its consumer a reappeared message looks like a message that a worker has. So RemoveReappeared is repeated
// until each consumer has passed what it had delivered at first. It notes that position in before, and 0 for a consumer that is done.
func (w *Watcher) RemoveReappeared(ctx context.Context, before map[string]uint64) (isDone bool, err error) {
	at, subjects := w.o.Streams.Layout(), w.o.Streams.Names.Room()
	errs := []error{
		w.removeAcknowledged(ctx, at.Stream, at.Consumer, w.o.Streams.Names.Subjects(), before),
		w.removeAcknowledged(ctx, at.Room.Stream, at.Room.Consumer, subjects.Ready(), before),
	}
	w.o.EachQueue(ctx, func(token string) {
		consumer, err := at.Room.Channel(ctx, token)
		if err == nil {
			err = w.removeAcknowledged(ctx, at.Room.Stream, consumer, []string{subjects.ChannelFilter(token)}, before)
		}
		errs = append(errs, err)
	})
	if err = errors.Join(errs...); err != nil {
		return false, err
	}
	for _, position := range before {
		if position > 0 {
			return false, nil
		}
	}
	return true, nil
}

// removeAcknowledged is RemoveReappeared for one consumer and its subjects. It removes messages up to the consumer's acknowledgement floor.
func (w *Watcher) removeAcknowledged(ctx context.Context, from jetstream.Stream, consumer jetstream.Consumer, subjects []string, before map[string]uint64) error {
	name := consumer.CachedInfo().Stream + " " + consumer.CachedInfo().Name
	position, known := before[name]
	if known && position == 0 {
		return nil
	}
	info, err := w.o.Streams.Info(ctx, consumer)
	if err != nil {
		return fmt.Errorf("asking for consumer %s: %w", name, err)
	}
	if !stream.Takes(info.Config, subjects) {
		return fmt.Errorf("consumer %s takes only some of the subjects %s, so what it has not delivered is not acknowledged", name, strings.Join(subjects, ", "))
	}
	if !known {
		position = info.Delivered.Stream
	}
	removed := 0
	for _, subject := range subjects {
		for m, failure := range streamscan.From(ctx, from, subject, 1) {
			// A later message may belong to a stream that was recreated meanwhile. A message that was stored after the reconnect has not
			// reappeared: a server that lost messages gives their sequences to new ones.
			if err = failure; err != nil || m.Sequence > info.AckFloor.Stream || m.Time.After(info.TimeStamp) || w.o.Streams.IsOfReconnect(m.Time) {
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
	if removed > 0 {
		w.o.Logger.Info("removed acknowledged messages that reappeared in the stream", "stream", info.Stream, "consumer", info.Name, "removed", removed)
	}
	if err != nil {
		return fmt.Errorf("removing acknowledged messages of consumer %s: %w", name, err)
	}
	if info.NumAckPending == 0 || info.AckFloor.Stream >= position {
		position = 0
	}
	before[name] = position
	return nil
}

// examinedAtOnce bounds how many messages of a reason one look at the room examines.
const examinedAtOnce = 32

// examined is how far a worker has examined the room for forged messages. Only one goroutine uses it.
type examined struct {
	topology *stream.Layout
	upto     map[room.Reason]uint64 // last examined sequence in the room, by reason
}

// removeForged removes forged messages that no consumer delivers: schedules of a reason that the server never makes due, and messages in
// queues of channels that do not exist. They would count as waiting for a week. Each call examines some messages that are new to this worker. It has a
// queue served that a worker with other settings has filled meanwhile.
func (w *Watcher) removeForged(ctx context.Context, reason room.Reason) {
	at := w.o.Streams.Layout()
	if w.examined.topology != at { // the stream may have been recreated, with new sequences
		w.examined.topology, w.examined.upto = at, make(map[room.Reason]uint64)
	}
	left := examinedAtOnce
	for m, err := range streamscan.From(ctx, at.Room.Stream, w.o.Streams.Names.Room().Waiting(reason), w.examined.upto[reason]+1) {
		if err != nil {
			return // the next call tries again
		}
		switch token, isQueue := w.o.Streams.Names.Room().ChannelOf(m.Subject); {
		case isQueue && w.o.Serves(token): // its consumer delivers the message
		case isQueue && trusted.IsMarked(m.Header):
			w.o.Serve(token)
		case !trusted.IsMarked(m.Header):
			if err := stream.Remove(ctx, at.Room.Stream, m.Sequence, func() { w.o.Metrics.Forged(trusted.Room, 1) }); err != nil {
				return
			}
		}
		w.examined.upto[reason] = m.Sequence
		if left--; left == 0 {
			return
		}
	}
}

// newSweeps returns what removes forged messages from the dead letters and from the journal, if there is one.
func newSweeps(o Options) []*stream.Sweep {
	names := o.Streams.Names
	of := func(place, from, subjects string) *stream.Sweep {
		return &stream.Sweep{
			Client: o.Streams, Stream: from, Subjects: subjects, Removed: func() { o.Metrics.Forged(place, 1) },
		}
	}
	sweeps := []*stream.Sweep{of(trusted.DeadLetters, names.DeadLetterStream, names.DeadLetterSubject+".>")}
	if names.Journal.Age > 0 {
		sweeps = append(sweeps, of(trusted.Journal, names.Journal.Stream, names.Journal.All()))
	}
	return sweeps
}

// sweep removes forged messages from the streams besides the room.
func (w *Watcher) sweep(ctx context.Context) {
	for _, s := range w.sweeps {
		if err := s.Run(ctx); err != nil {
			w.o.Logger.Debug("forged messages cannot be looked for", "stream", s.Stream, "error", err)
		}
	}
}
