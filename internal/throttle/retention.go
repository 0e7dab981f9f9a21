package throttle

import (
	"cmp"
	"time"
)

// unboundedRetention is how long deliveries are remembered if the stream keeps messages for ever.
const unboundedRetention = 7 * 24 * time.Hour

// Retention returns how long deliveries are remembered: longer than a message can be redelivered and still be sent. streamAge is the maximum
// age of a message in the stream, and maxAge of an event that is sent; 0 means no bound.
func Retention(streamAge, maxAge time.Duration) time.Duration {
	return max(cmp.Or(streamAge, unboundedRetention), maxAge) + time.Hour
}
