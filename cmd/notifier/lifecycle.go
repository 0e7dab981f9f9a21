package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// lifecycle stops what was started, the last first, within one deadline. Stopping it again does nothing.
type lifecycle struct {
	timeout time.Duration

	once  sync.Once
	steps []stopStep
	err   error
}

type stopStep struct {
	name string
	stop func(ctx context.Context) error
}

// add puts a step in front of those that are there.
func (l *lifecycle) add(name string, stop func(ctx context.Context) error) {
	l.steps = append(l.steps, stopStep{name, stop})
}

// background runs a task until the lifecycle stops, and waits for its end then.
func (l *lifecycle) background(name string, task func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		task(ctx)
	}()
	l.add(name, func(stopping context.Context) error {
		cancel()
		select {
		case <-done:
			return nil
		case <-stopping.Done():
			return context.Cause(stopping)
		}
	})
}

func (l *lifecycle) stop() error {
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
		defer cancel()
		for _, step := range slices.Backward(l.steps) {
			if err := step.stop(ctx); err != nil {
				l.err = errors.Join(l.err, fmt.Errorf("stopping %s: %w", step.name, err))
			}
		}
	})
	return l.err
}
