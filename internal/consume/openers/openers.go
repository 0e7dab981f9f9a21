// Package openers searches the streams for messages that no worker has decided and that may open the pair of a resolved event.
//
// An undecided event is in the producers' stream. Parts of bodies, and events that Redis refused, are in the room instead, before everything that
// is stored there later. The package changes nothing. In doubt, and while a stream does not answer, a message may open the pair. All methods may
// be called concurrently.
package openers

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Search searches the streams of a deployment.
type Search struct {
	streams *stream.Client
	decoder event.Decoder

	producers, room firstOpening
}

// New returns a Search that has found nothing yet.
func New(streams *stream.Client, decoder event.Decoder) *Search {
	return &Search{streams: streams, decoder: decoder}
}

// Reach names the last sequences that a search for a resolved event covers: Until in the producers' stream, Behind in the room. [room.Entry]
// keeps them while the event waits.
type Reach struct{ Until, Behind uint64 }

// End returns the latest sequence of the producers' stream; 0 if it is not known.
func (s *Search) End(ctx context.Context) uint64 {
	end, _ := endOf(ctx, s.streams.Layout().Stream)
	return end
}

// AreDecided reports whether every event that may open the pair of a resolved event is decided. It records in the reach how far the streams
// have to be searched. The argument end returns the latest sequence of the producers' stream, as End does.
func (s *Search) AreDecided(ctx context.Context, to *Reach, end func() uint64) bool {
	at := s.streams.Layout()
	// The stream ends earlier than before if it was recreated or lost its newest messages.
	if end := end(); to.Until == 0 || end > 0 && end < to.Until {
		to.Until = end
	}
	if to.Behind == 0 && to.Until > 0 {
		if found, none := s.producers.noneBefore(ctx, to.Until+1, at, s.firstOfProducers); none {
			to.Behind = found.roomEnd
		}
	}
	if to.Behind == 0 {
		return false
	}
	found, none := s.room.noneBefore(ctx, to.Behind+1, at, s.firstOfRoom)
	if none && found.origin > 0 && found.origin <= to.Until && found.sequence > to.Behind {
		to.Behind = found.sequence // an earlier event has moved on: it was due, Redis refused it again, or it is a part of a body
		return false
	}
	return none
}

// openingKept is how long a firstOpening is cached.
const openingKept = 200 * time.Millisecond

// openings are what a search found of the undecided messages in a stream that may open a pair.
type openings struct {
	first uint64 // no such message has a lower sequence
	// In the room: the earliest event of the messages found, by its sequence in the producers' stream, and the sequence of its message. 0: none.
	origin, sequence uint64
	// In the producers' stream: the latest sequence of the room after the search. A message below first that has moved to the room is not above it.
	roomEnd uint64
}

type firstOpening struct {
	mu       sync.Mutex
	topology *stream.Layout
	found    openings
	asked    time.Time
}

// noneBefore reports whether no message below a sequence may open a pair. In doubt it returns false. It also returns false while another
// goroutine searches: otherwise a crowd of resolved events would all wait for each search.
func (o *firstOpening) noneBefore(
	ctx context.Context, sequence uint64, at *stream.Layout, look func(ctx context.Context, at *stream.Layout, known openings) openings,
) (found openings, none bool) {
	if !o.mu.TryLock() {
		return openings{}, false
	}
	defer o.mu.Unlock()
	if o.topology != at { // the streams may have been recreated, with new sequences
		o.topology, o.found, o.asked = at, openings{}, time.Time{}
	}
	if o.found.first < sequence && time.Since(o.asked) > openingKept {
		o.found = look(ctx, at, o.found)
		o.asked = time.Now()
	}
	return o.found, o.found.first >= sequence
}

// firstOfProducers finds the first message above the acknowledgement floor that may open a pair. The floor alone is not enough: it does not
// advance past other subjects and deleted messages.
func (s *Search) firstOfProducers(ctx context.Context, at *stream.Layout, known openings) openings {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	end, err := endOf(ctx, at.Stream)
	if err != nil {
		return known
	}
	info, err := at.Consumer.Info(ctx)
	if err != nil {
		return known
	}
	from := max(known.first, info.AckFloor.Stream+1)
	found := s.openingsOf(ctx, newHeads(at.Stream, s.streams.Names.Subjects()), from, max(from, end+1))
	if found.roomEnd, err = endOf(ctx, at.Room.Stream); err != nil {
		return known
	}
	return found
}

