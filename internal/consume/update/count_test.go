package update

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// A count survives the header of an entry of the room.
func TestCountRoundTrip(t *testing.T) {
	t.Parallel()
	count := store.Count{Folded: 36, Last: time.UnixMicro(1767322800000001).UTC(), Severity: event.SeverityCritical.Rank()}
	testkit.Equal(t, countOf(countText(count)), count, "count")
	testkit.Equal(t, countText(store.Count{}), "", "text of nothing")
	testkit.Equal(t, seenOf(count), sink.Seen{Times: 37, Last: count.Last, Worst: event.SeverityCritical}, "what the message shows")
	testkit.Equal(t, seenOf(countOf("x")), sink.Seen{}, "what an unreadable header shows")
}
