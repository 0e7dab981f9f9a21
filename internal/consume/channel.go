package consume

import (
	"context"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/pacing"
)

const (
	// memoryWait is how long a fresh event may wait in this process for a paused channel. If it has to wait longer, it waits in the room.
	memoryWait = 5 * time.Second
	// maxWait is how far ahead a fresh event reserves its post. Moving an event from its channel's queue in memory to the room would put it
	// behind later events that went there directly, so the event moves only if the pause is very long. queueMaxWait is the limit for an
	// event from its channel's queue in the room.
	maxWait      = 5 * time.Minute
	queueMaxWait = 10 * time.Minute
)

// Bounds of the deliveries that wait in this process for one paced channel: what it takes in queueTime.
const (
	queueTime   = 8 * time.Second
	leastQueued = 8
	mostQueued  = 256
	queuedBytes = 1 << 20                // bytes of the messages of a queue, paced or not
	postTime    = 250 * time.Millisecond // typical duration of a post; a channel with a shorter pace has several posts at once
)

// A channel stalls when no post to it ends for stallTime, and leastQueued deliveries wait.
const stallTime = 2 * time.Second

// channels holds this process's deliveries that wait for their channels. Each channel has its own queue, so a slow channel does not delay
// the others. The deliveries of a queue reserve their posts in the order of their decisions.
//
// If a queue is full, an event waits in the room. Later events for that channel go to the room too, to keep the order.
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

// queue is the state of one channel.
type queue struct {
	queued      int
	bytes       int           // bytes of the messages of these deliveries
	ended       time.Time     // when a delivery last left, or entered the empty queue
	lanes       chan struct{} // has an element for each delivery that has its turn
	reserving   line          // order in which deliveries reserve their posts; a turn ends when its delivery has reserved its post or left
	posting     line          // order in which deliveries begin their posts; a turn ends when its delivery has begun its post or left
	began       time.Time     // when the latest post began
	backlog     bool          // the room may hold events for the channel
	storing     int           // events on their way to the room
	calm        bool          // no event was on its way to the room since the queue there was last read
	pausedUntil time.Time     // end of the pause that a delivery last noted
	changed     chan struct{} // closed and replaced when a delivery leaves
}

// line gives its members turns, one after the other.
type line struct{ last <-chan struct{} }

// turn is a position in a line.
type turn struct {
	before <-chan struct{} // closed when the previous turn ends; nil: there is no previous turn
	done   func()          // ends this turn and starts the next; may be called again
}

// join takes a position at the end of the line.
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

// enter puts a delivery at the end of its channel's queue. A fresh event does not enter if the queue is full. If channels are paced, it
// also stays out while the room holds events for its channel.
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

// full reports whether a queue takes no more deliveries. A paced queue holds what its channel takes soon. An unpaced queue counts as full
// only while its channel stalls, or if it holds too many bytes.
func (c *channels) full(q *queue) bool {
	if q.bytes >= queuedBytes {
		return true
	}
	if c.paced {
		return q.queued >= c.capacity
	}
	return q.queued >= leastQueued && time.Since(q.ended) > stallTime
}

// awaitFree waits until a channel's queue has room, and returns how many deliveries may enter.
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

// fetched records how many events a request to a channel's queue in the room returned. The caller called awaitFree before the request.
func (c *channels) fetched(channel string, received int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of(channel)
	q.backlog = received > 0 || !q.calm
}

// hold records that an event for a channel is on its way to the room. Calling held records that the move has ended.
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

// pause records that a channel takes no messages for a time.
func (c *channels) pause(channel string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(channel).pausedUntil = time.Now().Add(d)
}

// paused returns the rest of the latest pause that pause recorded.
func (c *channels) paused(channel string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, time.Until(c.of(channel).pausedUntil))
}

// busy reports whether events wait for a channel, in this process or in the room.
func (c *channels) busy(channel string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[channel]
	return q != nil && (q.queued > 0 || q.backlog)
}

// Busy reports whether events wait for a channel, in this worker or in the room.
func (w *Worker) Busy(channel string) bool {
	return w.channels.busy(channel) || w.paused(channel) > 0
}

// paused returns how long a channel is still paused. It uses only what this worker knows.
func (w *Worker) paused(channel string) time.Duration {
	return max(w.pacer.Paused(channel), w.channels.paused(channel))
}

// awaitPost waits for the delivery's lane, then for its reserved post. If the post is too far away, ok is false and wait is the time until
// the post. If the context ends or the lease is lost, ok is false and wait is 0.
func (w *Worker) awaitPost(ctx context.Context, d *delivery) (wait time.Duration, ok bool) {
	w.metrics.Held(1)
	defer w.metrics.Held(-1)
	if !d.takeLane(ctx) || d.lost.Load() {
		return 0, false
	}
	for ctx.Err() == nil {
		wait, ok = w.reserve(ctx, d)
		if !ok { // the delivery keeps its turn until it is on its way to the room, or the next delivery might get there first
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
		if w.pacer.CheckPause(ctx, d.destination) == 0 && ctx.Err() == nil { // the destination may have paused another instance since
			return 0, w.channels.beginInTurn(ctx, d, due)
		}
	}
	return 0, false
}

// reserve reserves the delivery's post. After a refusal, reserve refuses the deliveries behind it for pollTime: the pause keeps shrinking,
// so they might be accepted and overtake.
func (w *Worker) reserve(ctx context.Context, d *delivery) (wait time.Duration, ok bool) {
	if paused := w.channels.paused(d.destination); paused > memoryWait {
		return paused, false
	}
	ask := pacing.Ask{Channel: d.destination, Urgency: pacing.Ordinary, Since: d.entry.Since, MaxWait: w.maxWaitOf(d)}
	for {
		reserved := w.pacer.Reserve(ctx, ask)
		switch {
		case reserved.OK || ctx.Err() != nil:
			return reserved.Wait, reserved.OK
		case reserved.Expected > ask.MaxWait:
			w.channels.pause(d.destination, min(reserved.Wait, memoryWait+pollTime))
			return reserved.Wait, false
		case !arrives(ctx, time.After(reserved.Wait)):
			return 0, false
		}
	}
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

// takeLane waits until the delivery may post, beside the posts that its channel takes at once. If it returns true, leaveLane has to be
// called.
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

// A post that is later than late behind its reserved time is spaced from the previous post again. Otherwise posts that all missed their
// times would go out at once, in any order.
const late = 100 * time.Millisecond

// beginInTurn waits until the previous delivery has begun its post: that delivery may still ask an unavailable Redis whether the channel is
// paused. beginInTurn returns false if the context ends.
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
