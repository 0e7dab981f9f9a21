package sink

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// Each class tells the keeper of digests what it has to know.
func TestErrorOfADigest(t *testing.T) {
	t.Parallel()
	for _, class := range Classes() {
		e := &Error{Class: class}
		if class == RateLimited {
			e.RetryAfter = time.Minute
		}
		testkit.Equal(t, e.NotPosted(), class != Unknown, "%s: not posted", class)
		testkit.Equal(t, e.Hopeless(), class == Rejected, "%s: hopeless", class)
		testkit.Equal(t, e.Rest(), e.RetryAfter, "%s: rests for", class)
	}
}
