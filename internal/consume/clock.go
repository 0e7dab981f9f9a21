package consume

import (
	"sync/atomic"
	"time"
)

// serverClock is the NATS server's clock as this worker knows it: this host's clock until the server was asked. Ages of messages count
// by it, since the server notes when it stored them.
type serverClock struct {
	ahead atomic.Int64 // by so many nanoseconds of this host's
}

// learn notes what the server's clock showed in an answer to a question.
func (c *serverClock) learn(asked, answered, shown time.Time) {
	if !shown.IsZero() {
		c.ahead.Store(int64(shown.Sub(asked.Add(answered.Sub(asked) / 2))))
	}
}

func (c *serverClock) now() time.Time { return c.at(time.Now()) }

// at is what the server's clock showed when this host's showed t; the zero time stays zero.
func (c *serverClock) at(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Round(0).Add(time.Duration(c.ahead.Load()))
}

func (c *serverClock) since(t time.Time) time.Duration { return c.now().Sub(t) }
