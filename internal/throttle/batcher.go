package throttle

import (
	"context"
	"sync"
)

// batcher gathers what is asked while a call is under way into one next call. It keeps no goroutine while idle.
type batcher[T, R any] struct {
	call func(ctx context.Context, items []T) ([]R, error) // one result for each item, in their order

	mu      sync.Mutex
	waiting []batched[T, R]
	running bool
}

type batched[T, R any] struct {
	item   T
	result chan<- batchedResult[R]
}

type batchedResult[R any] struct {
	value R
	err   error
}

// do asks for one item and waits for its result. A cancelled context ends the wait, not the call.
func (b *batcher[T, R]) do(ctx context.Context, item T) (R, error) {
	result := make(chan batchedResult[R], 1)
	b.mu.Lock()
	b.waiting = append(b.waiting, batched[T, R]{item, result})
	if !b.running {
		b.running = true
		go b.run(context.WithoutCancel(ctx))
	}
	b.mu.Unlock()
	select {
	case r := <-result:
		return r.value, r.err
	case <-ctx.Done():
		var none R
		return none, context.Cause(ctx)
	}
}

func (b *batcher[T, R]) run(ctx context.Context) {
	for {
		b.mu.Lock()
		batch := b.waiting
		b.waiting = nil
		b.running = len(batch) > 0
		b.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for len(batch) > 0 {
			n := min(len(batch), MaxBatch)
			b.serve(ctx, batch[:n])
			batch = batch[n:]
		}
	}
}

func (b *batcher[T, R]) serve(ctx context.Context, batch []batched[T, R]) {
	items := make([]T, len(batch))
	for i, waiting := range batch {
		items[i] = waiting.item
	}
	values, err := b.call(ctx, items)
	for i, waiting := range batch {
		if err != nil {
			waiting.result <- batchedResult[R]{err: err}
			continue
		}
		waiting.result <- batchedResult[R]{value: values[i]}
	}
}
