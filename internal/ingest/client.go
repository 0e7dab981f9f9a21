package ingest

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// client is the sender of requests: one name of the token file.
type client struct {
	name     string
	limiter  *rate.Limiter // nil: no limit
	held     atomic.Int64  // of the memory for bodies
	mostHeld int64
}

// newClient returns a client with its own rate; a limit of 0 means no limit.
func newClient(name string, limit rate.Limit, burst int) *client {
	c := &client{name: name, mostHeld: maxHeldByToken}
	if limit > 0 {
		c.limiter = rate.NewLimiter(limit, burst)
	}
	return c
}

// spend takes one event from the rate of a client and returns 0. If no event is left, it returns the time until the next.
func (c *client) spend() time.Duration {
	if c.limiter == nil {
		return 0
	}
	now := time.Now()
	reservation := c.limiter.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}

// owe takes events from the rate of a client, even more than are left.
func (c *client) owe(events int) {
	if c.limiter == nil {
		return
	}
	asked, most := time.Now(), c.limiter.Burst()
	for ; events > 0; events -= most {
		c.limiter.ReserveN(asked, min(events, most))
	}
}
