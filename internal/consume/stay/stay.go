// Package stay owns the stays of events in the room: for how many events each message of the room counts, and the comparison of the counted
// stays with the messages.
//
// A first level may have a bounded number of events in the room, which Redis counts by their stays. [Of] returns the stay of a message. The
// [Recounter] ends stays whose events are gone. Its methods may be called concurrently. While NATS or Redis is unavailable it ends no stay, and
// tries again later.
package stay

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/delayed"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Room bounds the events that wait in the room: a [throttle.Room]. Its methods may be called concurrently, and repeated.
type Room interface {
	// EnterRoom reports for each stay whether the event may wait in the room, by the bound of its first level. LeaveRoom ends stays.
	EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error)
	LeaveRoom(ctx context.Context, stays []store.Stay) error

	// Stays returns the stays of a first level with their ends: see [store.Queues.Stays]. Claim returns true for one worker in each period.
	Stays(ctx context.Context, first string) (map[store.Stay]time.Time, error)
	Claim(ctx context.Context, task store.Task, period time.Duration) (bool, error)
}

// WeightBytes is the size for which an event counts as one more event in the room.
const WeightBytes = 16 << 10

// Weight returns for how many events an event of a size counts in the room.
func Weight(size int) int { return 1 + size/WeightBytes }

// undecodedBytes is the WeightBytes of an undecoded body, which may hold an alert in every few hundred bytes.
const undecodedBytes = 1 << 10

// Of returns a message's stay in the room. A message that moves again has the same stay. The undecoded bodies of a first level have a
// separate share, so they leave room for the parts into which they are split. The updates of posted messages have a share of their own too, so
// they leave room for events: each message has one place. So do the events that wait to be folded, so a flood of one key leaves room for resolved
// events.
func Of(first string, entry room.Entry, size int, d time.Duration) store.Stay {
	stay := store.Stay{First: first, Member: entry.Origin.String() + " " + entry.Part, Weight: Weight(size), For: d}
	if entry.Reason == room.Body {
		stay.First, stay.Weight = first+shareOfBodies, 1+size/undecodedBytes
	}
	if entry.Fires {
		stay.First = first + shareOfFolds
	}
	switch {
	case entry.Reason == room.Update: // also of a report, since it takes the place of an earlier update of the message
		stay.First, stay.Member, stay.Weight = first+shareOfUpdates, "update "+MessageOf(entry.Receipt), 1 // the events of a message differ in size
	case entry.Steady > 0:
		stay.First, stay.Member = first+shareOfUpdates, "steady "+entry.ID+" "+entry.Origin.String()
	}
	return stay
}

// The separate shares of a first level. Each is counted like a first level of its own, with a name that no category has.
const (
	shareOfBodies  = " bodies"
	shareOfFolds   = " folds"
	shareOfUpdates = " updates"
)

func sharesOf(first string) []string {
	return []string{first, first + shareOfBodies, first + shareOfFolds, first + shareOfUpdates}
}

// MessageOf names the message of a receipt. A receipt that does not say where its message is stands for the message.
func MessageOf(receipt string) string { return room.Token(cmp.Or(sink.PostedAs(receipt), receipt)) }

// OfSlot returns the stay of an event that waits for a slot; see [room.Kept] for its size.
func OfSlot(identity, category string, entry room.Entry, size int, d time.Duration) store.Stay {
	request := store.Request{ID: identity, Derived: entry.Derived, Message: store.Message(entry.Origin), Category: category}
	return request.Stay(Weight(size), d)
}

// Waits are the events that wait in the room.
type Waits struct {
	Streams *stream.Client
	Room    Room
	Decoder event.Decoder
}

func (w Waits) store() *delayed.Store {
	return &delayed.Store{JetStream: w.Streams.JetStream, Room: w.Streams.Layout().Room.Stream, Decoder: w.Decoder}
}

// Advance makes the events due that wait for slots and that a function selects. It calls the function concurrently.
func (w Waits) Advance(ctx context.Context, wanted func(delayed.Event) bool) error {
	waits := w.store()
	events, err := waits.Planned(ctx, wanted)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(events, store.MaxBatch) {
		stays := make([]store.Stay, len(batch))
		for i, e := range batch {
			stays[i] = OfSlot(e.Identity, e.Category, e.Entry, e.Size, time.Millisecond)
		}
		if _, err := w.Room.EnterRoom(ctx, stays); err != nil { // later events in the queues would wait for the old times of these events
			return err
		}
		if _, err := waits.Advance(ctx, batch, room.Order{}); err != nil {
			return err
		}
	}
	return nil
}
