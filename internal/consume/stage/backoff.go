package stage

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// UndecidedDelay is the redelivery delay of a message for which no decision could be made.
const UndecidedDelay = time.Second

// Back-off between attempts: 0.5 s doubling to 30 s, and at least 5 s while the setup is at fault.
const (
	FirstBackoff         = 500 * time.Millisecond
	LongestBackoff       = 30 * time.Second
	MisconfiguredBackoff = 5 * time.Second
)

// RetryDelay returns the delay before the next attempt: first, doubled for each further attempt, up to the longest back-off. It is spread
// by a quarter to either side, so deliveries that failed together are not retried together.
func RetryDelay(first time.Duration, attemptsSince int) time.Duration {
	growing := backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.25, Multiplier: 2, MaxInterval: LongestBackoff}
	for range min(attemptsSince, EnoughDoublings) {
		growing.NextBackOff()
	}
	return growing.NextBackOff()
}

// EnoughDoublings raises the first back-off to the longest back-off.
const EnoughDoublings = 6

// Jitter spreads a delay that does not grow.
func Jitter(d time.Duration) time.Duration { return RetryDelay(d, 0) }
