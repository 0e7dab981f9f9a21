package consume

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Bounds of the heavy bodies that wait in memory.
const (
	heavyBytes    = 16 << 10 // the size from which a body is heavy; a group of alerts always is
	bodiesOfFirst = 1 << 20  // bytes per first-level category
	mostBodies    = 4 << 20  // bytes of all heavy bodies
)

// mostParts is how many messages may wait in the room before another body is split: the room delivers them in the order of their arrival.
const mostParts = 2 * store.MaxBatch

// Times of bodies that wait in the room.
const (
	shortestBodyWait = 500 * time.Millisecond
	longestBodyWait  = 30 * time.Second      // the room may refuse bodies that were counted, and a cooldown may end early
	firstByteTime    = 200 * time.Nanosecond // assumed decoding time of a byte, until it is measured
)

// bodies decodes heavy bodies in a goroutine of its own, beside the goroutine that decides. The first-level categories take turns, so the
// heavy bodies of one category do not delay other categories.
//
// A body that exceeds the bounds goes to the room undecoded until about its turn, and so do later bodies of its first level.
type bodies struct {
	owners bodyOwners
	added  chan struct{} // has an element when a body was added

	mu     sync.Mutex
	closed bool
	queues map[string]*bodyQueue // by first level
	turns  []string              // the first levels with bodies, in the order of their turns
	bytes  int                   // of all bodies

	parts int // parts stored in the room since its consumer was last asked; only the decoding goroutine uses it
}

// bodyQueue holds the bodies of one first level, including the body that is being decoded.
type bodyQueue struct {
	waiting     []*received.Message
	bytes       int
	cooldownEnd time.Time     // until then only other first levels have turns, while producers' messages wait
	byteTime    time.Duration // estimated time per byte from one turn to the next
	back        time.Time     // when the last body that went to the room comes back
}

type bodyOwners struct {
	streams  *stream.Client
	inbox    *inbox
	reader   *received.Reader
	refusals *outcome.Refusals
	mover    *move.Mover
	settler  *outcome.Settler
	letters  *outcome.Letters
}

func newBodies(o bodyOwners) *bodies {
	return &bodies{owners: o, added: make(chan struct{}, 1), queues: make(map[string]*bodyQueue)}
}

// heavy reports whether bodies decodes a message. A body over the maximum size is not heavy: nobody decodes it. Nor is an event from a
// channel's queue: it keeps its order, and the limits have admitted it.
func (i *intake) heavy(m *received.Message, hints event.Hints) bool {
	size := len(m.Data)
	if m.Decoded != nil || m.From.Token != "" || i.reader.MaxBytes > 0 && size > i.reader.MaxBytes {
		return false
	}
	return size >= heavyBytes || hints.Group
}

// add queues a message or sends it to the room. If the room has just refused such a body, add drops it if it cannot have been admitted.
func (b *bodies) add(m *received.Message) {
	o, first := b.owners, b.owners.reader.FirstLevel(m, event.Event{})
	switch goes, wait := b.enqueue(first, m); goes {
	case toMemory:
		select {
		case b.added <- struct{}{}:
		default:
		}
	case toRoom:
		e := o.reader.Identify(m.Published())
		m.About.Category, m.About.ShownID = e.Category, e.ShownID()
		o.mover.Hold(received.Candidate{Message: m, Event: e}, move.Goal{Reason: room.Body, In: wait}, nil)
	case nowhere:
		m.About.Category = o.reader.QuickCategory(m.Published())
		o.settler.Settle(o.refusals.DropCrowded(m, room.Body))
	case back:
		o.settler.Nak(m, 0)
	}
}

// whereTo is where a heavy body waits.
type whereTo int

const (
	toMemory whereTo = iota
	toRoom
	nowhere // it is dropped
	back    // in its stream
)

// enqueue queues a message. If it may not wait in memory, it returns how long it is to wait in the room.
func (b *bodies) enqueue(first string, m *received.Message) (goes whereTo, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return back, 0
	}
	now, size := time.Now(), m.Size()
	q := b.of(first, now)
	most, behind := bodiesOfFirst, now.Before(q.back)
	if m.Entry.Reason == room.Body { // it has waited
		most, behind = 2*most, false
	}
	if behind || q.bytes > 0 && q.bytes+size > most || b.bytes > 0 && b.bytes+size > mostBodies {
		if b.owners.refusals.Crowded(room.Body, first) && !m.Redelivered(b.owners.reader.ForgottenUntil()) {
			return nowhere, 0
		}
		if turn := now.Add(max(shortestBodyWait, time.Duration(q.bytes)*q.byteTime)); q.back.Before(turn) {
			q.back = turn
		}
		if q.back = q.back.Add(time.Duration(size) * q.byteTime); q.back.Sub(now) > longestBodyWait {
			q.back = now.Add(longestBodyWait)
		}
		return toRoom, q.back.Sub(now)
	}
	if q.waiting = append(q.waiting, m); len(q.waiting) == 1 {
		b.turns = append(b.turns, first)
	}
	q.bytes += size
	b.bytes += size
	return toMemory, 0
}

