package consume

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// split stores the events of a body that holds several in the room, each in a message of its own, and then settles the body's
// message. Each has a name from which JetStream knows a second copy, and the identity of a part, which no producer can claim. What
// is wrong with the others ends as one dead letter. If too many events of a category wait in the room, all are dropped.
func (w *Worker) split(ctx context.Context, m *message, parts []event.Part, bad *event.Fault) {
	stays := make([]throttle.Stay, len(parts))
	messages := make([]*nats.Msg, len(parts))
	fits := true
	for i, part := range parts {
		entry, first := w.entryOf(m, part), w.firstLevelOf(part.Subject)
		stays[i] = stayOf(first, entry, len(part.Data), stayIn)
		messages[i] = entry.Message(w.names.room().Queue(room.Part, first), nil, part.Data)
		messages[i].Header.Set(nats.MsgIdHdr, fmt.Sprintf("%s-%d", nameOf(m), i))
		fits = fits && !w.exceedsRoom(messages[i])
	}
	if !fits || !w.mayStay(ctx, stays) {
		w.metrics.RoomRefused(string(room.Part), 1)
		w.settle(w.dropped(m, throttle.LevelRoom))
		return
	}
	known, err := w.storeParts(ctx, messages)
	w.trouble.roomStored(err)
	if err != nil {
		w.giveBack(m, jitter(misconfiguredBackoff))
		return
	}
	for i, stay := range stays {
		if known[i] {
			w.leave(stay) // its event may have ended, and would not leave once more
		}
	}
	failpoint.Reach(failpoint.AfterSplit)
	w.metrics.Split()
	if bad != nil {
		w.bury(ctx, m, bad, func() {})
		return
	}
	w.settle(settlement{message: m, goesOn: true})
}

// entryOf is the entry of a part of a message's body.
func (w *Worker) entryOf(m *message, part event.Part) room.Entry {
	entry := m.entry
	entry.Reason, entry.Subject = room.Part, part.Subject
	entry.ID, entry.Derived, entry.Part = part.ID, part.Derived, part.Name
	return entry
}

// firstLevelOf is that of the category that a subject names.
func (w *Worker) firstLevelOf(subject string) string {
	category, _, _ := w.o.Decoder.CategoryOf(subject)
	return event.FirstLevel(category)
}

// mayStay enters all stays, or none.
func (w *Worker) mayStay(ctx context.Context, stays []throttle.Stay) bool {
	mayStay, err := w.throttle.EnterRoom(ctx, stays)
	if err != nil {
		return true // see mover.admit
	}
	var entered []throttle.Stay
	for i, may := range mayStay {
		if may {
			entered = append(entered, stays[i])
		}
	}
	if len(entered) == len(stays) {
		return true
	}
	_ = w.throttle.LeaveRoom(ctx, entered) // else they end by themselves
	return false
}

// storeParts stores messages and tells for each whether it was stored before.
func (w *Worker) storeParts(ctx context.Context, messages []*nats.Msg) (known []bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stored := make([]jetstream.PubAckFuture, len(messages))
	for i, message := range messages {
		if stored[i], err = w.js.PublishMsgAsync(message); err != nil {
			return nil, fmt.Errorf("storing event %d of %d: %w", i+1, len(messages), err)
		}
	}
	known = make([]bool, len(messages))
	for i, future := range stored {
		if known[i], err = await(future, ctx.Done()); err != nil {
			return nil, fmt.Errorf("storing event %d of %d: %w", i+1, len(messages), err)
		}
	}
	return known, nil
}
