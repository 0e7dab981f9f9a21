package consume

import (
	"context"
	"sync"
	"time"
)

const (
	// memoryWait is how long a fresh event may wait in this process for a paused channel. If it has to wait longer, it waits in the room.
	memoryWait = 5 * time.Second
	// maxWait is how far ahead a fresh event reserves its post. queueMaxWait is the same for an event from its channel's queue, which
	// has waited for its turn already.
	maxWait      = 15 * time.Second
	queueMaxWait = 10 * time.Minute
)

// Bounds of the deliveries that wait in this process for one paced channel: what it takes in queueTime.
const (
	queueTime   = 8 * time.Second
	leastQueued = 8
	mostQueued  = 256
	queuedBytes = 1 << 20                // of their messages; in every queue
	postTime    = 250 * time.Millisecond // a post takes about that long; a channel that is faster has several posts at once
)

// A channel stalls when no post to it ends for stallTime, and leastQueued deliveries wait.
const stallTime = 2 * time.Second

// channels are the deliveries of this process that wait for their channels. Each channel has a queue of its own, so a slow channel delays no
// other. The deliveries of a queue reserve their posts in the order of their decisions.
//
// An event that finds its queue full waits in the room. So do the events behind it, or they would overtake.
//
// Where channels are not paced, a queue has no order, and no bound unless its channel stalls.
type channels struct {
	paced    bool
	pace     time.Duration // between two posts to one channel
	capacity int           // deliveries that wait for one channel
	width    int           // posts for one channel at once

	mu     sync.Mutex
	queues map[string]*queue
}

// queue is what is known of one channel.
type queue struct {
	queued      int
	bytes       int           // of the messages of these deliveries
	ended       time.Time     // when a delivery left last, or came first
	lanes       chan struct{} // has an element for each delivery that has its turn
	reserving   line          // of deliveries, each of which is done when it has reserved its post, or is gone
	posting     line          // likewise, when it has begun its post
	began       time.Time     // when a delivery last did
	backlog     bool          // the room holds events for the channel, as far as is known
	storing     int           // events that are on their way there
	calm        bool          // none was since the queue in the room was last asked
	pausedUntil time.Time     // as a delivery was told
	changed     chan struct{} // closed and replaced when a delivery leaves
}

// line is for those that do something one after the other.
type line struct{ last <-chan struct{} }

// turn is a position in a line.
type turn struct {
	before <-chan struct{} // closed when the one before is done; nil: there is none
	done   func()          // lets the next one go on; may be called again
}

// join takes the position at the end.
func (l *line) join() turn {
	end := make(chan struct{})
	mine := turn{before: l.last, done: sync.OnceFunc(func() { close(end) })}
	l.last = end
	return mine
}

