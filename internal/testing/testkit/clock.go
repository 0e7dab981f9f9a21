package testkit

import (
	"sync"
	"time"
)

// Start is the time of each new clock.
var Start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Clock stands still until a test moves it.
type Clock struct {
	mu    sync.Mutex
	now   time.Time
	moved func(now time.Time)
}

// NewClock makes a clock that calls moved, which may be nil, with each new time.
func NewClock(moved func(now time.Time)) *Clock {
	c := &Clock{moved: moved}
	c.Set(Start)
	return c
}

// Read returns the time of the clock.
func (c *Clock) Read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set moves the clock to a time.
func (c *Clock) Set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	if c.moved != nil {
		c.moved(now)
	}
}

// Advance moves the clock on.
func (c *Clock) Advance(d time.Duration) { c.Set(c.Read().Add(d)) }
