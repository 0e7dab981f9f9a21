package openers

import (
	"context"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
)

// TestFirstOpening caches how far a stream has no message that may open a pair. Other streams clear the cache.
func TestFirstOpening(t *testing.T) {
	t.Parallel()
	var o firstOpening
	at, looks, found := new(stream.Layout), 0, uint64(10)
	look := func(_ context.Context, _ *stream.Layout, known openings) openings {
		looks++
		return openings{first: max(known.first, found)}
	}
	none := func(sequence uint64, want bool, wantLooks int) {
		t.Helper()
		if _, got := o.noneBefore(t.Context(), sequence, at, look); got != want || looks != wantLooks {
			t.Errorf("none before %d: got %t after %d looks, want %t after %d", sequence, got, looks, want, wantLooks)
		}
	}
	none(10, true, 1)
	none(7, true, 1)
	none(11, false, 1) // the last look was a moment ago
	o.asked = time.Now().Add(-2 * openingKept)
	none(11, false, 2)
	o.asked, found = time.Now().Add(-2*openingKept), 12
	none(12, true, 3)
	o.asked, found = time.Now().Add(-2*openingKept), 0
	none(13, false, 4)
	at = new(stream.Layout)
	none(5, false, 5)
}