func newChannels(pace time.Duration, concurrency int) *channels {
	c := &channels{paced: pace > 0, pace: pace, queues: make(map[string]*queue), width: concurrency}
	if c.paced {
		c.capacity = int(min(max(queueTime/pace, leastQueued), mostQueued))
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

// enter puts a delivery at the end of its channel's queue. A fresh one does not enter if the queue is full or the room holds others
// for the channel.
func (c *channels) enter(d *delivery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of(d.destination)
	fresh := !d.fromQueue()
	if fresh && (q.backlog && c.paced || c.full(q)) {
		q.backlog = true
		return false
	}
	q.bytes += d.size
	if q.queued++; q.queued == 1 {
		q.ended = time.Now()
	}
	d.lanes, d.reserving, d.posting = q.lanes, q.reserving.join(), q.posting.join()
	if !c.paced {
		d.reserving.before, d.posting.before = nil, nil
	}
	d.leaveQueue = sync.OnceFunc(func() {
		d.reserving.done()
		d.posting.done()
		d.leaveLane()
		c.mu.Lock()
		defer c.mu.Unlock()
		q.queued--
		q.bytes -= d.size
		q.ended = time.Now()
		close(q.changed)
		q.changed = make(chan struct{})
	})
	return true
}

// full tells whether a queue takes no more. A paced queue holds what its channel takes soon; another one is full only while its
// channel stalls.
func (c *channels) full(q *queue) bool {
	if q.bytes >= queuedBytes {
		return true
	}
	if c.paced {
		return q.queued >= c.capacity
	}
	return q.queued >= leastQueued && time.Since(q.ended) > stallTime
}

// awaitFree waits until a channel's queue has room, and tells how many deliveries may enter.
func (c *channels) awaitFree(ctx context.Context, channel string) (int, error) {
	for {
		c.mu.Lock()
		q := c.of(channel)
		free, changed := mostQueued-q.queued, q.changed
		if c.paced {
			free = c.capacity - q.queued
		}
		q.calm = q.storing == 0
		c.mu.Unlock()
		if free > 0 {
			return free, nil
		}
		if !arrives(ctx, changed) {
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

// hold notes that an event for a channel is on its way to the room. Calling held notes its arrival.
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

// pause notes that a channel takes nothing for a time.
func (c *channels) pause(channel string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(channel).pausedUntil = time.Now().Add(d)
}

// paused is how long a channel takes nothing, as far as deliveries were told.
func (c *channels) paused(channel string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, time.Until(c.of(channel).pausedUntil))
}

// busy tells whether events wait for a channel, in this process or in the room.
func (c *channels) busy(channel string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[channel]
	return q != nil && (q.queued > 0 || q.backlog)
}

// Busy tells whether events wait for a channel, in this worker or in the room.
func (w *Worker) Busy(channel string) bool {
	return w.running.Load() && (w.channels.busy(channel) || w.paused(channel) > 0)
}

// paused is how long a channel still takes nothing, as far as this worker knows.
func (w *Worker) paused(channel string) time.Duration {
	return max(w.pacer.Paused(channel), w.channels.paused(channel))
}

// awaitPost waits for the delivery's lane, then for its reserved post. If the post is too far away, ok is false and wait is how far.
// If the context ends or the lease is lost, ok is false and wait is 0.
func (w *Worker) awaitPost(ctx context.Context, d *delivery) (wait time.Duration, ok bool) {
	w.metrics.Held(1)
	defer w.metrics.Held(-1)
	if !d.takeLane(ctx) || d.lost.Load() {
		return 0, false
	}
	for ctx.Err() == nil {
		reserved := w.pacer.Reserve(ctx, d.destination, w.maxWaitOf(d))
		wait, ok = reserved.Wait, reserved.OK
		if !ok { // the next one reserves when this one is on its way to where it waits: else it might get there first
			return wait, false
		}
		d.reserving.done()
		due := time.Now().Add(wait)
		if wait == 0 {
			return 0, w.channels.beginInTurn(ctx, d, due)
		}
		if !arrives(ctx, time.After(wait)) {
			return 0, false
		}
		if w.pacer.CheckPause(ctx, d.destination) == 0 && ctx.Err() == nil { // another instance may have been told to wait since
			return 0, w.channels.beginInTurn(ctx, d, due)
		}
	}
	return 0, false
}

func (w *Worker) maxWaitOf(d *delivery) time.Duration {
	switch {
	case !w.channels.paced:
		return memoryWait
	case d.fromQueue():
		return queueMaxWait
	default:
		return maxWait
	}
}

// takeLane waits until the delivery is one of those that may post at once. If so, leaveLane has to be called.
func (d *delivery) takeLane(ctx context.Context) bool {
	if !arrives(ctx, d.reserving.before) {
		return false
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

// late is by how much a post has to miss its reserved time to keep its distance from the post before again. Posts that all missed
// their times would go out at once, in any order.
const late = 100 * time.Millisecond

// beginInTurn waits until the delivery before has begun its post: that one may still ask an unavailable Redis whether the channel
// is paused. It is false if the context ends.
func (c *channels) beginInTurn(ctx context.Context, d *delivery, due time.Time) bool {
	if !arrives(ctx, d.posting.before) {
		return false
	}
	if time.Since(due) > late && c.paced {
		c.mu.Lock()
		apart := time.Until(c.of(d.destination).began.Add(c.pace))
		c.mu.Unlock()
		if !arrives(ctx, time.After(apart)) {
			return false
		}
	}
	c.mu.Lock()
	c.of(d.destination).began = time.Now()
	c.mu.Unlock()
	d.posting.done()
	return true
}

// leaveLane lets the next delivery post.
func (d *delivery) leaveLane() {
	if d.hasLane {
		d.hasLane = false
		<-d.lanes
	}
}
