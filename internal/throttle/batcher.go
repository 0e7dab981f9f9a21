package throttle

import (
	"context"
	"slices"
	"sync"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// batcher gathers the items that arrive during a call into the next call. It keeps no goroutine while idle.
type batcher[T, R any] struct {
	call func(ctx context.Context, items []T) ([]R, error) // one result for each item, in their order

	mu      sync.Mutex
	waiting []*batched[T, R]
	running bool
}

type batched[T, R any] struct {
	item   T
	done   chan struct{} // closed once there is a result
	result R
	err    error
}

func newBatcher[T, R any](call func(ctx context.Context, items []T) ([]R, error)) *batcher[T, R] {
	return &batcher[T, R]{call: call}
}

// do submits one item and waits for its result. A cancelled context ends the wait, not the call.
func (b *batcher[T, R]) do(ctx context.Context, item T) (R, error) {
	return b.submit(ctx, item).await(ctx)
}

// submit submits one item. Items are served in the order of submitting.
func (b *batcher[T, R]) submit(ctx context.Context, item T) *batched[T, R] {
	asked := &batched[T, R]{item: item, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, asked)
	if !b.running {
		b.running = true
		go b.run(context.WithoutCancel(ctx))
	}
	return asked
}

// await waits for the result of an item.
func (asked *batched[T, R]) await(ctx context.Context) (R, error) {
	select {
	case <-asked.done:
		return asked.result, asked.err
	case <-ctx.Done():
		var none R
		return none, context.Cause(ctx)
	}
}

func (b *batcher[T, R]) run(ctx context.Context) {
	for {
		b.mu.Lock()
		waiting := b.waiting
		b.waiting = nil
		b.running = len(waiting) > 0
		b.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		for batch := range slices.Chunk(waiting, store.MaxBatch) {
			b.serve(ctx, batch)
		}
	}
}

func (b *batcher[T, R]) serve(ctx context.Context, batch []*batched[T, R]) {
	items := make([]T, len(batch))
	for i, asked := range batch {
		items[i] = asked.item
	}
	results, err := b.call(ctx, items)
	for i, asked := range batch {
		if asked.err = err; err == nil {
			asked.result = results[i]
		}
		close(asked.done)
	}
}
