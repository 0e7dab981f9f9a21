package throttle

import (
	"cmp"
	"time"
)

// unboundedRetention applies if neither the stream nor the settings bound how late a message can be redelivered.
const unboundedRetention = 7 * 24 * time.Hour

// Retention returns how long deliveries are remembered: longer than a message can be redelivered and still be sent. streamAge is the maximum
// age of a message in the stream, and maxAge of an event that is sent; 0 means no bound.
func Retention(streamAge, maxAge time.Duration) time.Duration {
	return cmp.Or(max(streamAge, maxAge), unboundedRetention) + time.Hour
}
