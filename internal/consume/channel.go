package consume

import (
	"context"
	"sync"
	"time"
)

const (
	// horizon is how far ahead a delivery waits here for its channel. What has to wait longer is given back to JetStream.
	horizon = time.Minute
	// mostWaiting is how many deliveries wait here for one channel, and mostHeld for all together.
	mostWaiting = 64
	mostHeld    = 1024
)

// channels are the deliveries that wait for their destinations. Each destination has a queue of its own, so that one that
// rests or is slow delays no other; within a queue one delivery is tried at a time, in the order of their decisions.
//
// Where destinations are not paced there are no queues: deliveries do not wait here, nor for each other.
type channels struct {
	paced bool

	mu     sync.Mutex
	queues map[string]*queue
	held   int // in all queues
}

type queue struct {
	waiting int
	last    <-chan struct{} // closed when the latest delivery has been tried, or is gone
}

func newChannels(paced bool) *channels {
	return &channels{paced: paced, queues: make(map[string]*queue)}
}

// enter puts a delivery behind those that came before it for its destination. It does not if too many wait there.
func (c *channels) enter(d *delivery) bool {
	if !c.paced {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[d.destination]
	if c.held >= mostHeld || q != nil && q.waiting >= mostWaiting {
		return false
	}
	if q == nil {
		q = &queue{}
		c.queues[d.destination] = q
	}
	c.held++
	q.waiting++
	tried := make(chan struct{})
	d.before, q.last = q.last, tried
	d.leaveQueue = sync.OnceFunc(func() {
		close(tried)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.held--
		if q.waiting--; q.waiting == 0 {
			delete(c.queues, d.destination)
		}
	})
	return true
}

// awaitMoment waits until a delivery's destination takes it: for the deliveries before it, then for the moment that is reserved
// for it. If that is too far away ok is false, and wait is how far; likewise when the context ends, or the lease is lost.
func (w *Worker) awaitMoment(ctx context.Context, d *delivery) (wait time.Duration, ok bool) {
	w.metrics.Held(1)
	defer w.metrics.Held(-1)
	if d.before != nil {
		select {
		case <-d.before:
		case <-ctx.Done():
			return 0, false
		}
	}
	if d.isLost() {
		return 0, false
	}
	reach := horizon
	if !w.channels.paced {
		reach = 0
	}
	if wait, ok = w.throttle.AwaitMoment(ctx, d.destination, reach); !ok && ctx.Err() == nil {
		wait += w.keeper.spread(d.destination)
	}
	return wait, ok
}
