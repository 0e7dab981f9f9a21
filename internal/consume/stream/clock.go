package stream

import (
	"sync"
	"sync/atomic"
	"time"
)

// Clock estimates the NATS server's clock. Before the first answer of the server it shows this host's clock. The ages of messages count by
// the server's clock, because the server records when it stored a message.
type Clock struct {
	ahead atomic.Int64 // nanoseconds by which the server's clock is ahead of this host's clock

	mu    sync.Mutex
	known bool
	doubt time.Duration // the largest error of ahead
}

// Learn records the time in an answer of the server. The server read its clock at some moment between the request and the answer. A quick
// answer stays in use until a quicker or a contradicting answer arrives: on a busy machine, a slow answer would move the clock by up to
// half its round-trip time.
func (c *Clock) Learn(asked, answered, shown time.Time) {
	if shown.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ahead, doubt := shown.Sub(asked.Add(answered.Sub(asked)/2)), answered.Sub(asked)/2
	agrees := (ahead - time.Duration(c.ahead.Load())).Abs() <= doubt
	if c.known && agrees && c.doubt <= doubt {
		return
	}
	c.ahead.Store(int64(ahead))
	c.known, c.doubt = true, doubt
}

// Now returns the present time by the server's clock.
func (c *Clock) Now() time.Time { return c.At(time.Now()) }

// Latest returns the latest time that the server's clock may show now.
func (c *Clock) Latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Now().Add(c.doubt)
}

// Earliest returns the earliest time that the server's clock may have shown when this host's clock showed t.
func (c *Clock) Earliest(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.At(t).Add(-c.doubt)
}

// At returns what the server's clock showed when this host's clock showed t. The zero time stays zero.
func (c *Clock) At(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Round(0).Add(time.Duration(c.ahead.Load()))
}

// Since returns the time that has passed since t, a time of the server's clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
