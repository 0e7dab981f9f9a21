package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
)

// Outcome is what a replay did with a letter.
type Outcome string

// The outcomes of a replay.
const (
	Replayed Outcome = "replayed" // the event is on its way again, and the letter is gone
	Finished Outcome = "finished" // an interrupted replay had sent it on before; now the letter is gone too
	Gone     Outcome = "gone"     // somebody else has replayed or dropped it
	InDoubt  Outcome = "in_doubt" // an interrupted replay may have sent it on; the letter stays
)

// ErrUnfit is the error for one letter that cannot be replayed. Others can.
var ErrUnfit = errors.New("it cannot be replayed")

// Replay hands a letter's event to the workers again and removes the letter. Force does so even where an earlier replay may
// have done it. After an error other than ErrUnfit the replay may be half done: it can be run again.
func (s *Store) Replay(ctx context.Context, l Letter, force bool) (Outcome, error) {
	if err := s.fit(l); err != nil {
		return "", err
	}
	if err := s.prepare(ctx); err != nil {
		return "", err
	}
	m, fresh, err := s.begin(ctx, l)
	if err != nil {
		return "", err
	}
	message, err := s.message(ctx, l.Number)
	if errors.Is(err, ErrNotFound) || err == nil && !message.Time.Equal(l.Stored) {
		return Gone, s.unmark(ctx, m.sequence)
	}
	if err == nil && !fresh {
		var known knowledge
		switch known, err = s.look(ctx, m, l); {
		case err != nil:
		case known == isStored:
			return Finished, s.end(ctx, l, m)
		case known == unknown && !force:
			return InDoubt, nil
		}
	}
	if err != nil {
		return "", s.giveUp(ctx, m, fresh, err)
	}
	again, err := s.publish(ctx, message, m, l)
	switch {
	case refused(err):
		return "", s.giveUp(ctx, m, fresh, err)
	case err != nil:
		return "", err
	case again:
		return Finished, s.end(ctx, l, m)
	}
	return Replayed, s.end(ctx, l, m)
}

// fit tells why a letter cannot be replayed.
func (s *Store) fit(l Letter) error {
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

// prepare finds the room, once.
func (s *Store) prepare(ctx context.Context) error {
	if s.room != nil {
		return nil
	}
	if s.letters.CachedInfo().Config.DenyDelete {
		return fmt.Errorf("replaying from stream %q: it lets nobody delete a message", s.o.Stream)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := s.js.Stream(ctx, s.o.Room)
	if err != nil {
		return fmt.Errorf("looking for the room, stream %q: %w", s.o.Room, err)
	}
	s.room, s.last = found, found.CachedInfo().State.LastSeq
	return nil
}

// replaySubject is where a letter's event waits for a worker.
func (s *Store) replaySubject(l Letter) string {
	return room.Under(s.o.Decoder.Prefix).Queue(room.Replay, cmp.Or(l.first, event.NoLevel))
}

// publish stores the event in the room, under the name of its replay. It tells whether the server knows that name already.
func (s *Store) publish(ctx context.Context, message *jetstream.RawStreamMsg, m mark, l Letter) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	entry := l.entry
	entry.Reason = room.Replay
	entry.MessageID = m.Name          // by which it is known again if it comes back
	entry.Since = entry.Origin.Stored // a worker reads when it was replayed from the message itself
	anew := entry.Message(s.replaySubject(l), message.Header, message.Data)
	stored, err := s.js.PublishMsg(ctx, anew, jetstream.WithMsgID(m.Name), jetstream.WithExpectStream(s.o.Room))
	if err != nil {
		return false, fmt.Errorf("publishing to %s: %w", anew.Subject, err)
	}
	s.last = max(s.last, stored.Sequence)
	return stored.Duplicate, nil
}

// refused tells whether an error of a publish says that the message is not stored. Others leave that open.
func refused(err error) bool {
	_, answered := errors.AsType[*jetstream.APIError](err)
	return answered || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject)
}

// end removes what a replay is finished with: the letter first.
func (s *Store) end(ctx context.Context, l Letter, m mark) error {
	if err := s.remove(ctx, l.Number); err != nil {
		return fmt.Errorf("%w (its event is on its way; run the replay again)", err)
	}
	return s.unmark(ctx, m.sequence)
}

// giveUp ends a replay that has published nothing, and returns why. A mark that it found stays.
func (s *Store) giveUp(ctx context.Context, m mark, fresh bool, why error) error {
	if !fresh {
		return why
	}
	return errors.Join(why, s.unmark(ctx, m.sequence))
}
