package throttle

import (
	"cmp"
	"time"
)

// unboundedRetention is the retention where neither the stream nor the settings bound how late a message can be delivered again.
const unboundedRetention = 7 * 24 * time.Hour

// Retention returns how long deliveries are remembered: longer than a message can be delivered again and still be sent. The ages
// are the longest of a message in the stream and of an event that is sent, 0 for no bound.
func Retention(streamAge, maxAge time.Duration) time.Duration {
	return cmp.Or(max(streamAge, maxAge), unboundedRetention) + time.Hour
}
