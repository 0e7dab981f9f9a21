package consume

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// examinedAtOnce bounds the messages of a reason that are examined in one look at the room.
const examinedAtOnce = 32

// examined is what a worker has examined for forged messages. One goroutine has it.
type examined struct {
	topology *topology
	upto     map[room.Reason]uint64 // the messages of each reason in the room, up to a sequence

	letters time.Time // when the stream of dead letters was created
	letter  uint64    // the letters up to a sequence
	silent  time.Time // until then the letters are left alone, since they could not be read or removed
}

// removeForged removes forged messages that no consumer delivers: among the schedules of a reason, which the server never makes due, and in queues
// of channels that do not exist. They would count as waiting for a week. Each call examines some messages, each worker each of them once.
func (w *Worker) removeForged(ctx context.Context, reason room.Reason) {
	at := w.topology.Load()
	if w.examined.topology != at { // the stream may have been made anew, and count anew
		w.examined.topology, w.examined.upto = at, make(map[room.Reason]uint64)
	}
	for range examinedAtOnce {
		upto := w.examined.upto[reason]
		m, err := w.messageAfter(ctx, at, reason, upto)
		if err != nil {
			return // there is no other one, or the next look tries again
		}
		if !trusted.IsMarked(m.Header) && !w.isServed(m.Subject) {
			switch err := w.deleteFromRoom(ctx, at, m.Sequence); {
			case err == nil:
				w.metrics.Forged(trusted.Room, 1)
			case !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful): // else another worker was faster
				return
			}
		}
		w.examined.upto[reason] = m.Sequence
	}
}

// isServed tells whether a subject is that of a queue whose messages this worker takes.
func (w *Worker) isServed(subject string) bool {
	token, isQueue := w.names.room().ChannelOf(subject)
	_, served := w.served.Load(token)
	return isQueue && served
}

func (w *Worker) messageAfter(ctx context.Context, at *topology, reason room.Reason, sequence uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return at.room.stream.GetMsg(ctx, sequence+1, jetstream.WithGetMsgSubject(w.names.room().Waiting(reason)))
}

func (w *Worker) deleteFromRoom(ctx context.Context, at *topology, sequence uint64) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return at.room.stream.DeleteMsg(ctx, sequence)
}

// removeForgedLetters removes forged messages among the letters that are new since the last call. Whoever removes one counts it.
func (w *Worker) removeForgedLetters(ctx context.Context) {
	if time.Now().Before(w.examined.silent) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	before := w.examined.letter
	stream, err := w.js.Stream(ctx, w.names.DeadLetterStream)
	if err == nil {
		err = w.examineLetters(ctx, stream)
	}
	if err != nil && w.examined.letter == before { // else there are many, and the next look goes on
		w.examined.silent = time.Now().Add(stockSilence)
		w.logger.Debug("dead letters cannot be examined", "error", err)
	}
}

func (w *Worker) examineLetters(ctx context.Context, stream jetstream.Stream) error {
	info := stream.CachedInfo()
	if !w.examined.letters.Equal(info.Created) {
		w.examined.letters, w.examined.letter = info.Created, 0
	}
	if info.State.LastSeq <= w.examined.letter {
		return nil
	}
	return w.letters.each(ctx, stream, w.examined.letter+1, func(m jetstream.Msg, sequence uint64) error {
		if !trusted.IsMarked(m.Headers()) {
			switch err := stream.DeleteMsg(ctx, sequence); {
			case err == nil:
				w.metrics.Forged(trusted.DeadLetters, 1)
			case !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful): // else another worker was faster
				return err
			}
		}
		w.examined.letter = sequence
		return nil
	})
}
