package consume

import (
	"context"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestHand takes messages until one more does not fit. It is taken when another one has left.
func TestHand(t *testing.T) {
	t.Parallel()
	h := new(hand)
	first, second := &message{size: mostInHand}, &message{size: 1000}
	h.take(t.Context(), first) // larger than the bound with what a message takes
	taken := make(chan struct{})
	go func() {
		h.take(t.Context(), second)
		close(taken)
	}()
	select {
	case <-taken:
		t.Error("a message was taken beyond the bound")
	case <-time.After(20 * time.Millisecond): // there is no signal for a message that waits
	}
	first.leaveHand()
	first.leaveHand()
	select {
	case <-taken:
	case <-testkit.Context(t).Done():
		t.Error("a message that fits was not taken")
	}
	second.leaveHand()
	testkit.Equal(t, h.held(), 0, "bytes in hand")
	small, large := &message{size: mostInHand/2 - messageBytes}, &message{size: 2 * mostInHand}
	h.take(t.Context(), small)
	patient := testkit.Context(t)
	h.take(patient, large) // small messages that never leave all of the hand do not keep it out
	testkit.NoError(t, patient.Err())
	testkit.Equal(t, h.held(), small.Size()+large.Size(), "bytes in hand")
	small.leaveHand()
	large.leaveHand()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	h.take(ended, &message{size: mostInHand})
	h.take(ended, &message{size: mostInHand}) // does not wait
}
