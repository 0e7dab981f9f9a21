package consume

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// mover stores moves in the room in the order of their arrival, and settles their messages.
type mover struct {
	worker *Worker
	ctx    context.Context // outlives the work context
	moves  chan *move
	ended  sync.WaitGroup
}

func newMover(w *Worker) *mover {
	return &mover{worker: w, ctx: context.Background(), moves: make(chan *move, store.MaxBatch)}
}

// start begins to store moves, until close.
func (m *mover) start() { m.ended.Go(m.run) }

// close waits until everything handed over is stored or returned to its stream.
func (m *mover) close() {
	close(m.moves)
	m.ended.Wait()
}

func (m *mover) run() {
	batch := make([]*move, 0, store.MaxBatch)
	for next := range m.moves {
		batch = append(batch[:0], next)
		for size := len(next.toStore); size < store.MaxBatch && len(m.moves) > 0; size += len(next.toStore) {
			next = <-m.moves
			batch = append(batch, next)
		}
		m.store(m.admit(batch))
	}
}

// admit asks the throttle which moves may stay in the room, and ends the rejected moves. A body's parts are admitted all together or not at
// all.
func (m *mover) admit(batch []*move) (admitted []*move) {
	w := m.worker
	refused := make(map[*move]bool)
	var asking []*move
	var stays []store.Stay
	for _, move := range batch {
		switch {
		case slices.ContainsFunc(move.toStore, w.exceedsRoom):
			refused[move] = true
		case !move.counted:
			asking = append(asking, move)
			stays = append(stays, move.stays...)
		}
	}
	if len(asking) > 0 {
		// While Redis is unavailable nothing is counted: few events move then, since few are decided about.
		if mayStay, err := w.throttle.EnterRoom(m.ctx, stays); err == nil {
			for _, move := range asking {
				if refused[move] = slices.Contains(mayStay[:len(move.stays)], false); refused[move] {
					w.refusedCache.Add(crowd(move.reason, move.first), refusal{until: time.Now().Add(refusedFor), crowded: true})
				}
				for i, stay := range move.stays {
					if refused[move] && mayStay[i] {
						w.leave(stay)
					}
				}
				mayStay = mayStay[len(move.stays):]
			}
		}
	}
	for _, move := range batch {
		switch {
		case move.left() <= 0: // JetStream redelivers the message
			move.span.Left(tracing.Lost)
			move.leaveHand()
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

// store ends the leases of the moves, so any worker can take the events from the room, and publishes the moves in order.
func (m *mover) store(batch []*move) {
	var releasing sync.WaitGroup
	for _, move := range batch {
		if move.grant != nil {
			releasing.Go(func() { move.grant.Release(m.ctx, move.inDoubt) })
		}
	}
	releasing.Wait()
	for _, move := range batch {
		move.publish(m.worker.streams.JetStream)
	}
	m.ended.Go(func() { m.settle(batch) })
}

// publish hands the messages of a move to the server.
func (m *move) publish(js jetstream.JetStream) {
	for _, message := range m.toStore {
		future, err := js.PublishMsgAsync(message)
		if err != nil {
			m.fault = err
			return
		}
		m.published = append(m.published, future)
	}
}

// confirmed waits for the server to confirm the messages of a move. It reports which messages the room held before.
func (m *move) confirmed(givenUp <-chan struct{}) (known []bool, err error) {
	for _, future := range m.published {
		select {
		case ack := <-future.Ok():
			known = append(known, ack.Duplicate)
		case err := <-future.Err():
			return nil, err
		case <-givenUp:
			return nil, nats.ErrTimeout
		}
	}
	return known, m.fault
}

// settle settles the messages of moves as the server confirms them.
func (m *mover) settle(batch []*move) {
	w := m.worker
	deadline, cancel := context.WithTimeout(m.ctx, stream.APITimeout)
	defer cancel()
	var (
		settled []settlement
		stored  []*move
	)
	for _, move := range batch {
		known, err := move.confirmed(deadline.Done())
		if !stream.IsTooLarge(err) {
			w.health.room.Note(err)
		}
		switch {
		case err == nil:
			stored = append(stored, move)
			w.moved(move, known)
			if move.bad != nil {
				m.ended.Go(func() {
					defer move.done()
					group, _ := move.decode(w.o.Decoder)
					w.deadLetter(m.ctx, move.message, group, move.bad)
				})
				continue
			}
			settled = append(settled, settlement{message: move.message, goesOn: true})
		case stream.IsTooLarge(err): // the room's maximum message size has shrunk
			w.leave(move.stays...)
			w.metrics.RoomRefused(string(move.reason), 1)
			move.refused()
		default:
			w.nak(move.message, jitter(misconfiguredBackoff))
		}
		move.done()
	}
	if len(settled) > 0 {
		failpoint.Reach(failpoint.AfterMove)
	}
	w.settle(settled...)
	for _, move := range stored {
		w.recordMove(move)
	}
}

// moved records a stored move. Known marks the messages that the room held before.
func (w *Worker) moved(m *move, known []bool) {
	for i, stay := range m.stays {
		if known[i] && !m.counted {
			w.leave(stay) // its event may have ended, so nothing else would end this stay
		}
	}
	if stay, waited := w.stayOfStored(m.message); waited && stay.First != m.stays[0].First {
		w.leave(stay) // the earlier stay counts for another first level
	}
	if m.reason == room.Part {
		failpoint.Reach(failpoint.AfterSplit)
		m.span.Ended(tracing.Split)
	} else {
		m.span.Ended(tracing.Waiting)
		m.span.WaitsFor(string(m.reason))
	}
	if m.stored != nil {
		m.stored()
	}
}
