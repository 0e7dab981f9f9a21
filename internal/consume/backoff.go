package consume

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// undecidedDelay is the redelivery delay of a message for which no decision could be made.
const undecidedDelay = time.Second

// Back-off between attempts: 0.5 s doubling to 30 s, and at least 5 s while the setup is at fault.
const (
	firstBackoff         = 500 * time.Millisecond
	longestBackoff       = 30 * time.Second
	misconfiguredBackoff = 5 * time.Second
)

// retryDelay returns the delay before the next attempt: first, doubled for each further attempt, up to the longest back-off. It is spread
// by a quarter to either side, so deliveries that failed together are not retried together.
func retryDelay(first time.Duration, attemptsSince int) time.Duration {
	growing := backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.25, Multiplier: 2, MaxInterval: longestBackoff}
	for range min(attemptsSince, enoughDoublings) {
		growing.NextBackOff()
	}
	return growing.NextBackOff()
}

// enoughDoublings raises the first back-off to the longest back-off.
const enoughDoublings = 6

// jitter spreads a delay that does not grow.
func jitter(d time.Duration) time.Duration { return retryDelay(d, 0) }
