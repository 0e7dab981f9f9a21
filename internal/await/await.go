// Package await waits for a time or a channel, until a context ends. Its functions may run concurrently.
package await

import (
	"context"
	"time"
)

// For waits for d. It returns false if the context ends first.
func For(ctx context.Context, d time.Duration) bool { return Ready(ctx, time.After(d)) }

// Ready waits until a channel has a value or is closed. It returns false if the context ends first.
func Ready[T any](ctx context.Context, channel <-chan T) bool {
	select {
	case <-channel:
		return true
	case <-ctx.Done():
		return false
	}
}
