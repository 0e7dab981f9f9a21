package deadletters

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Options are the names of the streams, and the workers' decoder.
type Options struct {
	Stream  string        // the dead-letter stream
	Subject string        // letters are on <subject>.<reason>.<first level of the category>
	Room    string        // the workers' stream, in which replays wait
	Decoder event.Decoder // the workers'
}

// timeout bounds one request. A denied request takes that long.
const timeout = 5 * time.Second

// ErrNotFound is the error for a letter that does not exist or no longer exists.
var ErrNotFound = errors.New("no such dead letter")

// Store gives access to the dead letters of one deployment. One goroutine may use a Store; any number of programs may have one.
type Store struct {
	o       Options
	js      jetstream.JetStream
	letters jetstream.Stream
}

// Open finds the dead-letter stream.
func Open(ctx context.Context, conn *nats.Conn, o Options) (*Store, error) {
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(timeout))
	if err != nil {
		return nil, fmt.Errorf("using jetstream: %w", err)
	}
	letters, err := js.Stream(ctx, o.Stream)
	if err != nil {
		return nil, fmt.Errorf("looking for the stream of dead letters %q: %w", o.Stream, err)
	}
	return &Store{o: o, js: js, letters: letters}, nil
}

// List reads all letters, oldest first. It leaves out messages that no worker wrote, which workers remove.
func (s *Store) List(ctx context.Context, progress func(done, total int64)) ([]Letter, error) {
	return streamscan.Read(ctx, s.js, s.o.Stream, func(m *jetstream.RawStreamMsg) (Letter, bool) {
		if !s.isLetter(m) {
			return Letter{}, false
		}
		return s.letterOf(m), true
	}, progress)
}

// isLetter reports whether a worker stored a message as a dead letter.
func (s *Store) isLetter(m *jetstream.RawStreamMsg) bool {
	return strings.HasPrefix(m.Subject, s.o.Subject+".") && trusted.IsMarked(m.Header)
}

// Read returns the content of a letter.
func (s *Store) Read(ctx context.Context, number uint64) (Content, error) {
	m, err := s.message(ctx, number)
	if err != nil {
		return Content{}, err
	}
	return Content{Letter: s.letterOf(m), Header: m.Header, Body: m.Data}, nil
}

// message returns a letter's message.
func (s *Store) message(ctx context.Context, number uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := s.letters.GetMsg(ctx, number)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && !s.isLetter(m):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("getting message %d of stream %q: %w", number, s.o.Stream, err)
	}
	return m, nil
}

// current returns the message of a letter. It returns nil if the letter no longer exists. In a recreated stream, another letter may have its number.
func (s *Store) current(ctx context.Context, l Letter) (*jetstream.RawStreamMsg, error) {
	m, err := s.message(ctx, l.Number)
	if errors.Is(err, ErrNotFound) || err == nil && !m.Time.Equal(l.Stored) {
		return nil, nil
	}
	return m, err
}

// Drop removes a letter for good.
func (s *Store) Drop(ctx context.Context, l Letter) (Outcome, error) {
	if m, err := s.current(ctx, l); m == nil {
		return Gone, err
	}
	return s.remove(ctx, l)
}

// remove deletes the message of a letter.
func (s *Store) remove(ctx context.Context, l Letter) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := s.letters.DeleteMsg(ctx, l.Number)
	if err == nil {
		return Dropped, nil
	}
	if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		if _, gone := s.letters.GetMsg(ctx, l.Number); errors.Is(gone, jetstream.ErrMsgNotFound) {
			return Gone, nil
		}
	}
	return "", fmt.Errorf("deleting message %d of stream %q: %w", l.Number, s.o.Stream, err)
}

// Counts returns the number of dead letters by reason, with the state of their stream.
func Counts(ctx context.Context, js jetstream.JetStream, names stream.Names) (*jetstream.StreamInfo, map[string]int64, error) {
	info, err := stream.Info(ctx, js, names.DeadLetterStream, names.DeadLetterSubject+".>")
	if err != nil {
		return nil, nil, err
	}
	counts := make(map[string]int64)
	for subject, messages := range info.State.Subjects {
		reason, _, _ := strings.Cut(strings.TrimPrefix(subject, names.DeadLetterSubject+"."), ".")
		counts[reason] += int64(messages) //nolint:gosec // a count of messages on a disk
	}
	return info, counts, nil
}
