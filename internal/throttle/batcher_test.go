package throttle

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestBatcherGathersWhatIsAskedDuringACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sizes []int
		release := make(chan struct{})
		b := batcher[int, int]{call: func(_ context.Context, items []int) ([]int, error) {
			sizes = append(sizes, len(items))
			<-release
			doubled := make([]int, len(items))
			for i, item := range items {
				doubled[i] = 2 * item
			}
			return doubled, nil
		}}
		var work sync.WaitGroup
		ask := func(item int) {
			work.Go(func() {
				testkit.Equal(t, testkit.Must(b.do(t.Context(), item))(t), 2*item, "item %d", item)
			})
		}
		ask(1)
		synctest.Wait()
		for item := range store.MaxBatch + 10 {
			ask(item)
		}
		synctest.Wait()
		close(release)
		work.Wait()
		synctest.Wait()
		testkit.EqualSlices(t, sizes, []int{1, store.MaxBatch, 10}, "sizes of the calls")
		testkit.Equal(t, b.running, false, "running without a question")
	})
}

func TestBatcherErrorIsEverybodys(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	b := batcher[int, int]{call: func(context.Context, []int) ([]int, error) { return nil, broken }}
	testkit.AtOnce(20, func(int) {
		_, err := b.do(t.Context(), 1)
		testkit.Fails(t, "error", err, broken)
	})
}

func TestBatcherCancelledWaitLeavesTheCallAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release, done := make(chan struct{}), false
		b := batcher[int, int]{call: func(ctx context.Context, items []int) ([]int, error) {
			<-release
			done = ctx.Err() == nil
			return items, nil
		}}
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := b.do(ctx, 1)
			result <- err
		}()
		synctest.Wait()
		cancel(stopped)
		testkit.Fails(t, "error", <-result, stopped)
		close(release)
		synctest.Wait()
		testkit.Equal(t, done, true, "the call outlives the wait")
	})
}
