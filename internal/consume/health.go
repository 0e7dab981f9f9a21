package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// health tracks what keeps the worker from its work. Its methods may be called concurrently.
type health struct {
	logger     *slog.Logger
	deliveries *oplog.Condition // a rejection or a pause by the destination is no fault
	unsettled  *oplog.Condition // reached max_ack_pending, so the server delivers no more

	stopping atomic.Bool // the worker stops: no recovery is logged

	mu      sync.Mutex
	faults  map[string]*setupFault // by destination
	changed chan struct{}          // closed and replaced when no fault of the whole setup is left
}

func newHealth(logger *slog.Logger) *health {
	return &health{
		logger:     logger,
		deliveries: oplog.NewCondition(logger, "deliveries fail: retrying", "deliveries work again"),
		unsettled:  oplog.NewCondition(logger, "too many unacknowledged messages: JetStream delivers no more", "JetStream delivers messages again"),
		faults:     make(map[string]*setupFault),
		changed:    make(chan struct{}),
	}
}

func (h *health) posted(d *delivery) {
	h.deliveries.Note(nil)
	h.mended(d.destination)
}

func (h *health) failed(d *delivery, err error) { h.deliveries.Note(err, d.message.traced()...) }

// unacknowledged records how many messages all workers together have not acknowledged.
func (h *health) unacknowledged(n, most int) {
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
type setupFault struct {
	err     *sink.Error
	prober  *delivery // nil: no delivery is trying
	waiting int
	changed chan struct{} // closed when the waiting deliveries should check again
}

func (h *health) misconfigure(d *delivery, err *sink.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.faults[d.destination]
	attributes := d.message.traced("destination", d.destination, "error", err)
	switch {
	case err.OfChannel && fault == nil:
		h.logger.Error("a channel refuses messages: its events wait", attributes...)
	case !err.OfChannel && h.ofSetup() == nil:
		h.logger.Error("sink refuses the setup: pulling no events", attributes...)
	}
	if fault == nil {
		fault = &setupFault{prober: d, changed: make(chan struct{})}
		h.faults[d.destination] = fault
	}
	before := h.ofSetup()
	fault.err = err
	h.resume(before)
}

// ofSetup returns a fault of the whole setup; nil: there is none. The caller holds the lock.
func (h *health) ofSetup() *sink.Error {
	for _, fault := range h.faults {
		if fault.err != nil && !fault.err.OfChannel {
			return fault.err
		}
	}
	return nil
}

// resume lets the worker pull events if there was a fault of the whole setup before, and there is none now. The caller holds the lock.
func (h *health) resume(before *sink.Error) {
	if before != nil && h.ofSetup() == nil {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// turn reports whether a delivery may be attempted. While another delivery probes its destination, turn waits for a change, at most for the
// longest back-off, and returns false. If the channel refuses, turn waits briefly: the channel is paused, and the delivery goes to the room.
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
	changed, patience := fault.changed, longestBackoff
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

// lost reports whether a destination has refused a message in such a way that no reply reaches its messages.
func (h *health) lost(destination string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.faults[destination]
	return fault != nil && fault.err.Lost
}

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
	before := h.ofSetup()
	delete(h.faults, destination)
	close(fault.changed)
	if len(h.faults) == 0 && !h.stopping.Load() {
		h.logger.Info("sink accepts deliveries again")
	}
	h.resume(before)
}

// leave records the end of a delivery. If the delivery was the prober, a waiting delivery takes over. If none waits, the fault ends, and
// the next delivery tests the setup. A delivery that was to take over may end before it does, so the fault ends with the last one.
func (h *health) leave(d *delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.faults[d.destination]
	if fault == nil || fault.prober != nil && fault.prober != d {
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

// misconfiguration returns a fault of the whole setup, or nil, and a channel that is closed when no such fault is left.
func (h *health) misconfiguration() (changed <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed, h.ofSetup().AsError()
}

func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fault := range h.faults {
		return errors.Join(h.unsettled.Err(), fault.err)
	}
	return h.unsettled.Err()
}
