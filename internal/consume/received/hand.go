package received

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/seed-4578ace9/notifier/internal/await"
)

// Bounds of the messages in a worker's hand: fetched and not yet settled, returned or lost.
const (
	MostInHand   = 8 << 20 // bytes of all messages in hand
	MessageBytes = 1 << 10 // overhead of a message beside its subject, headers and body
	headerBytes  = 150     // overhead of a header beside its name and values, in a map
)

// Hand bounds the bytes of the messages in hand. A very large message needs only a free half of the bound: small messages never leave more.
type Hand struct {
	mu    sync.Mutex
	bytes int
	freed chan struct{} // closed when a message leaves; nil: nobody waits
}

// place is the place of a message in the hand.
type place struct {
	bytes  int          // of the subject, the headers and the body
	hand   *Hand        // nil: it was never there
	weight atomic.Int64 // bytes that count in the hand; 0: the message is not there
}

// Take waits until a message fits. It does not wait after the end of the context, since the worker then requests no more messages.
func (h *Hand) Take(ctx context.Context, m *Message) {
	weight := m.Size()
	needed := min(weight, MostInHand/2)
	for {
		h.mu.Lock()
		if h.bytes+needed <= MostInHand || ctx.Err() != nil {
			h.bytes += weight
			m.place.hand = h
			m.place.weight.Store(int64(weight))
			h.mu.Unlock()
			return
		}
		if h.freed == nil {
			h.freed = make(chan struct{})
		}
		freed := h.freed
		h.mu.Unlock()
		await.Ready(ctx, freed)
	}
}

// LeaveHand records that a message is settled, returned or lost. It may be called again.
func (m *Message) LeaveHand() {
	weight := int(m.place.weight.Swap(0))
	if weight == 0 {
		return
	}
	m.place.hand.mu.Lock()
	defer m.place.hand.mu.Unlock()
	m.place.hand.bytes -= weight
	if m.place.hand.freed != nil {
		close(m.place.hand.freed)
		m.place.hand.freed = nil
	}
}

// Held returns the bytes in hand.
func (h *Hand) Held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bytes
}