// firstOfRoom finds the first undecided events in the room that may open a pair. Redis has the decided events.
func (s *Search) firstOfRoom(ctx context.Context, at *stream.Layout, known openings) openings {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	end, err := endOf(ctx, at.Room.Stream)
	if err != nil {
		return known
	}
	return s.openingsOf(ctx, newHeads(at.Room.Stream, s.streams.Names.Room().Undecided()), max(known.first, 1), end+1)
}

// endOf returns the latest sequence of a stream. An empty stream counts as a stream that has had one message.
func endOf(ctx context.Context, messages jetstream.Stream) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	info, err := messages.Info(ctx)
	if err != nil {
		return 0, err
	}
	return max(info.State.LastSeq, 1), nil
}

const (
	mostLooks = 16
	// longestDecoded bounds the bodies that are decoded. A longer body counts as one that may open a pair.
	longestDecoded = 16 << 10
)

// openingsOf searches messages from a sequence to the end of their stream. After an error it returns what it has found. It skips events that
// resolve: they open no pair, and a crowd of them would wait for each other.
func (s *Search) openingsOf(ctx context.Context, heads heads, from, end uint64) (found openings) {
	defer func() { found.first = cmp.Or(found.first, from) }()
	for range mostLooks {
		next, err := heads.first(ctx, from)
		switch {
		case err != nil:
			return found
		case next == nil:
			from = end
			return found
		case s.opensNone(next):
		case !s.inRoom(next):
			return openings{first: next.Sequence}
		default:
			found.add(next.Sequence, s.entryOf(next).Origin, s.streams.Names.Stream)
		}
		from = next.Sequence + 1
	}
	return found
}

// add notes a message that may open a pair, whose event came to the producers' stream, or to another stream, at its origin.
func (o *openings) add(sequence uint64, origin room.Origin, producers string) {
	o.first = cmp.Or(o.first, sequence)
	if origin.Stream == producers && (o.origin == 0 || origin.Sequence < o.origin) {
		o.origin, o.sequence = origin.Sequence, sequence
	}
}

// heads holds the first messages of a stream on some subjects, at or above a sequence that only grows.
type heads struct {
	stream jetstream.Stream
	next   map[string]*jetstream.RawStreamMsg // nil: not known
}

func newHeads(stream jetstream.Stream, subjects []string) heads {
	h := heads{stream: stream, next: make(map[string]*jetstream.RawStreamMsg, len(subjects))}
	for _, subject := range subjects {
		h.next[subject] = nil
	}
	return h
}

// first returns the first message at or above a sequence; nil if there is none.
func (h heads) first(ctx context.Context, from uint64) (first *jetstream.RawStreamMsg, err error) {
	for subject, next := range h.next {
		if next == nil || next.Sequence < from {
			next, err = h.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				delete(h.next, subject)
				continue
			}
			if err != nil {
				return nil, err
			}
			h.next[subject] = next
		}
		if first == nil || next.Sequence < first.Sequence {
			first = next
		}
	}
	return first, nil
}

// opensNone reports whether a message certainly opens no pair: it is a forged message, or a single event that resolves another event.
func (s *Search) opensNone(stored *jetstream.RawStreamMsg) bool {
	if s.inRoom(stored) && !trusted.IsMarked(stored.Header) {
		return true
	}
	if !event.HintsOf(stored.Data).Resolves || len(stored.Data) >= longestDecoded {
		return false
	}
	entry := s.entryOf(stored)
	m := entry.Published(stored.Header, stored.Data)
	if parts, _ := s.decoder.Parts(m); parts != nil {
		return false
	}
	e, err := s.decoder.Decode(m)
	return err == nil && e.Resolves()
}

// inRoom reports whether a message is in the room, rather than in the producers' stream.
func (s *Search) inRoom(stored *jetstream.RawStreamMsg) bool {
	return s.streams.Names.Room().First(stored.Subject) != ""
}

// entryOf returns the entry of a message that no worker has received.
func (s *Search) entryOf(stored *jetstream.RawStreamMsg) room.Entry {
	if s.inRoom(stored) {
		if entry, err := room.Read(stored.Header, stored.Time); err == nil {
			return entry
		}
	}
	return room.NewEntry(stored.Subject, room.Origin{Sequence: stored.Sequence, Stored: stored.Time})
}
