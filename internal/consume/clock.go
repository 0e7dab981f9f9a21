package consume

import (
	"sync"
	"sync/atomic"
	"time"
)

// serverClock is the NATS server's clock as this worker knows it: this host's clock until the server was asked. Ages of messages count
// by it, since the server notes when it stored them.
type serverClock struct {
	ahead atomic.Int64 // by so many nanoseconds of this host's

	mu    sync.Mutex
	known bool
	doubt time.Duration // by how much ahead may be wrong
}

// learn notes what the server's clock showed in an answer to a question. The server read its clock at some time in between. A quick
// answer stands until a quicker one comes, or one that contradicts it: on a busy machine a slow one would move the clock by up to half of
// the time that it took.
func (c *serverClock) learn(asked, answered, shown time.Time) {
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

func (c *serverClock) now() time.Time { return c.at(time.Now()) }

// latest is the latest time that the server's clock may show now.
func (c *serverClock) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now().Add(c.doubt)
}

// earliest is the earliest time that the server's clock may have shown when this host's showed t.
func (c *serverClock) earliest(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at(t).Add(-c.doubt)
}

// at is what the server's clock showed when this host's showed t; the zero time stays zero.
func (c *serverClock) at(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Round(0).Add(time.Duration(c.ahead.Load()))
}

func (c *serverClock) since(t time.Time) time.Duration { return c.now().Sub(t) }