// of returns the queue of a first level. The caller holds the lock.
func (b *bodies) of(first string, now time.Time) *bodyQueue {
	q := b.queues[first]
	if q == nil {
		maps.DeleteFunc(b.queues, func(_ string, q *bodyQueue) bool {
			return q.bytes == 0 && !now.Before(q.back) && !now.Before(q.cooldownEnd)
		})
		q = &bodyQueue{byteTime: firstByteTime}
		b.queues[first] = q
	}
	return q
}

// next waits for the next body to decode. It returns nil when the context ends.
func (b *bodies) next(ctx context.Context) (first string, m *received.Message) {
	for ctx.Err() == nil {
		first, m, wait := b.take(time.Now())
		if m != nil {
			return first, m
		}
		waiting, cancel := context.WithTimeout(ctx, wait)
		await.Ready(waiting, b.added)
		cancel()
	}
	return "", nil
}

// take removes the next body to decode from its queue. If there is none, take returns how long until there may be one.
func (b *bodies) take(now time.Time) (first string, m *received.Message, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait = time.Minute
	for i, first := range b.turns {
		q := b.queues[first]
		if left := q.cooldownEnd.Sub(now); left > 0 && b.owners.inbox.behind.Load() {
			wait = min(wait, left, lookBehind)
			continue
		}
		b.turns = slices.Delete(b.turns, i, i+1)
		m, q.waiting = q.waiting[0], q.waiting[1:]
		if len(q.waiting) > 0 {
			b.turns = append(b.turns, first)
		}
		return first, m, 0
	}
	return "", nil, wait
}

// While producers' messages wait to be delivered, they have priority: after each of its bodies a first level has a cooldown of coolTimes
// the body's cost. Cooldowns of up to forgiven are skipped, so a first level with few bodies has none.
const (
	coolTimes  = 15
	forgiven   = 2 * time.Second
	partCost   = 200 * time.Microsecond // of a part beyond its decoding: the room stores and delivers it, and Redis decides about it
	lookBehind = 100 * time.Millisecond // between two looks whether producers' messages still wait
)

// done records that a body had its turn. The time that it took includes waits, for which its first level need not be the cause.
func (b *bodies) done(first string, m *received.Message, took, cost time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[first]
	q.bytes -= m.Size()
	b.bytes -= m.Size()
	turn := time.Duration(len(b.turns)+1) * took
	if b.owners.inbox.behind.Load() {
		turn = max(turn, took+coolTimes*cost)
		now := time.Now()
		if earliest := now.Add(-forgiven); q.cooldownEnd.Before(earliest) {
			q.cooldownEnd = earliest
		}
		if q.cooldownEnd.After(now) { // this body did not wait for the cooldown, since no messages of producers waited
			q.cooldownEnd = now
		}
		q.cooldownEnd = q.cooldownEnd.Add(coolTimes * cost)
	}
	const weight = 8 // weight of the earlier measurements
	q.byteTime = ((weight-1)*q.byteTime + turn/time.Duration(m.Size())) / weight
}

// run decodes bodies until the context ends, and then returns the remaining bodies to their streams.
func (b *bodies) run(ctx context.Context) {
	for {
		first, m := b.next(ctx)
		if m == nil {
			break
		}
		began := time.Now()
		cost := b.decode(ctx, m)
		b.done(first, m, time.Since(began), cost)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, q := range b.queues {
		for _, m := range q.waiting {
			b.owners.settler.Nak(m, 0)
		}
	}
}

// decode splits a group of alerts. It passes any other event on for a decision. It returns what that cost.
func (b *bodies) decode(ctx context.Context, m *received.Message) (cost time.Duration) {
	o := b.owners
	if m.Lease.Left() < o.settler.Lease/2 {
		_ = o.settler.Extend(ctx, m) // on failure the lease has no time left
	}
	if m.Lease.Left() <= 0 { // JetStream delivers it again
		m.LeaveHand()
		return 0
	}
	began := time.Now()
	parts, bad := o.reader.Parts(m.Published())
	if parts == nil {
		m.Decoded = received.DecodedOf(o.reader.Decode(m.Published()))
		cost = time.Since(began)
		select {
		case o.inbox.messages <- m:
		case <-ctx.Done():
			o.settler.Nak(m, 0)
		}
		return cost
	}
	cost = time.Since(began) + time.Duration(len(parts))*partCost
	if !b.awaitTaken(ctx) {
		o.settler.Nak(m, 0)
		return cost
	}
	b.parts += len(parts)
	m.About.Category = o.reader.CategoryOfMessage(m)
	o.reader.ShownID(m)
	split := o.mover.NewSplit(m, parts)
	if bad != nil {
		split.Bury = func() {
			group, _ := o.reader.Decode(m.Published())
			o.letters.Add(outcome.Letter{Message: m, Event: group, Fault: bad})
		}
	}
	o.mover.Add(split)
	<-split.Ended
	return cost
}

// awaitTaken waits until workers have taken most of the messages of the room. It returns false if the context ends first.
func (b *bodies) awaitTaken(ctx context.Context) bool {
	const pause = 10 * time.Millisecond
	for b.parts >= mostParts {
		asking, cancel := context.WithTimeout(ctx, stream.APITimeout)
		info, err := b.owners.streams.Layout().Room.Consumer.Info(asking)
		cancel()
		if err == nil {
			b.parts = int(info.NumPending) //nolint:gosec // far below the end of an int
		}
		if b.parts >= mostParts && !await.For(ctx, pause) {
			return false
		}
	}
	return ctx.Err() == nil
}
