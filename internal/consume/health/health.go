// Package health knows what keeps a worker from its work: posts that fail, destinations that refuse the setup, and too many unacknowledged
// messages.
//
// It decides which delivery tries a destination that refuses. The package stores nothing and makes no request. The methods of [Health] may be
// called concurrently.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// Health tracks what keeps the worker from its work. D identifies a delivery; its zero value is none. It is no interface: the linker would keep
// every method of a delivery's fields, since templates call methods by name.
type Health[D comparable] struct {
	logger     *slog.Logger
	deliveries *oplog.Condition        // a rejection or a pause by the destination is no fault
	unsettled  *oplog.Condition        // reached max_ack_pending, so the server delivers no more
	expiring   *oplog.Repeated[string] // events that expire in a pause, by destination

	stopping atomic.Bool // the worker stops: no recovery is logged

	mu      sync.Mutex
	faults  map[string]*setupFault[D] // by destination
	changed chan struct{}             // closed and replaced when no fault of the whole setup is left
}

// New returns a Health without faults.
func New[D comparable](logger *slog.Logger) *Health[D] {
	return &Health[D]{
		logger:     logger,
		deliveries: oplog.NewCondition(logger, "deliveries fail: retrying", "deliveries work again"),
		unsettled:  oplog.NewCondition(logger, "too many unacknowledged messages: JetStream delivers no more", "JetStream delivers messages again"),
		expiring: oplog.NewRepeated(func(destination string, count int, newest []any) {
			logger.Warn("a channel was paused for longer than its waiting events live", append([]any{"destination", destination, "pauses", count}, newest...)...)
		}),
		faults:  make(map[string]*setupFault[D]),
		changed: make(chan struct{}),
	}
}

// Stop records that the worker stops: no recovery is logged any more.
func (h *Health[D]) Stop() {
	h.stopping.Store(true)
	h.expiring.Stop()
}

// Posted records a successful post.
func (h *Health[D]) Posted(destination string) {
	h.deliveries.Note(nil)
	h.Mended(destination)
}

// Failed records a failed post, which is retried. The log line has the attributes.
func (h *Health[D]) Failed(err error, attributes ...any) { h.deliveries.Note(err, attributes...) }

// Expires records that an event will have expired when the pause of its destination ends. The log line has the attributes.
func (h *Health[D]) Expires(destination string, attributes ...any) {
	h.expiring.Add(destination, 1, attributes...)
}

// Failing returns why the latest post failed, nil after a success, and the refusal of the first channel by name that refuses messages, with the
// number of other such channels.
func (h *Health[D]) Failing() error { return errors.Join(h.deliveries.Err(), h.refusal()) }

// refusal returns why channels refuse messages; nil: none does.
func (h *Health[D]) refusal() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var refused error
	channels := 0
	for _, destination := range slices.Sorted(maps.Keys(h.faults)) {
		if fault := h.faults[destination].err; fault.OfChannel {
			channels++
			refused = cmp.Or(refused, fault.AsError())
		}
	}
	if channels > 1 {
		return fmt.Errorf("%w; further channels that refuse messages: %d", refused, channels-1)
	}
	return refused
}

// Unacknowledged records how many messages all workers together have not acknowledged.
func (h *Health[D]) Unacknowledged(n, most int) {
	if h.stopping.Load() {
		return
	}
	var err error
	if most > 0 && n >= most {
		err = fmt.Errorf("%d messages are unacknowledged: the server delivers no more (max_ack_pending)", most)
	}
	h.unsettled.Note(err, "max_ack_pending", most)
}

// setupFault is a destination that accepts no messages until an operator fixes the setup. One delivery, the prober, keeps trying. The other
// deliveries wait for the prober. If it is the channel that refuses, they wait in the room, and the worker pulls events for other channels.
type setupFault[D comparable] struct {
	err     *sink.Error
	prober  D    // the delivery that is trying; the zero value: none is
	logged  bool // it was logged that the channel refuses messages
	waiting int
	changed chan struct{} // closed when the waiting deliveries should check again
}

// Misconfigure records that a destination has refused a delivery because of the setup. The log line has the attributes.
func (h *Health[D]) Misconfigure(destination string, delivery D, err *sink.Error, attributes ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.faults[destination]
	attributes = append(attributes, "destination", destination, "error", err)
	switch {
	case err.OfChannel && (fault == nil || !fault.logged):
		h.logger.Error("a channel refuses messages: its events wait", attributes...)
	case !err.OfChannel && h.ofSetup() == nil:
		h.logger.Error("sink refuses the setup: pulling no events", attributes...)
	}
	if fault == nil {
		fault = &setupFault[D]{prober: delivery, changed: make(chan struct{})}
		h.faults[destination] = fault
	}
	before := h.ofSetup()
	fault.err, fault.logged = err, fault.logged || err.OfChannel
	h.resume(before, accepted)
}

