package throttle_test

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func TestRetention(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ streamAge, maxAge, want time.Duration }{
		{0, time.Hour, 7*24*time.Hour + time.Hour},
		{24 * time.Hour, time.Hour, 25 * time.Hour},
		{time.Hour, 24 * time.Hour, 25 * time.Hour},
		{24 * time.Hour, 0, 25 * time.Hour},
		{0, 0, 7*24*time.Hour + time.Hour},
	} {
		testkit.Equal(t, throttle.Retention(test.streamAge, test.maxAge), test.want, "for a stream age of %v and a maximum age of %v",
			test.streamAge, test.maxAge)
	}
}
