package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
)

// Outcome is what a replay or a drop did with a letter.
type Outcome string

// The outcomes.
const (
	Replayed Outcome = "replayed" // the event is on its way again, and the letter is gone
	Finished Outcome = "finished" // an interrupted replay had already published it; now the letter is gone too
	Dropped  Outcome = "dropped"
	Gone     Outcome = "gone" // somebody else has replayed or dropped it
)

// ErrUnfit is the error for a single letter that cannot be replayed. Other letters can.
var ErrUnfit = errors.New("it cannot be replayed")

// Replay hands a letter's event to the workers again and removes the letter. After an error other than ErrUnfit the replay may be
// incomplete, and can be repeated.
func (s *Store) Replay(ctx context.Context, l Letter) (Outcome, error) {
	if err := s.CheckReplay(l); err != nil {
		return "", err
	}
	if s.letters.CachedInfo().Config.DenyDelete {
		return "", fmt.Errorf("replaying from stream %q: it lets nobody delete a message", s.o.Stream)
	}
	message, err := s.current(ctx, l)
	if message == nil {
		return Gone, err
	}
	known, err := s.publish(ctx, message, l)
	if err != nil {
		return "", err
	}
	failpoint.Reach(failpoint.AfterReplay)
	if _, err := s.remove(ctx, l); err != nil {
		return "", fmt.Errorf("%w (its event is on its way; run the replay again)", err)
	}
	if known {
		return Finished, nil
	}
	return Replayed, nil
}

// CheckReplay returns an ErrUnfit if a letter cannot be replayed.
func (s *Store) CheckReplay(l Letter) error {
	prefix := s.o.Decoder.Prefix
	switch {
	case l.BodyLength > 0:
		return fmt.Errorf("%w: its body had %d bytes, of which only the beginning is kept", ErrUnfit, l.BodyLength)
	case l.Subject == "":
		return fmt.Errorf("%w: it does not say on which subject it was published", ErrUnfit)
	case l.Subject != prefix && !strings.HasPrefix(l.Subject, prefix+"."):
		return fmt.Errorf("%w: it was published on %q, which is neither %s nor below it", ErrUnfit, l.Subject, prefix)
	case l.lacks != nil:
		return fmt.Errorf("%w: %w", ErrUnfit, l.lacks)
	}
	return nil
}

// publish stores the event in the room with its identity. It reports whether the server already had it.
func (s *Store) publish(ctx context.Context, message *jetstream.RawStreamMsg, l Letter) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	entry := l.entry
	entry.Reason = room.Replay
	entry.Order = room.Order{}        // limits apply to a replay
	entry.Since = entry.Origin.Stored // a worker reads when it was replayed from the message itself
	subject := room.Under(s.o.Decoder.Prefix).Queue(room.Replay, cmp.Or(l.first, event.NoLevel))
	replayed := entry.Message(subject, message.Header, message.Data)
	// The time distinguishes letters with the same number in a stream that was recreated.
	name := fmt.Sprintf("replay-%s-%d-%d", s.o.Stream, l.Number, l.Stored.UnixMilli())
	stored, err := s.js.PublishMsg(ctx, replayed, jetstream.WithMsgID(name), jetstream.WithExpectStream(s.o.Room))
	if err != nil {
		return false, fmt.Errorf("publishing to %s: %w", subject, err)
	}
	return stored.Duplicate, nil
}
