package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// lifecycle stops what was started, in reverse order and within one deadline.
type lifecycle struct {
	timeout time.Duration
	steps   []stopStep
}

type stopStep struct {
	name string
	stop func(ctx context.Context) error
}

// add adds a step that is stopped before the earlier ones.
func (l *lifecycle) add(name string, stop func(ctx context.Context) error) {
	l.steps = append(l.steps, stopStep{name, stop})
}

// background runs tasks until the lifecycle stops, which ends them together and waits for them to return.
func (l *lifecycle) background(name string, tasks ...func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, task := range tasks {
		running.Go(func() { task(ctx) })
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
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

// serve runs a server until the lifecycle stops.
func (l *lifecycle) serve(name string, server interface {
	Serve() error
	Shutdown(ctx context.Context) error
},
) {
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	l.add(name, func(stopping context.Context) error { return errors.Join(server.Shutdown(stopping), <-served) })
}

func (l *lifecycle) stop() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	for _, step := range slices.Backward(l.steps) {
		if stopErr := step.stop(ctx); stopErr != nil {
			err = errors.Join(err, fmt.Errorf("stopping %s: %w", step.name, stopErr))
		}
	}
	return err
}