// ofSetup returns a fault of the whole setup; nil: there is none. The caller holds the lock.
func (h *Health[D]) ofSetup() *sink.Error {
	for _, destination := range slices.Sorted(maps.Keys(h.faults)) {
		if fault := h.faults[destination]; fault.err != nil && !fault.err.OfChannel {
			return fault.err
		}
	}
	return nil
}

// ending is how a fault ended.
type ending int

const (
	accepted ending = iota
	unclear         // the last delivery has expired, or got no answer about the setup: the next one tests the setup
)

// resume lets the worker pull events if there was a fault of the whole setup before, and there is none now. The caller holds the lock.
func (h *Health[D]) resume(before *sink.Error, how ending) {
	if before != nil && h.ofSetup() == nil {
		if how == accepted {
			h.endLogger().Info("sink accepts deliveries again")
		} else {
			h.endLogger().Info("it is unclear whether the sink still refuses the setup")
		}
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// endLogger returns the logger for the ends of faults. While the worker stops, it logs nothing.
func (h *Health[D]) endLogger() *slog.Logger {
	if h.stopping.Load() {
		return slog.New(slog.DiscardHandler)
	}
	return h.logger
}

// longestTurn is how long a delivery waits at most for the delivery that probes its destination.
const longestTurn = 30 * time.Second

// Turn reports whether a delivery may be attempted. While another delivery probes its destination, Turn waits for a change, at most for
// longestTurn, and returns false. If the channel refuses, Turn waits briefly: the channel is paused, and the delivery goes to the room.
func (h *Health[D]) Turn(ctx context.Context, destination string, delivery D) bool {
	var none D
	h.mu.Lock()
	fault := h.faults[destination]
	if fault == nil || fault.prober == none || fault.prober == delivery {
		if fault != nil {
			fault.prober = delivery
		}
		h.mu.Unlock()
		return true
	}
	fault.waiting++
	changed, patience := fault.changed, longestTurn
	if fault.err.OfChannel {
		patience = lane.MemoryWait
	}
	h.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(patience):
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	fault.waiting--
	return false
}

// Lost reports whether a destination has refused a message in such a way that no reply reaches its messages.
func (h *Health[D]) Lost(destination string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.faults[destination]
	return fault != nil && fault.err.Lost
}

// Mended records that a destination no longer refuses the setup.
func (h *Health[D]) Mended(destination string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endFault(destination, accepted)
}

// Unclear records that a post to a destination failed in a way that shows nothing about the setup.
func (h *Health[D]) Unclear(destination string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endFault(destination, unclear)
}

func (h *Health[D]) endFault(destination string, how ending) {
	fault := h.faults[destination]
	if fault == nil {
		return
	}
	before := h.ofSetup()
	delete(h.faults, destination)
	close(fault.changed)
	if fault.logged {
		if how == accepted {
			h.endLogger().Info("a channel accepts messages again", "destination", destination)
		} else {
			h.endLogger().Info("it is unclear whether a channel still refuses messages", "destination", destination)
		}
	}
	h.resume(before, how)
}

// Leave records the end of a delivery. If the delivery was the prober, a waiting delivery takes over. If none waits, the fault ends, and
// the next delivery tests the setup. A delivery that was to take over may end before it does, so the fault ends with the last one.
func (h *Health[D]) Leave(destination string, delivery D) {
	var none D
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.faults[destination]
	if fault == nil || fault.prober != none && fault.prober != delivery {
		return
	}
	if fault.waiting == 0 {
		h.endFault(destination, unclear)
		return
	}
	fault.prober = none
	close(fault.changed)
	fault.changed = make(chan struct{})
}

// Misconfiguration returns a fault of the whole setup, or nil, and a channel that is closed when no such fault is left.
func (h *Health[D]) Misconfiguration() (changed <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed, h.ofSetup().AsError()
}

// Ready returns an error while a fault keeps the worker from its work. A channel that refuses messages does not: the worker posts to all other
// channels, and every worker would cease to be ready because of one archived channel.
func (h *Health[D]) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.unsettled.Err(), h.ofSetup().AsError())
}
