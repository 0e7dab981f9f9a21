// Package delayed reads the events that wait in the room, and brings scheduled ones back before they are due.
//
// A message schedule is replaced by one that is due at once. The server stores the replacement only if the schedule is still the last
// message on its subject. An event is therefore never in two places: either the replacement is stored, or a worker has the event already
// and nothing changes. A server that is making a schedule due while the schedule is replaced removes the replacement, so [Store.Order] gives
// no order to an event that is due within [Margin].
//
// All methods may be called concurrently.
package delayed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Margin is the shortest time until an event is due at which [Store.Order] gives an order.
const Margin = 2 * time.Second

// mostAtOnce is how many schedules AdvanceOverdue gets and replaces within the timeout.
const mostAtOnce = 256

// timeout bounds one request. A denied request takes that long.
const timeout = 5 * time.Second

// Store is the room of a deployment.
type Store struct {
	JetStream jetstream.JetStream
	Room      jetstream.Stream
	Decoder   event.Decoder // with the workers' settings
}

// Open finds the room.
func Open(ctx context.Context, js jetstream.JetStream, name string, decoder event.Decoder) (*Store, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("looking for the room, stream %q: %w", name, err)
	}
	return &Store{JetStream: js, Room: stream, Decoder: decoder}, nil
}

// Event is an event in the room.
type Event struct {
	ID       string     `json:"id"` // as workers show it
	Category string     `json:"category"`
	Title    string     `json:"title,omitempty"`
	Reason   string     `json:"reason"`               // what it waits for (room.Reason) or room.Due
	Stored   time.Time  `json:"stored"`               // when the producer's message was stored
	Since    time.Time  `json:"since"`                // when it began to wait for that
	Due      time.Time  `json:"due,omitzero"`         // when it comes back; zero: not known
	Order    room.Order `json:"-"`                    // that an operator has given
	By       string     `json:"ordered_by,omitempty"` // the operator

	Entry    room.Entry `json:"-"`
	Identity string     `json:"-"` // see event.Event.Identity

	Size int `json:"-"` // see room.Kept

	sequence uint64 // in the room
}

// Scheduled reports whether an order can be given: the event waits as a message schedule.
func (e Event) Scheduled() bool { return slices.Contains(room.Scheduled(), room.Reason(e.Reason)) }

// Undecided reports whether a worker is yet to decide the event.
func (e Event) Undecided() bool { return e.Scheduled() || e.Reason == room.Due }

// List reads the events that wait, the oldest first.
func (s *Store) List(ctx context.Context, progress func(done, total int64)) ([]Event, error) {
	return s.read(ctx, s.subjects().All(), func(Event) bool { return true }, progress)
}

// Planned reads the events that wait for a slot and that a function selects, the oldest first. It calls the function concurrently.
func (s *Store) Planned(ctx context.Context, wanted func(Event) bool) ([]Event, error) {
	return s.read(ctx, s.subjects().Waiting(room.Slot), wanted, func(int64, int64) {})
}

func (s *Store) name() string { return s.Room.CachedInfo().Config.Name }

func (s *Store) subjects() room.Subjects { return room.Under(s.Decoder.Prefix) }

func (s *Store) read(ctx context.Context, subject string, wanted func(Event) bool, progress func(done, total int64)) ([]Event, error) {
	place := streamscan.Place{Stream: s.name(), Subject: subject}
	events, err := streamscan.ReadSubject(ctx, s.JetStream, place, func(m *jetstream.RawStreamMsg) (Event, bool) {
		e, isEvent := s.eventOf(m)
		return e, isEvent && wanted(e)
	}, progress)
	slices.SortStableFunc(events, inOrder)
	return events, err
}

// inOrder compares the places of two events in the streams of the producers.
func inOrder(x, y Event) int {
	return cmp.Or(x.Stored.Compare(y.Stored), cmp.Compare(x.Entry.Origin.Sequence, y.Entry.Origin.Sequence))
}

