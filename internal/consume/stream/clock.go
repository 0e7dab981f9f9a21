package stream

import (
	"sync/atomic"
	"time"
)

// Clock estimates the NATS server's clock. Before the first answer of the server it shows this host's clock. The ages of messages count by
// the server's clock, because the server records when it stored a message. A step of this host's clock after an answer moves no estimate of a
// time that has a monotonic reading, as the times of time.Now have.
type Clock struct {
	learned atomic.Pointer[reading] // nil: nothing yet
}

type reading struct {
	host   time.Time // with its monotonic reading
	server time.Time
	doubt  time.Duration // the largest error of server
}

// Learn records the time in an answer of the server. The server read its clock at some moment between the request and the answer. A quick
// answer stays in use until a quicker or a contradicting answer arrives: on a busy machine, a slow answer would move the clock by up to
// half its round-trip time. Of answers that arrive at the same time, one is recorded.
func (c *Clock) Learn(asked, answered, shown time.Time) {
	if shown.IsZero() {
		return
	}
	doubt := answered.Sub(asked) / 2
	latest := &reading{host: asked.Add(doubt), server: shown.Round(0), doubt: doubt}
	last := c.learned.Load()
	expected, lastDoubt := last.at(latest.host)
	if last != nil && latest.server.Sub(expected).Abs() <= doubt && lastDoubt <= doubt {
		return
	}
	c.learned.CompareAndSwap(last, latest)
}

// Now returns the present time by the server's clock.
func (c *Clock) Now() time.Time { return c.At(time.Now()) }

// Latest returns the latest time that the server's clock may show now.
func (c *Clock) Latest() time.Time {
	shown, doubt := c.learned.Load().at(time.Now())
	return shown.Add(doubt)
}

// Earliest returns the earliest time that the server's clock may have shown when this host's clock showed t.
func (c *Clock) Earliest(t time.Time) time.Time {
	shown, doubt := c.learned.Load().at(t)
	return shown.Add(-doubt)
}

// At returns what the server's clock showed when this host's clock showed t. The zero time stays zero.
func (c *Clock) At(t time.Time) time.Time {
	shown, _ := c.learned.Load().at(t)
	return shown
}

// Since returns the time that has passed since t, a time of the server's clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// at returns what the server's clock showed at t, and the largest error of it.
func (r *reading) at(t time.Time) (shown time.Time, doubt time.Duration) {
	if r == nil || t.IsZero() {
		return t.Round(0), 0
	}
	return r.server.Add(t.Sub(r.host)), r.doubt
}
