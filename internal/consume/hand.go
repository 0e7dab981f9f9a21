package consume

import (
	"context"
	"sync"
)

// Bounds of the messages that a worker has in hand: those that were fetched and are not settled, returned or lost. The settlers bound the messages
// that wait to be acknowledged.
const (
	mostInHand   = 8 << 20 // bytes of all together
	fetchBytes   = 4 << 20 // bytes that are asked for at once, by an estimate
	messageBytes = 1 << 10 // that a message takes beside its subject, headers and body
)

// How the sizes of a consumer's next messages are estimated: a larger message than expected counts at once, a smaller one by a part. A bound in bytes
// that the server keeps would be exact, but a consumer of a cluster stalled with one.
const (
	firstEstimate  = 128 << 10 // bytes, of a consumer that has delivered nothing yet
	estimateWeight = 64        // of the messages before a smaller one
)

// hand bounds the bytes of the messages in hand. A message that is larger than the bound is taken alone.
type hand struct {
	mu        sync.Mutex
	bytes     int
	estimates map[string]int // of the size of a message, by consumer
	freed     chan struct{}  // closed when a message leaves; nil: nobody waits for that
}

func newHand() *hand { return &hand{estimates: make(map[string]int)} }

// demand is how many messages to ask a consumer for at once: at most a number, and at least one. They are expected to fit.
func (h *hand) demand(consumer string, most int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(1, min(most, min(fetchBytes, mostInHand-h.bytes)/h.estimate(consumer)))
}

// estimate is how large a consumer's next messages are expected to be. The caller holds the lock.
func (h *hand) estimate(consumer string) int {
	if estimate, known := h.estimates[consumer]; known {
		return estimate
	}
	return firstEstimate
}

// arrived notes the size of a message of a consumer.
func (h *hand) arrived(consumer string, size int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.estimate(consumer)
	h.estimates[consumer] = max(size, before-(before-size)/estimateWeight)
}

// take waits until a message fits. It does not wait once the context has ended: no more messages are asked for then.
func (h *hand) take(ctx context.Context, m *message) {
	weight := m.Size()
	for {
		h.mu.Lock()
		if h.bytes == 0 || h.bytes+weight <= mostInHand || ctx.Err() != nil {
			h.bytes += weight
			m.hand = h
			m.weight.Store(int64(weight))
			h.mu.Unlock()
			return
		}
		if h.freed == nil {
			h.freed = make(chan struct{})
		}
		freed := h.freed
		h.mu.Unlock()
		arrives(ctx, freed)
	}
}

// leaveHand notes that a message is settled, returned or lost. It may be called again.
func (m *message) leaveHand() {
	weight := int(m.weight.Swap(0))
	if weight == 0 {
		return
	}
	m.hand.mu.Lock()
	defer m.hand.mu.Unlock()
	m.hand.bytes -= weight
	if m.hand.freed != nil {
		close(m.hand.freed)
		m.hand.freed = nil
	}
}

// held is how many bytes the messages in hand take.
func (h *hand) held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bytes
}
