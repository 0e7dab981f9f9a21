package sink

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Each class answers the questions of the digest's reporter.
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
