package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// mark is what a replay leaves behind before it publishes.
type mark struct {
	Name    string    `json:"name"`    // under which the event is published
	After   uint64    `json:"after"`   // the event, if it is stored in the room, has a higher sequence there
	Created time.Time `json:"created"` // when the room was
	Server  string    `json:"server"`  // the ID of the server, a new one at each of its starts

	sequence uint64    // its own in the dead-letter stream
	stored   time.Time // when it was
}

// begin marks a letter, or finds the mark that another replay of it has left.
func (s *Store) begin(ctx context.Context, l Letter) (m mark, fresh bool, err error) {
	for {
		m, err = s.mark(ctx, l)
		refusal, refused := errors.AsType[*jetstream.APIError](err)
		if !refused || refusal.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequence &&
			refusal.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequenceConstant {
			return m, err == nil, err
		}
		there, err := s.lastOn(ctx, s.markSubject(l.Number))
		if err != nil {
			return mark{}, false, err
		}
		if there == nil {
			continue // that replay has ended meanwhile
		}
		if err := json.Unmarshal(there.Data, &m); err != nil {
			return mark{}, false, fmt.Errorf("reading message %d of stream %q, the mark of a replay: %w", there.Sequence, s.o.Stream, err)
		}
		m.sequence, m.stored = there.Sequence, there.Time
		return m, false, nil
	}
}

// mark stores the mark of a letter, which the server refuses if there is one.
func (s *Store) mark(ctx context.Context, l Letter) (mark, error) {
	m := mark{
		// The time tells the letter from one of the same number in a stream that was made anew.
		Name:    fmt.Sprintf("replay-%s-%d-%d", s.o.Stream, l.Number, l.Stored.UnixMilli()),
		After:   s.last,
		Created: s.room.CachedInfo().Created,
		Server:  s.conn.ConnectedServerId(),
	}
	body, err := json.Marshal(m)
	if err != nil {
		return mark{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	message := &nats.Msg{Subject: s.markSubject(l.Number), Data: body}
	stored, err := s.js.PublishMsg(ctx, message, jetstream.WithExpectLastSequencePerSubject(0), jetstream.WithExpectStream(s.o.Stream))
	if err != nil && strings.Contains(err.Error(), "maximum bytes") {
		err = fmt.Errorf("%w (the stream has no byte left for the mark of a replay: drop a letter first)", err)
	}
	if err != nil {
		return mark{}, fmt.Errorf("marking dead letter %d on %s: %w", l.Number, message.Subject, err)
	}
	m.sequence = stored.Sequence
	return m, nil
}

// unmark removes a mark, if there is one.
func (s *Store) unmark(ctx context.Context, sequence uint64) error {
	if sequence == 0 {
		return nil
	}
	return s.remove(ctx, sequence)
}

// knowledge is what can be told of the event of an interrupted replay.
type knowledge int

const (
	unknown   knowledge     = iota
	isStored                // it is or was in the room
	harmless                // it is not, or publishing it again would not store it again
	allowance = 3 * timeout // of the duplicate window, for a publish to arrive
)

// look finds out what became of the event whose letter has a mark.
func (s *Store) look(ctx context.Context, m mark, l Letter) (knowledge, error) {
	if s.returned[m.Name] {
		return isStored, nil
	}
	info, err := s.askRoom(ctx)
	if err != nil {
		return unknown, err
	}
	if !info.Created.Equal(m.Created) {
		return unknown, nil
	}
	// The stream's leader knows the names of the window as long as it runs, and this is the one that was there at the time.
	sameServer := m.Server == s.conn.ConnectedServerId() && info.Cluster != nil && info.Cluster.Leader == s.conn.ConnectedServerName()
	if sameServer && info.TimeStamp.Sub(m.stored) < info.Config.Duplicates-allowance {
		return harmless, nil
	}
	found, err := s.find(ctx, m, s.replaySubject(l))
	if err != nil || found {
		return isStored, err
	}
	info, err = s.askRoom(ctx) // after the search: what was stored before it and left is missing now
	if err == nil && info.Created.Equal(m.Created) && whole(info.State, m.After) {
		return harmless, nil
	}
	return unknown, err
}

// whole tells whether all messages are there whose sequences are above a number.
func whole(state jetstream.StreamState, after uint64) bool {
	return state.LastSeq <= after || state.FirstSeq <= after+1 && state.NumDeleted == 0
}

func (s *Store) askRoom(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	info, err := s.room.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking about the room, stream %q: %w", s.o.Room, err)
	}
	return info, nil
}

// find looks for the event of an interrupted replay among those that wait in the room.
func (s *Store) find(ctx context.Context, m mark, subject string) (bool, error) {
	for next := m.After + 1; ; {
		message, err := s.waiting(ctx, next, subject)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("looking for an event on %s in stream %q: %w", subject, s.o.Room, err)
		case message.Header.Get(nats.MsgIdHdr) == m.Name:
			return true, nil
		}
		next = message.Sequence + 1
	}
}

func (s *Store) waiting(ctx context.Context, from uint64, subject string) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.room.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
}
