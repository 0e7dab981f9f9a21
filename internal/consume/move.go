package consume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// move is an event that goes on in the room, with its slots and its identity.
type move struct {
	candidate
	reason  room.Reason
	channel string         // Channel: the destination
	in      time.Duration  // Slot, Pair, Redis: after which it comes back
	behind  uint64         // Pair: see room.Entry
	grant   throttle.Grant // of an admitted event, else nil
	inDoubt bool           // an attempt may have delivered it
	counted bool           // it may stay: that is known already
	refused func()         // called if it may not stay; it then settles the message
	toStore *nats.Msg      // as it is stored in the room
	done    func()         // called in the end
}

// stayIn is how long an event counts as one that waits in the room, unless it comes back at a known time: longer than a channel
// is likely to rest. Its end is noted when it comes.
const stayIn = 24 * time.Hour

// comesBackWithin is how much longer than planned an event that comes back counts.
const comesBackWithin = 5 * time.Minute

// weightBytes is the size of body for which an event takes one more place in the room.
const weightBytes = 16 << 10

func (n Names) room() room.Subjects { return room.Under(n.Subject) }

// stayOf is a message's stay in the room, the same wherever it moves there.
func stayOf(first string, entry room.Entry, size int, d time.Duration) throttle.Stay {
	return throttle.Stay{First: first, Member: entry.Origin.String() + " " + entry.Part, Weight: 1 + size/weightBytes, For: d}
}

func (m *move) stay() throttle.Stay {
	d := stayIn
	if m.channel == "" {
		d = m.in + comesBackWithin
	}
	return stayOf(event.FirstLevel(m.event.Category), m.entryFor(m.event, m.reason), len(m.Data()), d)
}

// mover stores events in the room, in the order in which they are handed to it, and settles the messages that they came in.
// A message of the room is named after the one that it came in, so a redelivery of that is not stored twice.
type mover struct {
	worker *Worker
	work   context.Context
	moves  chan *move
	ended  sync.WaitGroup
}

func newMover(work context.Context, w *Worker) *mover {
	m := &mover{worker: w, work: work, moves: make(chan *move, throttle.MaxBatch)}
	m.ended.Go(m.run)
	return m
}

// close waits until everything handed over is stored or given back.
func (m *mover) close() {
	close(m.moves)
	m.ended.Wait()
}

func (m *mover) run() {
	batch := make([]*move, 0, throttle.MaxBatch)
	for next := range m.moves {
		batch = append(batch[:0], next)
		for len(batch) < throttle.MaxBatch && len(m.moves) > 0 {
			batch = append(batch, <-m.moves)
		}
		m.store(m.admit(batch))
	}
}

// admit asks which events may stay in the room, and ends those that may not.
func (m *mover) admit(batch []*move) []*move {
	w := m.worker
	ctx := context.WithoutCancel(m.work)
	var asking []*move
	var stays []throttle.Stay
	refused := make(map[*move]bool)
	for _, move := range batch {
		move.toStore = w.messageOf(move)
		switch {
		case w.exceedsRoom(move.toStore):
			refused[move] = true
		case !move.counted:
			asking = append(asking, move)
			stays = append(stays, move.stay())
		}
	}
	if len(asking) > 0 {
		// While Redis is unavailable nothing is counted: few events move then, since few are decided about.
		if mayStay, err := w.throttle.EnterRoom(ctx, stays); err == nil {
			for i, may := range mayStay {
				refused[asking[i]] = !may
			}
		}
	}
	var admitted []*move
	for _, move := range batch {
		switch {
		case move.left() <= 0: // JetStream delivers it again
			move.done()
		case refused[move]:
			w.metrics.RoomRefused(string(move.reason), 1)
			m.ended.Go(func() {
				defer move.done()
				move.refused()
			})
		default:
			admitted = append(admitted, move)
		}
	}
	return admitted
}