// eventOf reads a message of the room. Messages that no worker or operator wrote, requests, updates and reports are no events.
func (s *Store) eventOf(m *jetstream.RawStreamMsg) (Event, bool) {
	entry, err := room.Read(m.Header, m.Time)
	if err != nil || !entry.IsEvent() {
		return Event{}, false
	}
	headers := event.Headers(m.Header)
	decoded, _ := s.Decoder.Decode(entry.Published(headers, m.Data)) // even a faulty event has its ID
	e := Event{
		ID: decoded.ShownID(), Category: decoded.Category, Title: event.QuickTitle(m.Data), Reason: string(entry.Reason), Stored: entry.Origin.Stored,
		Since: m.Time, Order: entry.Order, By: entry.Order.By, Entry: entry, Identity: decoded.Identity(), Size: room.Kept(m.Header, m.Data), sequence: m.Sequence,
	}
	if s.subjects().IsDue(m.Subject) {
		e.Reason = room.Due
	}
	e.Due, _ = room.DueAt(m.Header)
	return e, true
}

// Clock returns a function that returns the latest time that the server's clock may show.
func (s *Store) Clock(ctx context.Context) (func() time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	asked := time.Now()
	info, err := s.Room.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking for the time of the server: %w", err)
	}
	return func() time.Time { return info.TimeStamp.Add(time.Since(asked)) }, nil
}

// Order gives an order to an event, at a time of the server's clock. It reports false if the event waits for no schedule, is about to be
// due or has moved on meanwhile.
func (s *Store) Order(ctx context.Context, e Event, order room.Order, now time.Time) (ordered bool, err error) {
	if !e.Scheduled() || e.Due.Sub(now) < Margin {
		return false, nil
	}
	advanced, err := s.Advance(ctx, []Event{e}, order)
	return advanced == 1, err
}

// Advance makes events due at once, in their order, with an order if there is one. It returns how many of them had not moved on meanwhile.
// After an error, some of them may be due.
func (s *Store) Advance(ctx context.Context, events []Event, order room.Order) (advanced int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	schedules, err := s.schedules(ctx, events)
	if err != nil {
		return 0, err
	}
	var stored []jetstream.PubAckFuture
	for _, schedule := range schedules {
		if schedule == nil {
			continue
		}
		future, err := s.JetStream.PublishMsgAsync(room.Advance(schedule, order),
			jetstream.WithExpectLastSequencePerSubject(schedule.Sequence), jetstream.WithExpectStream(s.name()))
		if err != nil {
			return advanced, fmt.Errorf("publishing to %s: %w", schedule.Subject, err)
		}
		stored = append(stored, future)
	}
	for _, future := range stored {
		select {
		case <-future.Ok():
			advanced++
		case err := <-future.Err():
			if !room.IsOutrun(err) {
				return advanced, fmt.Errorf("publishing to %s: %w", future.Msg().Subject, err)
			}
		case <-ctx.Done():
			return advanced, fmt.Errorf("publishing to %s: %w", future.Msg().Subject, context.Cause(ctx))
		}
	}
	return advanced, nil
}

// AdvanceOverdue makes message schedules due at once that were due before a time of the server's clock, whatever they are for. It returns their
// number. A server that was killed may bring back a schedule that was due already, and never makes it due again (seen with nats-server 2.15):
// it deletes the record of the schedule's deletion too early, and its list of schedules does not have the schedule.
func (s *Store) AdvanceOverdue(ctx context.Context, before time.Time) (advanced int, err error) {
	overdue, err := streamscan.Read(ctx, s.JetStream, s.name(), func(m *jetstream.RawStreamMsg) (Event, bool) {
		due, isSchedule := room.DueAt(m.Header)
		return Event{sequence: m.Sequence}, isSchedule && due.Before(before) && trusted.IsMarked(m.Header)
	}, func(int64, int64) {})
	if err != nil {
		return 0, err
	}
	for batch := range slices.Chunk(overdue, mostAtOnce) {
		n, err := s.Advance(ctx, batch, room.Order{})
		if advanced += n; err != nil {
			return advanced, err
		}
	}
	return advanced, nil
}

// schedules returns the stored messages of events; nil for an event that has moved on.
func (s *Store) schedules(ctx context.Context, events []Event) ([]*jetstream.RawStreamMsg, error) {
	found, failures := make([]*jetstream.RawStreamMsg, len(events)), make([]error, len(events))
	var reading sync.WaitGroup
	for i, e := range events {
		reading.Go(func() {
			var err error
			if found[i], err = s.Room.GetMsg(ctx, e.sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
				failures[i] = fmt.Errorf("getting message %d of stream %q: %w", e.sequence, s.name(), err)
			}
		})
	}
	reading.Wait()
	return found, errors.Join(failures...)
}
