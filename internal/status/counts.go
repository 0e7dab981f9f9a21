package status

import (
	"maps"
	"sync"
	"time"
)

// Per span, Counts keeps up to mostDenials pairs of category and level, mostOfFirst of one first level, and mostChannels channels.
const (
	mostDenials  = 2000
	mostChannels = 1000
)

// Counts counts events and calls for a worker's [Report]. Its methods may be called concurrently.
type Counts struct {
	clock func() time.Time

	mu      sync.Mutex
	seconds ring[Rates]
	minutes ring[Rates]
	denials ring[perDenial[int64]]
	taken   ring[map[string]int64] // by channel
	slowest ring[time.Duration]
	digests map[string]time.Time // by channel: the last digest
	held    map[string]int64     // by channel: deliveries that wait for it
	inHand  int
}

// Denial identifies denied events of a category.
type Denial struct{ Category, Level string }

// NewCounts returns empty counts.
func NewCounts() *Counts {
	return &Counts{
		clock:   time.Now,
		seconds: newRing[Rates](time.Second, 60),
		minutes: newRing[Rates](time.Minute, 60),
		denials: newRing[perDenial[int64]](5*time.Second, 12),
		taken:   newRing[map[string]int64](time.Second, 60),
		slowest: newRing[time.Duration](time.Second, 60),
		digests: make(map[string]time.Time),
		held:    make(map[string]int64),
	}
}

func (c *Counts) count(add Rates) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	c.seconds.now(now).add(add)
	c.minutes.now(now).add(add)
}

func (r *Rates) add(other Rates) {
	r.Sent += other.Sent
	r.Dropped += other.Dropped
	r.Delayed += other.Delayed
	r.Folded += other.Folded
	r.Other += other.Other
}

// Event counts n events with an outcome.
func (c *Counts) Event(outcome string, n int) {
	switch outcome {
	case "sent":
		c.count(Rates{Sent: int64(n)})
	case "dropped":
		c.count(Rates{Dropped: int64(n)})
	case "folded":
		c.count(Rates{Folded: int64(n)})
	default:
		c.count(Rates{Other: int64(n)})
	}
}

// Delay counts one event of a category that begins to wait for a slot, and its denial by the rule of a level; "" if the level is not known.
func (c *Counts) Delay(category, level string) {
	c.count(Rates{Delayed: 1})
	if level != "" {
		c.Denied(category, level, 1)
	}
}

// Denied counts n events of a category that the rule of a level denied.
func (c *Counts) Denied(category, level string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted := c.denials.now(c.clock()).of(Denial{category, level}, func(values int) bool { return values < mostDenials })
	if counted != nil {
		*counted += int64(n)
	}
}

// Took counts one message that a channel accepted.
func (c *Counts) Took(channel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.taken.now(c.clock())
	if *taken == nil {
		*taken = make(map[string]int64)
	}
	if _, known := (*taken)[channel]; known || len(*taken) < mostChannels {
		(*taken)[channel]++
	}
}

// Digest counts one digest that a channel accepted.
func (c *Counts) Digest(channel string) {
	c.Took(channel)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.digests[channel]; known || len(c.digests) < mostChannels {
		c.digests[channel] = c.clock()
	}
}

// Call records the duration of a call to Redis.
func (c *Counts) Call(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slowest := c.slowest.now(c.clock())
	*slowest = max(*slowest, took)
}

// InFlight changes the number of events without an outcome.
func (c *Counts) InFlight(delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inHand += delta
}

// Held changes the number of deliveries that wait for a channel in this worker.
func (c *Counts) Held(channel string, delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[channel] += int64(delta)
	if c.held[channel] == 0 {
		delete(c.held, channel)
	}
}

// Counted holds the counts at one moment.
type Counted struct {
	PerMinute   Rates
	Minutes     []Minute
	Denials     map[Denial]int64     // of the last minute
	Taken       map[string]int64     // messages of the last minute, by channel
	Digests     map[string]time.Time // the last digest, by channel
	Held        map[string]int64     // deliveries that wait, by channel
	SlowestCall time.Duration
	InHand      int
}

// Now returns the counts. The last minute is the last sixty seconds, including the present second.
func (c *Counts) Now() Counted {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	counted := Counted{
		Denials: make(map[Denial]int64), Taken: make(map[string]int64), Digests: maps.Clone(c.digests), Held: maps.Clone(c.held), InHand: c.inHand,
	}
	c.seconds.each(now, func(_ time.Time, r Rates) { counted.PerMinute.add(r) })
	c.minutes.each(now, func(begin time.Time, r Rates) {
		counted.Minutes = append(counted.Minutes, Minute{At: begin, Sent: r.Sent, Dropped: r.Dropped, Delayed: r.Delayed})
	})
	c.denials.each(now, func(_ time.Time, d perDenial[int64]) {
		for denial, n := range d.values {
			counted.Denials[denial] += *n
		}
	})
	c.taken.each(now, func(_ time.Time, taken map[string]int64) {
		for channel, n := range taken {
			counted.Taken[channel] += n
		}
	})
	c.slowest.each(now, func(_ time.Time, took time.Duration) { counted.SlowestCall = max(counted.SlowestCall, took) })
	return counted
}

// ring holds a value for each of the latest time spans. Spans are aligned to multiples of the width since the epoch.
type ring[T any] struct {
	width time.Duration
	slots []slot[T]
}

type slot[T any] struct {
	number int64 // of the span
	value  T
}

func newRing[T any](width time.Duration, count int) ring[T] {
	return ring[T]{width: width, slots: make([]slot[T], count)}
}

// now returns the value of the present span. A span starts with the zero value.
func (r *ring[T]) now(now time.Time) *T {
	number := now.UnixNano() / int64(r.width)
	s := &r.slots[number%int64(len(r.slots))]
	if s.number != number {
		*s = slot[T]{number: number}
	}
	return &s.value
}

// each visits the spans, the oldest first. It skips spans without a call of now.
func (r *ring[T]) each(now time.Time, visit func(begin time.Time, value T)) {
	newest, count := now.UnixNano()/int64(r.width), int64(len(r.slots))
	for number := max(newest-count+1, 0); number <= newest; number++ {
		if s := r.slots[number%count]; s.number == number {
			visit(time.Unix(0, number*int64(r.width)).UTC(), s.value)
		}
	}
}
