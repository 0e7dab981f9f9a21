package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// What was started last is stopped first, and a step that fails keeps none from its turn.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	errStep := errors.New("it did not stop")
	var stopped []string
	l := &lifecycle{timeout: patience}
	step := func(name string, err error) {
		l.add(name, func(ctx context.Context) error {
			if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
				t.Errorf("%s: it is stopped without a deadline, or too late", name)
			}
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
	if !errors.Is(err, errStep) || !strings.Contains(err.Error(), "stopping first: it did not stop") || !strings.Contains(err.Error(), "stopping fourth: ") {
		t.Errorf("the error is %v, want both, with the names of their steps", err)
	}
}

// All steps share one deadline: one that hangs is left behind, and the others are stopped all the same.
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
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "a task that hangs") {
			t.Errorf("the error is %v, want that the task is left behind", err)
		}
		if took := time.Since(start); took != 5*time.Second || !reached {
			t.Errorf("it took %v, and the other step was stopped: %t", took, reached)
		}
		close(hang)
	})
}
