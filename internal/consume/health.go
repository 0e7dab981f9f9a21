package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// condition is something that fails at times. The log has one line for the beginning of a failure, and one for its end.
type condition struct {
	logger       *slog.Logger
	begins, ends string

	mu  sync.Mutex
	err error // nil while it works
}

// note notes an attempt. The attributes are logged instead of its error.
func (c *condition) note(err error, attributes ...any) {
	c.mu.Lock()
	was := c.err
	c.err = err
	c.mu.Unlock()
	if len(attributes) == 0 {
		attributes = []any{"error", err}
	}
	switch {
	case was == nil && err != nil:
		c.logger.Warn(c.begins, attributes...) //nolint:sloglint // a constant of newHealth
	case was != nil && err == nil:
		c.logger.Info(c.ends) //nolint:sloglint // likewise
	}
}

// now is the present failure.
func (c *condition) now() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// health is what is going wrong, and what keeps the worker from its work.
type health struct {
	logger      *slog.Logger
	deadLetters *condition // storing dead letters
	sink        *condition // deliveries that were neither rejected nor put off by their destination
	consumer    *condition // the consumers exist
	unanswered  *condition // the server answers whether they do
	room        *condition // storing in the room
	queues      *condition // finding the consumers of channels' queues
	unsettled   *condition // at the consumer's bound of unacknowledged messages the server delivers no more

	stopping <-chan struct{} // closed when the worker stops: then nothing is said to have ended

	mu      sync.Mutex
	faults  map[string]*setupFault // by destination
	changed chan struct{}          // closed and replaced when there are no more faults
}

func newHealth(logger *slog.Logger) *health {
	about := func(begins, ends string) *condition { return &condition{logger: logger, begins: begins, ends: ends} }
	return &health{
		logger:      logger,
		deadLetters: about("dead letters cannot be stored", "dead letters can be stored again"),
		sink:        about("deliveries fail and are tried again", "deliveries work again"),
		consumer:    about("the consumer is not there", "the consumer is there"),
		unanswered:  about("nats does not answer whether the consumer exists", "nats answers again whether the consumer exists"),
		room:        about("events that have to wait cannot be stored", "events that have to wait can be stored again"),
		queues:      about("queues of channels cannot be served", "queues of channels can be served again"),
		unsettled:   about("nothing more is delivered: too many messages are unacknowledged", "messages are delivered again"),
		faults:      make(map[string]*setupFault),
		changed:     make(chan struct{}),
	}
}

// lookedForConsumer notes the result of a search for a consumer. Without an answer nobody knows whether the consumer exists, and without a
// connection nobody was asked: the connection reports for itself.
func (h *health) lookedForConsumer(err error) {
	switch {
	case errors.Is(err, nats.ErrDisconnected):
	case err == nil:
		h.unanswered.note(nil)
		h.consumer.note(nil)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders):
		h.unanswered.note(err)
	default:
		h.unanswered.note(nil)
		h.consumer.note(err)
	}
}

// unacknowledged notes how many messages all workers together have not acknowledged.
func (h *health) unacknowledged(n, most int) {
	if h.isStopping() {
		return
	}
	var err error
	if most > 0 && n >= most {
		err = fmt.Errorf("%d messages are unacknowledged: the server delivers no more (max_ack_pending)", most)
	}
	h.unsettled.note(err, "max_ack_pending", most)
}

func (h *health) isStopping() bool {
	select {
	case <-h.stopping:
		return true
	default:
		return false
	}
}

// setupFault is a destination that takes nothing until someone mends the setup. One delivery, the prober, goes on trying. The others
// wait for it.
type setupFault struct {
	err     error
	prober  *delivery // nil while nobody tries
	waiting int
	changed chan struct{} // closed when those who wait should look again
}

// misconfigure notes that a delivery failed because of the setup.
func (h *health) misconfigure(d *delivery, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.faults) == 0 {
		h.logger.Error("deliveries are misconfigured, no more events are asked for",
			d.traced("destination", d.destination, "error", err)...)
	}
	fault := h.faults[d.destination]
	if fault == nil {
		fault = &setupFault{prober: d, changed: make(chan struct{})}
		h.faults[d.destination] = fault
	}
	fault.err = err
}

// turn tells whether a delivery may try. While another one tries for its destination, it waits for a change, at most for the longest
// back-off, and returns false.
func (h *health) turn(ctx context.Context, d *delivery) bool {
	h.mu.Lock()
	fault := h.faults[d.destination]
	if fault == nil || fault.prober == nil || fault.prober == d {
		if fault != nil {
			fault.prober = d
		}
		h.mu.Unlock()
		return true
	}
	fault.waiting++
	changed := fault.changed
	h.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(longestBackoff):
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	fault.waiting--
	return false
}

// mended notes that a destination's setup is not at fault.
func (h *health) mended(destination string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endFault(destination)
}

func (h *health) endFault(destination string) {
	fault := h.faults[destination]
	if fault == nil {
		return
	}
	delete(h.faults, destination)
	close(fault.changed)
	if len(h.faults) > 0 {
		return
	}
	if !h.isStopping() {
		h.logger.Info("deliveries are no longer known to be misconfigured")
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// leave notes the end of a delivery. If it was the prober, a waiting delivery takes over. If none waits, the fault ends, and the next
// delivery finds out.
func (h *health) leave(d *delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.faults[d.destination]
	if fault == nil || fault.prober != d {
		return
	}
	if fault.waiting == 0 {
		h.endFault(d.destination)
		return
	}
	fault.prober = nil
	close(fault.changed)
	fault.changed = make(chan struct{})
}

// misconfiguration is one of the faults, or nil, and when to look again.
func (h *health) misconfiguration() (changed <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fault := range h.faults {
		return h.changed, fault.err
	}
	return nil, nil
}

// ready joins what keeps the worker from its work.
func (h *health) ready() error {
	_, misconfigured := h.misconfiguration()
	return errors.Join(h.consumer.now(), h.unanswered.now(), h.unsettled.now(), misconfigured)
}
