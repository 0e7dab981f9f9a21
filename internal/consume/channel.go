package consume

import (
	"context"
	"sync"
	"time"
)

const (
	// moment is how long a fresh event may wait in a worker's hands for a channel that rests. One that has to wait longer waits in
	// the room.
	moment = 5 * time.Second
	// maxWait is how far ahead a fresh event reserves its post, and queueMaxWait one that comes from its channel's queue: that has
	// waited for its turn already.
	maxWait      = 15 * time.Second
	queueMaxWait = 10 * time.Minute
)

// Bounds of the deliveries that wait in a worker's hands for one paced channel: what it takes in handTime.
const (
	handTime    = 8 * time.Second
	leastInHand = 8
	mostInHand  = 256
	postTime    = 250 * time.Millisecond // a post takes about that long; a channel that is faster has several posts at once
)

// stallTime is after what time without an end of any post a channel counts as stalled, if as many as leastInHand wait.
const stallTime = 2 * time.Second

// channels are the deliveries that wait for their channels in this worker's hands. Each channel has a queue of its own, so
// that one that rests or is slow delays no other; within a queue deliveries reserve their posts in the order of their decisions.
//
// What finds a queue full waits in the room, and so does what comes behind it: else it would overtake.
//
// Where channels are not paced, queues have no order, and no bound but for a channel that takes nothing any more.
type channels struct {
	paced    bool
	pace     time.Duration // between two posts to one channel
	capacity int           // deliveries in hand for one channel
	width    int           // posts for one channel at once

	mu     sync.Mutex
	queues map[string]*queue
}

// queue is what is known of one channel.
type queue struct {
	inHand  int
	ended   time.Time       // when a delivery left last, or came first
	lanes   chan struct{}   // has an element for each delivery that has its turn
	last    <-chan struct{} // closed when the latest delivery has reserved its post, or is gone
	begun   <-chan struct{} // closed when the latest delivery has begun its post, or is gone
	began   time.Time       // when a delivery last did
	backlog bool            // the room holds events for the channel, as far as is known
	storing int             // events that are on their way there
	calm    bool            // none was since the queue in the room was last asked
	rest    time.Time       // until when the channel takes nothing, as a delivery was told
	changed chan struct{}   // closed and replaced when a delivery leaves
}

func newChannels(pace time.Duration, concurrency int) *channels {
	c := &channels{paced: pace > 0, pace: pace, queues: make(map[string]*queue), width: concurrency}
	if c.paced {
		c.capacity = int(min(max(handTime/pace, leastInHand), mostInHand))
		c.width = int(min(max(postTime/pace, 1), time.Duration(concurrency)))
	}
	return c
}

// of returns the queue of a channel. The caller holds the lock.
func (c *channels) of(channel string) *queue {
	q := c.queues[channel]
	if q == nil {
		q = &queue{lanes: make(chan struct{}, c.width), changed: make(chan struct{})}
		c.queues[channel] = q
	}
	return q
}

// enter puts a delivery behind those that came before it for its channel. A fresh one does not enter if the queue is full or the
// room holds others for the channel.
func (c *channels) enter(d *delivery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of(d.destination)
	fresh := !d.fromQueue()
	if fresh && (q.backlog && c.paced || c.full(q)) {
		q.backlog = true
		return false
	}
	if q.inHand++; q.inHand == 1 {
		q.ended = time.Now()
	}
	d.lanes = q.lanes
	reserved := make(chan struct{})
	d.reserved = sync.OnceFunc(func() { close(reserved) })
	begun := make(chan struct{})
	d.begin = sync.OnceFunc(func() { close(begun) })
	if c.paced {
		d.before, q.last = q.last, reserved
		d.ahead, q.begun = q.begun, begun
	}
	d.leaveQueue = sync.OnceFunc(func() {
		d.reserved()
		d.begin()
		d.leaveLane()
		c.mu.Lock()
		defer c.mu.Unlock()
		q.inHand--
		q.ended = time.Now()
		close(q.changed)
		q.changed = make(chan struct{})
	})
	return true
}

// full tells whether a queue takes no more: it has what its channel takes soon or, where channels are not paced, the channel takes
// nothing.
func (c *channels) full(q *queue) bool {
	if c.paced {
		return q.inHand >= c.capacity
	}
	return q.inHand >= leastInHand && time.Since(q.ended) > stallTime
}

