package deadletters

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// silence is how long the letters are not examined after reading or removing them failed.
const silence = time.Minute

// examined is how far the letters have been examined for forged messages.
type examined struct {
	created time.Time // when the stream was created: a new stream has new sequences
	upto    uint64    // last examined sequence
	silent  time.Time // end of the silence
}

// RemoveForged removes messages that no worker wrote, among the letters that are new since the last call. The worker that removes a message
// counts it. One goroutine calls RemoveForged.
func (w *Writer) RemoveForged(ctx context.Context) {
	if time.Now().Before(w.examined.silent) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	before := w.examined.upto
	letters, err := w.stream(ctx)
	if err == nil {
		err = w.examine(ctx, letters)
	}
	if err != nil && w.examined.upto == before { // otherwise there are many, and the next call continues
		w.examined.silent = time.Now().Add(silence)
		w.o.Logger.Debug("dead letters cannot be examined", "error", err)
	}
}

func (w *Writer) examine(ctx context.Context, letters jetstream.Stream) error {
	info := letters.CachedInfo()
	if !w.examined.created.Equal(info.Created) {
		w.examined.created, w.examined.upto = info.Created, 0
	}
	if info.State.LastSeq <= w.examined.upto {
		return nil
	}
	return w.each(ctx, letters, w.examined.upto+1, func(m jetstream.Msg, sequence uint64) error {
		if !trusted.IsMarked(m.Headers()) {
			switch err := letters.DeleteMsg(ctx, sequence); {
			case err == nil:
				w.o.Metrics.Forged(trusted.DeadLetters, 1)
			case !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful): // otherwise another worker was faster
				return err
			}
		}
		w.examined.upto = sequence
		return nil
	})
}
