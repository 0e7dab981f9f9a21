package why

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Streams reads the streams with waiting events. Its methods may be called concurrently.
type Streams struct {
	JetStream jetstream.JetStream
	Producers string        // name of the producers' stream
	Room      string        // name of the room's stream
	Decoder   event.Decoder // with the workers' settings
}

// Bounds of one search. Reading a million messages takes about a minute. While so many events wait in the producers' stream, the event in question may
// wait in the room, so the search of the producers' stream leaves time for the room.
const (
	searchTimeout    = 20 * time.Second
	producersTimeout = 15 * time.Second
)

const messageTimeout = 5 * time.Second

var errTooMany = errors.New("it has more messages than can be read in time")

// Pending calls take for each event without an outcome, one at a time. With a sequence, it reads only this message of the producers' stream. It
// reads the producers' stream first, since events move from there to the room. After an error, events may be missing.
func (s Streams) Pending(ctx context.Context, sequence uint64, take func(Pending)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, searchTimeout, errTooMany)
	defer cancel()
	var taking sync.Mutex
	takeAll := func(pending ...Pending) {
		taking.Lock()
		defer taking.Unlock()
		for _, p := range pending {
			take(p)
		}
	}
	producers := func(m *jetstream.RawStreamMsg) { takeAll(s.published(m)...) }
	var err error
	if sequence != 0 {
		err = s.readOne(ctx, sequence, producers)
	} else {
		reading, cancel := context.WithTimeoutCause(ctx, producersTimeout, errTooMany)
		defer cancel()
		err = s.readAll(reading, s.Producers, producers)
	}
	return errors.Join(err, s.readAll(ctx, s.Room, func(m *jetstream.RawStreamMsg) {
		if trusted.IsMarked(m.Header) && !room.Under(s.Decoder.Prefix).IsReplan(m.Subject) { // workers remove forged messages
			takeAll(s.waiting(m))
		}
	}))
}

// readAll reads a stream. If the time is over before that, the error says how many messages were not read.
func (s Streams) readAll(ctx context.Context, stream string, take func(*jetstream.RawStreamMsg)) error {
	unread := "its messages"
	_, err := streamscan.Read(ctx, s.JetStream, stream, func(m *jetstream.RawStreamMsg) (none struct{}, keep bool) {
		take(m)
		return none, false
	}, func(done, total int64) {
		unread = fmt.Sprintf("about %d of its %d messages", max(0, total-done), total)
	})
	if errors.Is(err, errTooMany) {
		return fmt.Errorf("reading stream %q: %w; %s were not searched", stream, errTooMany, unread)
	}
	return err
}

func (s Streams) readOne(ctx context.Context, sequence uint64, take func(*jetstream.RawStreamMsg)) error {
	ctx, cancel := context.WithTimeout(ctx, messageTimeout)
	defer cancel()
	stream, err := s.JetStream.Stream(ctx, s.Producers)
	if err != nil {
		return fmt.Errorf("looking for stream %q: %w", s.Producers, err)
	}
	m, err := stream.GetMsg(ctx, sequence)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("getting message %d of stream %q: %w", sequence, s.Producers, err)
	}
	take(m)
	return nil
}

// published returns the event of a producer's message, or the alerts of a group.
func (s Streams) published(m *jetstream.RawStreamMsg) []Pending {
	origin := room.Origin{Stream: s.Producers, Sequence: m.Sequence, Stored: m.Time}
	message := event.Message{Subject: m.Subject, Header: m.Header, Data: m.Data, Stream: origin.Stream, Sequence: origin.Sequence}
	messages, _ := event.MessagesOf(s.Decoder, message)
	var pending []Pending
	for _, message := range messages {
		pending = append(pending, s.pending(message, origin, Pending{Since: m.Time}))
	}
	return pending
}

func (s Streams) waiting(m *jetstream.RawStreamMsg) Pending {
	entry, err := room.Read(m.Header, m.Time)
	if err != nil {
		return Pending{Since: m.Time, Reason: "unreadable"}
	}
	p := Pending{Since: m.Time, Reason: string(entry.Reason), Order: entry.Order}
	p.Due, _ = room.DueAt(m.Header)
	p.Channel, _ = room.Under(s.Decoder.Prefix).ChannelOf(m.Subject)
	if room.Under(s.Decoder.Prefix).IsDue(m.Subject) && entry.IsEvent() {
		p.Reason = room.Due
	}
	if entry.IsReport() && entry.Reason != room.Update { // the update of a message that a report changes is none
		p.Reason = string(room.Steady)
	}
	return s.pending(entry.Published(event.Headers(m.Header), m.Data), entry.Origin, p)
}

// pending fills in the fields that the message of an event determines.
func (s Streams) pending(message event.Message, origin room.Origin, p Pending) Pending {
	e, err := s.Decoder.Decode(message)
	p.ID, p.Derived, p.Category = e.ShownID(), e.Derived, e.Category
	p.Title = strings.Clone(plain.Title(event.QuickTitle(message.Data))) // a short title may be part of a large body
	p.Stream, p.Sequence, p.Stored = origin.Stream, origin.Sequence, origin.Stored
	if err != nil {
		return p
	}
	p.Identity, p.Fires = e.Identity(), e.Status == event.StatusFiring
	if e.Status != "" {
		p.Key = e.Key
	}
	return p
}
