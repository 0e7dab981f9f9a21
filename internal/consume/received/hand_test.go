package received

import (
	"context"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestHand takes messages until one more does not fit. It is taken when another one has left.
func TestHand(t *testing.T) {
	t.Parallel()
	h := new(Hand)
	first, second := &Message{place: place{bytes: MostInHand}}, &Message{place: place{bytes: 1000}}
	h.Take(t.Context(), first) // larger than the bound with what a message takes
	taken := make(chan struct{})
	go func() {
		h.Take(t.Context(), second)
		close(taken)
	}()
	select {
	case <-taken:
		t.Error("a message was taken beyond the bound")
	case <-time.After(20 * time.Millisecond): // there is no signal for a message that waits
	}
	first.LeaveHand()
	first.LeaveHand()
	select {
	case <-taken:
	case <-testkit.Context(t).Done():
		t.Error("a message that fits was not taken")
	}
	second.LeaveHand()
	testkit.Equal(t, h.Held(), 0, "bytes in hand")
	small, large := &Message{place: place{bytes: MostInHand/2 - MessageBytes}}, &Message{place: place{bytes: 2 * MostInHand}}
	h.Take(t.Context(), small)
	patient := testkit.Context(t)
	h.Take(patient, large) // small messages that never leave all of the hand do not keep it out
	testkit.NoError(t, patient.Err())
	testkit.Equal(t, h.Held(), small.Size()+large.Size(), "bytes in hand")
	small.LeaveHand()
	large.LeaveHand()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	h.Take(ended, &Message{place: place{bytes: MostInHand}})
	h.Take(ended, &Message{place: place{bytes: MostInHand}}) // does not wait
}
