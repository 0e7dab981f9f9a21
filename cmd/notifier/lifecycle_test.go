package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Steps are stopped in reverse order. A failed step does not stop the others.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	errStep := errors.New("it did not stop")
	var stopped []string
	l := &lifecycle{timeout: testkit.Patience}
	step := func(name string, err error) {
		l.add(name, func(ctx context.Context) error {
			_, bounded := ctx.Deadline()
			testkit.Check(t, bounded && ctx.Err() == nil, "%s: got the context %v, want one that has a deadline and has not ended", name, ctx)
			stopped = append(stopped, name)
			return err
		})
	}
	step("first", errStep)
	step("second", nil)
	l.background("third", func(ctx context.Context) {
		<-ctx.Done()
		stopped = append(stopped, "third")
	})
	step("fourth", errors.New("neither did this"))
	err := l.stop()
	testkit.EqualSlices(t, stopped, []string{"fourth", "third", "second", "first"}, "stopped")
	testkit.Fails(t, "error", err, errStep, "stopping first: it did not stop", "stopping fourth: ")
}

// All steps share one deadline. A step that hangs does not keep the others running.
func TestLifecycleTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lifecycle{timeout: 5 * time.Second}
		reached := false
		l.add("the first", func(context.Context) error {
			reached = true
			return nil
		})
		hang := make(chan struct{})
		l.background("a task that hangs", func(context.Context) { <-hang })
		start := time.Now()
		err := l.stop()
		testkit.Fails(t, "error", err, context.DeadlineExceeded, "a task that hangs")
		took := time.Since(start)
		testkit.Check(t, took == 5*time.Second && reached, "took %v, the other step was stopped: %t, want 5s and true", took, reached)
		close(hang)
	})
}

// The tasks of one step end together.
func TestLifecycleEndsTasksTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lifecycle{timeout: 7 * time.Second}
		hang := func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(5 * time.Second)
		}
		l.background("two tasks", hang, hang)
		start := time.Now()
		testkit.NoError(t, l.stop())
		testkit.Equal(t, time.Since(start), 5*time.Second, "duration of the stop")
	})
}