// store ends the leases of events that are admitted, for whoever takes them from the room, and publishes all in their order.
func (m *mover) store(batch []*move) {
	w := m.worker
	ctx := context.WithoutCancel(m.work)
	var releasing sync.WaitGroup
	for _, move := range batch {
		if move.grant != nil {
			releasing.Go(func() { move.grant.Release(ctx, move.inDoubt) })
		}
	}
	releasing.Wait()
	stored := make([]jetstream.PubAckFuture, len(batch))
	faults := make([]error, len(batch))
	for i, move := range batch {
		stored[i], faults[i] = w.js.PublishMsgAsync(move.toStore)
	}
	m.ended.Go(func() {
		var settled []settlement
		deadline, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		for i, move := range batch {
			known, err := false, faults[i]
			if err == nil {
				known, err = await(stored[i], deadline.Done())
			}
			switch {
			case err == nil:
				w.moved(move)
				if known && !move.counted {
					w.leave(move.stay()) // its event may have ended, and would not leave once more
				}
				if stay, waited := w.stayOfStored(move.message); waited && stay.First != move.stay().First {
					w.leave(stay) // its category was not known there
				}
				settled = append(settled, settlement{message: move.message, goesOn: true})
			case tooMuch(err): // the room takes less than it did a moment ago
				w.leave(move.stay())
				w.metrics.RoomRefused(string(move.reason), 1)
				move.refused()
			default:
				w.giveBack(move.message, jitter(misconfiguredBackoff))
			}
			if !tooMuch(err) {
				w.trouble.roomStored(err)
			}
		}
		if len(settled) > 0 {
			failpoint.Reach(failpoint.AfterMove)
		}
		w.settle(settled...)
		for _, move := range batch {
			move.done()
		}
	})
}

// await waits for the server's word on a message, until it is given up. It tells whether the message was stored before.
func await(stored jetstream.PubAckFuture, givenUp <-chan struct{}) (known bool, err error) {
	select {
	case ack := <-stored.Ok():
		return ack.Duplicate, nil
	case err := <-stored.Err():
		return false, err
	case <-givenUp:
		return false, nats.ErrTimeout
	}
}

// moved takes note of an event that is stored in the room.
func (w *Worker) moved(m *move) {
	switch m.reason {
	case room.Channel:
		w.serve(source{inRoom: true, channel: m.channel})
	case room.Slot:
		w.metrics.Delayed()
	case room.Pair, room.Redis, room.Part, room.Replay:
	}
}

// nameOf is the name under which what comes of a message is stored.
func nameOf(m *message) string {
	return fmt.Sprintf("room-%s-%d-%d", m.stream, m.sequence, m.stored.UnixMilli())
}

// messageOf is an event as it is stored in the room.
func (w *Worker) messageOf(m *move) *nats.Msg {
	subjects, first := w.names.room(), event.FirstLevel(m.event.Category)
	entry := m.entryFor(m.event, m.reason)
	entry.Behind = m.behind
	subject, target := subjects.Channel(room.Token(m.channel), first), ""
	if m.reason != room.Channel {
		subject, target = subjects.Schedule(m.reason, first, nameOf(m.message))
	}
	message := entry.Message(subject, m.Headers(), m.Data())
	message.Header.Set(nats.MsgIdHdr, nameOf(m.message))
	if target != "" {
		room.ScheduleAt(message, target, w.clock.now().Add(m.in))
	}
	return message
}

// exceedsRoom tells whether a message with the headers that it needs is larger than the room takes.
func (w *Worker) exceedsRoom(message *nats.Msg) bool {
	size := int64(message.Size() - len(message.Subject))
	most := int64(w.place.Load().room.stream.CachedInfo().Config.MaxMsgSize)
	return size > w.conn.MaxPayload() || most > 0 && size > most
}

// hold lets an admitted event wait for its channel in the room. If it may not, its slot is returned.
func (w *Worker) hold(work context.Context, d *delivery) {
	done := make(chan struct{})
	w.mover.moves <- w.holding(work, d, func() { close(done) })
	d.reserved() // who comes next may follow it to the room
	d.begin()
	<-done
}

// holding is the move of an admitted event into its channel's queue.
func (w *Worker) holding(work context.Context, d *delivery, done func()) *move {
	held := w.channels.hold(d.destination)
	return &move{
		candidate: d.candidate, reason: room.Channel, channel: d.destination, grant: d.grant, inDoubt: d.uncertain,
		done: func() { held(); done() },
		refused: func() {
			w.endUndelivered(work, d)
			w.settle(w.dropped(d.message, throttle.LevelRoom))
		},
	}
}

// wait lets an event wait in the room for a reason, and calls done in the end. If it may not, it is dropped.
func (w *Worker) wait(c candidate, reason room.Reason, in time.Duration, behind uint64, done func()) {
	w.mover.moves <- &move{
		candidate: c, reason: reason, in: in, behind: behind, done: done,
		refused: func() { w.settle(w.dropped(c.message, throttle.LevelRoom)) },
	}
}
