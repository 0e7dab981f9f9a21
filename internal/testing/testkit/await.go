package testkit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// Patience bounds each wait of a test. It is no expectation of how long something takes.
const Patience = 2 * time.Minute

// The pauses between two looks of [Await] grow, so that a wait is short where little has to happen, and costs little where much has to.
const (
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
)

var errNotYet = errors.New("it does not hold")

// Await returns once reached returns nil. If that does not happen within [Patience], the test ends with the last error.
func Await(t testing.TB, what string, reached func() error) {
	t.Helper()
	if err := poll(Patience, reached); err != nil {
		t.Fatalf("await %s: %v", what, err)
	}
}

// Eventually is [Await] for a condition that needs no reason.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !Soon(holds) {
		t.Fatalf("await %s: it did not hold within %v", what, Patience)
	}
}

// Soon waits until a condition holds, and returns whether it did within [Patience].
func Soon(holds func() bool) bool {
	return poll(Patience, func() error {
		if !holds() {
			return errNotYet
		}
		return nil
	}) == nil
}

func poll(within time.Duration, reached func() error) error {
	deadline := time.Now().Add(within)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := reached()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// Context returns a context of the test that ends after [Patience].
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Ended returns a context that was cancelled.
func Ended(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Run runs a function in the background until the test ends, or until stop is called: its context ends, and stop returns when the function has.
func Run(t testing.TB, run func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// AtOnce runs n calls concurrently, and waits for all of them. Each call gets its number.
func AtOnce(n int, call func(i int)) {
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { call(i) })
	}
	calls.Wait()
}
