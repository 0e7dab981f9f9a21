package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
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
		c.logger.Warn(c.begins, attributes...) //nolint:sloglint // a constant of newTrouble
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

// trouble is what is going wrong.
type trouble struct {
	logger      *slog.Logger
	deadLetters *condition // storing dead letters
	sink        *condition // deliveries that were neither rejected nor put off by their destination
	consumer    *condition // finding the consumer
	room        *condition // storing in the room
	queues      *condition // finding the consumers of channels' queues
	unsettled   *condition // at the consumer's bound of unacknowledged messages the server delivers no more

	stopping <-chan struct{} // closed when the worker gives back what it has: then nothing is said to have ended

	mu      sync.Mutex
	faults  map[string]*setupFault // by destination
	changed chan struct{}          // closed and replaced when there are no more faults
}

func newTrouble(logger *slog.Logger) *trouble {
	about := func(begins, ends string) *condition { return &condition{logger: logger, begins: begins, ends: ends} }
	return &trouble{
		logger:      logger,
		deadLetters: about("dead letters cannot be stored", "dead letters can be stored again"),
		sink:        about("deliveries fail and are tried again", "deliveries work again"),
		consumer:    about("the consumer is not there", "the consumer is there"),
		room:        about("events that have to wait cannot be stored", "events that have to wait can be stored again"),
		queues:      about("queues of channels cannot be served", "queues of channels can be served again"),
		unsettled:   about("nothing more is delivered: too many messages are unacknowledged", "messages are delivered again"),
		faults:      make(map[string]*setupFault),
		changed:     make(chan struct{}),
	}
}

// unacknowledged notes how many messages all workers together have not acknowledged.
func (t *trouble) unacknowledged(n, most int) {
	if t.isStopping() {
		return
	}
	var err error
	if most > 0 && n >= most {
		err = fmt.Errorf("%d messages are unacknowledged: the server delivers no more (max_ack_pending)", most)
	}
	t.unsettled.note(err, "max_ack_pending", most)
}

func (t *trouble) isStopping() bool {
	select {
	case <-t.stopping:
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
func (t *trouble) misconfigure(d *delivery, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.faults) == 0 {
		t.logger.Error("deliveries are misconfigured, no more events are asked for",
			d.traced("destination", d.destination, "error", err)...)
	}
	fault := t.faults[d.destination]
	if fault == nil {
		fault = &setupFault{prober: d, changed: make(chan struct{})}
		t.faults[d.destination] = fault
	}
	fault.err = err
}

// turn tells whether a delivery may try. While another one tries for its destination, it waits for a change, at most for the longest
// back-off, and returns false.
func (t *trouble) turn(ctx context.Context, d *delivery) bool {
	t.mu.Lock()
	fault := t.faults[d.destination]
	if fault == nil || fault.prober == nil || fault.prober == d {
		if fault != nil {
			fault.prober = d
		}
		t.mu.Unlock()
		return true
	}
	fault.waiting++
	changed := fault.changed
	t.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(longestBackoff):
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fault.waiting--
	return false
}

// mended notes that a destination's setup is not at fault.
func (t *trouble) mended(destination string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endFault(destination)
}

func (t *trouble) endFault(destination string) {
	fault := t.faults[destination]
	if fault == nil {
		return
	}
	delete(t.faults, destination)
	close(fault.changed)
	if len(t.faults) > 0 {
		return
	}
	if !t.isStopping() {
		t.logger.Info("deliveries are no longer known to be misconfigured")
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// leave notes the end of a delivery. If it was the prober, a waiting delivery takes over. If none waits, the fault ends, and the next
// delivery finds out.
func (t *trouble) leave(d *delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fault := t.faults[d.destination]
	if fault == nil || fault.prober != d {
		return
	}
	if fault.waiting == 0 {
		t.endFault(d.destination)
		return
	}
	fault.prober = nil
	close(fault.changed)
	fault.changed = make(chan struct{})
}

// misconfiguration is one of the faults, or nil, and when to look again.
func (t *trouble) misconfiguration() (changed <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fault := range t.faults {
		return t.changed, fault.err
	}
	return nil, nil
}

// ready joins what keeps the worker from its work.
func (t *trouble) ready() error {
	_, misconfigured := t.misconfiguration()
	return errors.Join(t.consumer.now(), t.unsettled.now(), misconfigured)
}
