package consume

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// examinedAtOnce bounds how many messages of a reason one look at the room examines.
const examinedAtOnce = 32

// examined is how far a worker has examined the room for forged messages. Only one goroutine uses it.
type examined struct {
	topology *stream.Layout
	upto     map[room.Reason]uint64 // last examined sequence in the room, by reason
}

// removeForged removes forged messages that no consumer delivers: schedules of a reason that the server never makes due, and messages in
// queues of channels that do not exist. They would count as waiting for a week. Each call examines some messages that are new to this worker.
func (w *watcher) removeForged(ctx context.Context, reason room.Reason) {
	at := w.streams.Layout()
	if w.examined.topology != at { // the stream may have been recreated, with new sequences
		w.examined.topology, w.examined.upto = at, make(map[room.Reason]uint64)
	}
	left := examinedAtOnce
	for m, err := range streamscan.From(ctx, at.Room.Stream, w.streams.Names.Room().Waiting(reason), w.examined.upto[reason]+1) {
		if err != nil {
			return // the next call tries again
		}
		token, isQueue := w.streams.Names.Room().ChannelOf(m.Subject)
		if isServed := isQueue && w.queues.serves(token); !isServed && !trusted.IsMarked(m.Header) {
			if err := stream.Remove(ctx, at.Room.Stream, m.Sequence, func() { w.metrics.Forged(trusted.Room, 1) }); err != nil {
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
			Client: o.Streams, Stream: from, Subjects: subjects, Removed: func() { o.Metrics.Streams.Forged(place, 1) },
		}
	}
	sweeps := []*stream.Sweep{of(trusted.DeadLetters, names.DeadLetterStream, names.DeadLetterSubject+".>")}
	if names.Journal.Age > 0 {
		sweeps = append(sweeps, of(trusted.Journal, names.Journal.Stream, names.Journal.All()))
	}
	return sweeps
}

// sweep removes forged messages from the streams besides the room.
func (w *watcher) sweep(ctx context.Context) {
	for _, s := range w.sweeps {
		if err := s.Run(ctx); err != nil {
			w.logger.Debug("forged messages cannot be looked for", "stream", s.Stream, "error", err)
		}
	}
}
