package testkit

import (
	"context"
	"testing"
)

// Ended returns a context that was cancelled.
func Ended(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
