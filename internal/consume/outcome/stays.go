package outcome

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Stays ends the stays of events that no longer wait in the room, in a goroutine of its own. A stay that is not ended here expires.
type Stays struct {
	room    stay.Room
	names   stream.Names
	leaving *stage.Queue[[]store.Stay]
}

// NewStays returns what ends stays in a room. It does not run yet.
func NewStays(room stay.Room, names stream.Names) *Stays {
	return &Stays{room: room, names: names, leaving: stage.NewQueue[[]store.Stay](leavingQueue)}
}

// StayIn is how long an event without a known return time counts at most: longer than a channel is likely to be paused.
const StayIn = 24 * time.Hour

// ComesBackWithin is how much longer than planned a returning event counts.
const ComesBackWithin = 5 * time.Minute

// leaveSettled ends the stays of events that go on in no other message, without waiting. A stay that is not ended here expires.
func (s *Stays) leaveSettled(settled []Settlement) {
	var ended []store.Stay
	for _, one := range settled {
		if place, waited := s.Of(one.Message); waited && !one.GoesOn {
			ended = append(ended, place)
		}
	}
	s.Leave(ended...)
}

// Of returns the stay of a message in the room. A message outside the room has none.
func (s *Stays) Of(m *received.Message) (place store.Stay, waited bool) {
	if !m.From.InRoom {
		return store.Stay{}, false
	}
	first := s.names.Room().First(m.Subject)
	return stay.Of(first, *m.Entry, room.Kept(m.Header, m.Data), 0), first != ""
}

// leavingQueue is how many batches of ended stays may be queued. Stays of further batches expire.
const leavingQueue = 64

// Leave ends stays, without waiting.
func (s *Stays) Leave(ended ...store.Stay) {
	if len(ended) > 0 {
		s.leaving.Offer(ended)
	}
}

// Start begins to end stays.
func (s *Stays) Start() {
	s.leaving.Start(1, func(stays []store.Stay) { _ = s.room.LeaveRoom(context.Background(), stays) })
}
