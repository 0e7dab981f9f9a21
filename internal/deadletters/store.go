package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/stored"
)

// Options say where the letters are, and where they come from.
type Options struct {
	Stream  string        // the dead-letter stream
	Subject string        // letters are on <subject>.<reason>.<first level of the category>
	Room    string        // the stream of the workers, in which replays wait
	Decoder event.Decoder // the workers'
}

// timeout bounds one request. One that is not permitted takes that long.
const timeout = 5 * time.Second

// ErrNotFound is the error for a letter that is not there, or not any more.
var ErrNotFound = errors.New("no such dead letter")

// Store is the dead letters of one deployment. It serves one goroutine; any number of programs may have one.
type Store struct {
	o       Options
	conn    *nats.Conn
	js      jetstream.JetStream
	letters jetstream.Stream
	room    jetstream.Stream // nil until a replay needs it
	last    uint64           // its last sequence when it was last heard of

	marks    map[uint64]uint64 // the mark of each letter for which List found one
	returned map[string]bool   // the names of the replays from which the letters came back that List found
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
	return &Store{o: o, conn: conn, js: js, letters: letters}, nil
}

// List reads all letters that are there now, the oldest first.
func (s *Store) List(ctx context.Context, progress func(done, total int64)) ([]Letter, error) {
	type message struct {
		letter Letter
		marked uint64 // the letter that the message is a mark of; 0 for a letter
	}
	messages, err := stored.Read(ctx, s.js, s.o.Stream, func(m *jetstream.RawStreamMsg) (message, bool) {
		if number, isMark := s.marked(m.Subject); isMark {
			return message{letter: Letter{Number: m.Sequence}, marked: number}, true
		}
		return message{letter: s.letterOf(m)}, strings.HasPrefix(m.Subject, s.o.Subject+".")
	}, progress)
	if err != nil {
		return nil, err
	}
	var letters []Letter
	s.marks, s.returned = make(map[uint64]uint64), make(map[string]bool)
	for m := range messages {
		if m.marked > 0 {
			s.marks[m.marked] = m.letter.Number
			continue
		}
		letters = append(letters, m.letter)
		if m.letter.entry.Replayed() { // else its producer chose the name
			s.returned[m.letter.entry.MessageID] = true
		}
	}
	for i, l := range letters {
		letters[i].Interrupted = s.marks[l.Number] > 0
	}
	return letters, nil
}

// Read returns what a letter holds.
func (s *Store) Read(ctx context.Context, number uint64) (Content, error) {
	m, err := s.message(ctx, number)
	if err != nil {
		return Content{}, err
	}
	l := s.letterOf(m)
	mark, err := s.lastOn(ctx, s.markSubject(number))
	l.Interrupted = mark != nil
	return Content{Letter: l, Header: m.Header, Body: m.Data}, err
}

// Drop removes a letter for good.
func (s *Store) Drop(ctx context.Context, l Letter) error {
	return errors.Join(s.remove(ctx, l.Number), s.unmark(ctx, s.marks[l.Number]))
}

// Tidy removes the marks that List found without their letters: they are left behind by a replay that was interrupted
// just before its end.
func (s *Store) Tidy(ctx context.Context, letters []Letter) error {
	var err error
	for number, mark := range s.marks {
		_, there := slices.BinarySearchFunc(letters, number, func(l Letter, n uint64) int { return cmp.Compare(l.Number, n) })
		if !there {
			err = errors.Join(err, s.unmark(ctx, mark))
		}
	}
	return err
}

// message gets a letter.
func (s *Store) message(ctx context.Context, number uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := s.letters.GetMsg(ctx, number)
	if err == nil {
		if _, isMark := s.marked(m.Subject); isMark || !strings.HasPrefix(m.Subject, s.o.Subject+".") {
			return nil, ErrNotFound
		}
		return m, nil
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, ErrNotFound
	}
	return nil, fmt.Errorf("getting message %d of stream %q: %w", number, s.o.Stream, err)
}

// lastOn gets the last message of the dead-letter stream on a subject, nil if there is none.
func (s *Store) lastOn(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := s.letters.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the mark of a replay on %q: %w", subject, err)
	}
	return m, nil
}

// remove deletes a message of the dead-letter stream. That it is not there any more is as good.
func (s *Store) remove(ctx context.Context, sequence uint64) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := s.letters.DeleteMsg(ctx, sequence)
	if err == nil {
		return nil
	}
	if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		if _, gone := s.letters.GetMsg(ctx, sequence); errors.Is(gone, jetstream.ErrMsgNotFound) {
			return nil
		}
	}
	return fmt.Errorf("deleting message %d of stream %q: %w", sequence, s.o.Stream, err)
}

// markToken stands where a letter's reason does in the subject of a mark.
const markToken = "." + consume.ReplayMark + "."

func (s *Store) markSubject(number uint64) string {
	return s.o.Subject + markToken + strconv.FormatUint(number, 10)
}

// marked is the letter that a mark with this subject belongs to.
func (s *Store) marked(subject string) (number uint64, isMark bool) {
	text, isMark := strings.CutPrefix(subject, s.o.Subject+markToken)
	number, err := strconv.ParseUint(text, 10, 64)
	return number, isMark && err == nil
}
