package simulation

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// slack stands for Slack: it has posts by their names.
type slack struct {
	mu      sync.Mutex
	rough   bool                   // it loses answers
	posts   map[string]int         // by name
	events  map[string]int         // by category
	digests map[string]int         // reported drops, by claim
	starts  map[string][]time.Time // of requests, by channel
	random  *random
}

func newSlack(r *random) *slack {
	return &slack{posts: make(map[string]int), events: make(map[string]int), digests: make(map[string]int), starts: make(map[string][]time.Time), random: r}
}

var errLost = errors.New("the answer is lost")

// answer draws what becomes of a request.
func (s *slack) answer() (posts bool, class sink.Class) {
	if !s.rough {
		return true, sink.OK
	}
	switch s.random.intN(6) {
	case 0:
		return true, sink.Unknown
	case 1:
		return false, sink.Unknown
	case 2:
		return false, sink.Transient
	case 3:
		return false, sink.RateLimited
	}
	return true, sink.OK
}

func (s *slack) start(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starts[channel] = append(s.starts[channel], time.Now())
}

// client is the Slack of one worker.
type client struct {
	*slack
	gone func() bool // the worker is cut off
}

func (c client) request(ctx context.Context, channel string, post func()) error {
	c.start(channel)
	select {
	case <-time.After(c.random.between(5*time.Millisecond, 300*time.Millisecond)):
	case <-ctx.Done():
		return &sink.Error{Class: sink.Unknown, Err: ctx.Err()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	posts, class := c.answer()
	if c.gone() { // its last request may have arrived
		posts, class = c.random.chance(50), sink.Unknown
	}
	if posts {
		post()
	}
	switch class {
	case sink.OK:
		return nil
	case sink.RateLimited:
		return &sink.Error{Class: class, RetryAfter: time.Second, Err: errLost}
	}
	return &sink.Error{Class: class, Err: errLost}
}

func (c client) Send(ctx context.Context, d sink.Delivery) (string, error) {
	if strings.HasPrefix(d.Event.Category, "bad.") && !c.gone() {
		return "", &sink.Error{Class: sink.Rejected, Code: "invalid_blocks", Err: errLost}
	}
	return d.Name, c.request(ctx, c.Destination(d), func() {
		c.posts[d.Name]++
		c.events[d.Event.Category]++
	})
}

func (c client) Prepare(d sink.Delivery) sink.Delivery               { return d }
func (c client) Destination(d sink.Delivery) string                  { return "#" + event.FirstLevel(d.Event.Category) }
func (c client) Updatable(string) bool                               { return false }
func (c client) Update(context.Context, sink.Delivery, string) error { return nil }
func (c client) Destinations() []string                              { return nil }
func (c client) Find(ctx context.Context, d sink.Doubt) (sink.Finding, error) {
	return c.find(ctx, func() bool { return c.posts[d.Delivery.Name] > 0 }, d.Delivery.Name)
}

// find waits until a post would be visible, and looks for it.
func (c client) find(ctx context.Context, there func() bool, receipt string) (sink.Finding, error) {
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
		return sink.Finding{}, &sink.Error{Class: sink.Unknown, Err: ctx.Err()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.gone() || c.rough && c.random.chance(30):
		return sink.Finding{}, &sink.Error{Class: sink.Transient, Err: errLost}
	case there():
		return sink.Finding{Presence: sink.Present, Receipt: receipt}, nil
	}
	return sink.Finding{Presence: sink.Absent}, nil
}

// sendDigest posts a digest.
func (c client) sendDigest(ctx context.Context, d summary.Digest) error {
	return c.request(ctx, d.Channel, func() { c.digests[d.Claim] += int(d.Dropped) })
}

// findDigest looks for a digest.
func (c client) findDigest(ctx context.Context, claim string) (posted, known bool, err error) {
	found, err := c.find(ctx, func() bool { return c.digests[claim] > 0 }, "")
	return found.Presence == sink.Present, err == nil, err
}