// awaitFree waits until a channel's queue has room, and tells how many deliveries may enter.
func (c *channels) awaitFree(ctx context.Context, channel string) (int, error) {
	for {
		c.mu.Lock()
		q := c.of(channel)
		free, changed := mostInHand-q.inHand, q.changed
		if c.paced {
			free = c.capacity - q.inHand
		}
		q.calm = q.storing == 0
		c.mu.Unlock()
		if free > 0 {
			return free, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// fetched notes how many events came from a channel's queue in the room, which was asked after awaitFree.
func (c *channels) fetched(channel string, received int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of(channel)
	q.backlog = received > 0 || !q.calm
}

// hold notes that an event for a channel goes to the room. The function that it returns notes that it is there.
func (c *channels) hold(channel string) (held func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of(channel)
	q.backlog, q.calm = true, false
	q.storing++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		q.storing--
	}
}

// rests notes that a channel takes nothing for a time.
func (c *channels) rests(channel string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(channel).rest = time.Now().Add(d)
}

// resting is how long a channel takes nothing, as far as deliveries were told.
func (c *channels) resting(channel string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, time.Until(c.of(channel).rest))
}

// busy tells whether events wait for a channel, in hand or in the room.
func (c *channels) busy(channel string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[channel]
	return q != nil && (q.inHand > 0 || q.backlog)
}

// Busy tells whether events wait for a channel, in this worker's hands or in the room.
func (w *Worker) Busy(channel string) bool {
	return w.running.Load() && (w.channels.busy(channel) || w.resting(channel) > 0)
}

// resting is how long a channel still takes nothing, as far as this worker knows.
func (w *Worker) resting(channel string) time.Duration {
	return max(w.pacer.Paused(channel), w.channels.resting(channel))
}

// awaitPost waits until a delivery's channel takes it: for its turn, then for the post that is reserved for it. If that is too
// far away ok is false, and wait is how far; if the context ends or the lease is lost, ok is false and wait is 0.
func (w *Worker) awaitPost(ctx context.Context, d *delivery) (wait time.Duration, ok bool) {
	w.metrics.Held(1)
	defer w.metrics.Held(-1)
	if !d.takeLane(ctx) || d.isLost() {
		return 0, false
	}
	for ctx.Err() == nil {
		reserved := w.pacer.Reserve(ctx, d.destination, w.maxWaitOf(d))
		wait, ok = reserved.Wait, reserved.OK
		if !ok { // the next one reserves when this one is on its way to where it waits: else it might get there first
			return wait, false
		}
		d.reserved()
		due := time.Now().Add(wait)
		if wait == 0 {
			return 0, w.channels.beginInTurn(ctx, d, due)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, false
		}
		if w.pacer.CheckPause(ctx, d.destination) == 0 { // another instance may have been told to wait since
			return 0, w.channels.beginInTurn(ctx, d, due)
		}
	}
	return 0, false
}

func (w *Worker) maxWaitOf(d *delivery) time.Duration {
	switch {
	case !w.channels.paced:
		return moment
	case d.fromQueue():
		return queueMaxWait
	default:
		return maxWait
	}
}

// takeLane waits for the delivery's turn. It tells whether it has it; then leaveLane is to be called.
func (d *delivery) takeLane(ctx context.Context) bool {
	if d.before != nil {
		select {
		case <-d.before:
		case <-ctx.Done():
			return false
		}
	}
	if d.hasLane {
		return true
	}
	select {
	case d.lanes <- struct{}{}:
		d.hasLane = true
		return true
	case <-ctx.Done():
		return false
	}
}

// late is by how much a post has to miss its moment to keep its distance from the one before again: what missed its moment together
// would go out at once, in any order.
const late = 100 * time.Millisecond

// beginInTurn waits, when the delivery's moment has come, until the one before has begun its post: that one may still be asking an
// unavailable Redis whether the channel rests. It is false if the context ends.
func (c *channels) beginInTurn(ctx context.Context, d *delivery, due time.Time) bool {
	if d.ahead != nil {
		select {
		case <-d.ahead:
		case <-ctx.Done():
			return false
		}
	}
	if time.Since(due) > late && c.paced {
		c.mu.Lock()
		apart := time.Until(c.of(d.destination).began.Add(c.pace))
		c.mu.Unlock()
		select {
		case <-time.After(apart):
		case <-ctx.Done():
			return false
		}
	}
	c.mu.Lock()
	c.of(d.destination).began = time.Now()
	c.mu.Unlock()
	d.begin()
	return true
}

// leaveLane lets the next delivery have its turn.
func (d *delivery) leaveLane() {
	if d.hasLane {
		d.hasLane = false
		<-d.lanes
	}
}
