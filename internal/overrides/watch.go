package overrides

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Between tries to come back.
	shortestPause = 250 * time.Millisecond
	longestPause  = 5 * time.Second

	// patrolPeriod is how often a watcher asks whether the bucket is still the one that it follows, and whether it has
	// seen all of it. A change that is still on its way then has this long to arrive.
	patrolPeriod = 2 * time.Second
)

var (
	errNotRead  = errors.New("the limits bucket was not read yet")
	errWentBack = errors.New("it went back to an older state, as after a restore")
	errBehind   = errors.New("changes do not arrive")
)

// Watcher follows a bucket. Its methods may run at once, Run only once.
type Watcher struct {
	bucket *Bucket
	apply  func(Snapshot)
	look   chan struct{} // filled to have the bucket looked at now

	mu       sync.Mutex
	away     error     // why what is applied may not be what the bucket holds
	outage   bool      // that was logged
	applied  *Snapshot // in memory of its own
	newest   time.Time // when an override was changed last, as far as is applied
	asked    uint64    // calls of Refresh so far
	answered uint64    // those of them that what is applied is new enough for
	changed  chan struct{}
	due      promise
}

// promise is that the calls of Refresh up to a number are answered once a revision is applied.
type promise struct {
	asked, revision uint64
}

// NewWatcher prepares a watcher that gives snapshots to the function: from one goroutine, the first one even if the
// bucket is empty, and after that one for each change, each of its own memory. One is older than the one before it if the
// bucket went back, as after a restore. The function must not wait for Refresh.
func NewWatcher(js jetstream.JetStream, o Options, apply func(Snapshot)) *Watcher {
	return &Watcher{
		bucket:  newBucket(js, o),
		apply:   apply,
		look:    make(chan struct{}, 1),
		away:    errNotRead,
		changed: make(chan struct{}),
	}
}

// Run follows the bucket until the context ends, through every failure.
func (w *Watcher) Run(ctx context.Context) {
	pause := shortestPause
	for {
		began := time.Now()
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		w.lost(err)
		if time.Since(began) > longestPause {
			pause = shortestPause
		}
		w.rest(ctx, pause)
		pause = min(2*pause, longestPause)
	}
}

// Away is why what was applied may not be what the bucket holds now, or nil. It is not nil before the first snapshot.
func (w *Watcher) Away() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.away
}

// Refresh returns when everything that the bucket held at the time of the call is applied, or with the context's error and
// why the bucket is away. While the bucket is away it has the next try made soon. Calls made at once share one look at the bucket.
func (w *Watcher) Refresh(ctx context.Context) error {
	w.mu.Lock()
	w.asked++
	mine := w.asked
	w.mu.Unlock()
	select {
	case w.look <- struct{}{}:
	default: // it will be looked at, and that has not begun
	}
	for {
		w.mu.Lock()
		done, changed := w.answered >= mine, w.changed
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if away := w.Away(); away != nil {
				return fmt.Errorf("%w (%w)", away, context.Cause(ctx))
			}
			return context.Cause(ctx)
		}
	}
}

// mostChanges bounds what Changes returns.
const mostChanges = 20

// Changes returns which overrides were changed after a time, by the server's clock: the newest 20, the oldest first. It asks
// the server only if there are any. The error is the server's, or why nothing was read yet.
func (w *Watcher) Changes(ctx context.Context, since time.Time) ([]Change, error) {
	w.mu.Lock()
	away, read, newest := w.away, w.applied != nil, w.newest
	w.mu.Unlock()
	switch {
	case !read:
		return nil, away
	case !newest.After(since):
		return nil, nil
	}
	changes, err := w.bucket.History(ctx)
	if err != nil {
		return nil, err
	}
	changes = slices.DeleteFunc(changes, func(c Change) bool { return c.Adopted || !c.Changed.After(since) })
	return changes[max(0, len(changes)-mostChanges):], nil
}

// follow reads the bucket and applies its changes until something is wrong with that.
func (w *Watcher) follow(ctx context.Context) error {
	asked := w.questions()
	if err := w.bucket.find(ctx); err != nil {
		return err
	}
	reading, records, err := w.bucket.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return w.bucket.fail("reading", err)
	}
	defer reading.stop()
	state := newState(reading.start)
	for _, record := range records {
		state.take(w.bucket, record)
	}
	w.advance(state)
	w.back(asked)

	ctx, stop := context.WithCancelCause(ctx)
	var patrol sync.WaitGroup
	patrol.Go(func() { stop(w.patrol(ctx, reading.start.created)) })
	defer patrol.Wait()
	defer stop(nil)
	for {
		record, err := reading.next(ctx)
		if err != nil {
			return w.bucket.fail("following", err)
		}
		if record == nil {
			continue
		}
		state.take(w.bucket, *record)
		w.advance(state)
	}
}

// advance applies a state that is not the one applied already. After a restore two states may have one revision.
func (w *Watcher) advance(s *state) {
	next := s.snapshot()
	w.mu.Lock()
	applied := w.applied
	w.mu.Unlock()
	if applied != nil && applied.Generation == next.Generation && applied.Revision == next.Revision &&
		slices.Equal(applied.Entries, next.Entries) {
		return
	}
	w.apply(s.snapshot())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applied, w.newest = &next, s.changed
	if next.Revision >= w.due.revision {
		w.answer(w.due.asked)
	}
}

// patrol looks at the bucket from time to time, and whenever somebody asks, until it is not as it should be.
func (w *Watcher) patrol(ctx context.Context, created time.Time) error {
	round := time.NewTicker(patrolPeriod)
	defer round.Stop()
	var missing uint64 // a revision that had not arrived at an earlier look, or 0
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-round.C:
		case <-w.look:
		}
		asked, before := w.questions(), w.revision()
		now, err := w.bucket.status(ctx)
		switch {
		case err != nil:
			return err
		case !now.created.Equal(created):
			return errMadeAnew
		case now.last < before:
			return errWentBack
		}
		switch arrived := w.promise(asked, now.last); {
		case arrived >= now.last:
			missing = 0
		case arrived >= missing:
			missing, since = now.last, time.Now()
		case time.Since(since) >= patrolPeriod:
			return errBehind
		}
	}
}

// promise has calls of Refresh answered once the revision is applied, and returns the one that is.
func (w *Watcher) promise(asked, revision uint64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = promise{asked, revision}
	if w.applied.Revision >= revision {
		w.answer(asked)
	}
	return w.applied.Revision
}

// revision is the one that is applied.
func (w *Watcher) revision() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.applied.Revision
}

// questions is how many calls of Refresh were made so far.
func (w *Watcher) questions() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

// answer lets calls of Refresh return. The lock is held.
func (w *Watcher) answer(asked uint64) {
	if asked > w.answered {
		w.answered = asked
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

// lost notes that the bucket cannot be followed.
func (w *Watcher) lost(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = err
	if !w.outage {
		w.outage = true
		w.bucket.o.Logger.Warn("limits bucket is away, last known limits stay in force", "bucket", w.bucket.o.Name, "error", err)
	}
}

// back notes that everything that it held is applied.
func (w *Watcher) back(asked uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer(asked)
	w.away = nil
	if w.outage {
		w.outage = false
		w.bucket.o.Logger.Info("limits bucket is back", "bucket", w.bucket.o.Name,
			"generation", w.applied.Generation, "revision", w.applied.Revision)
	}
}

// rest waits before the next try. Refresh shortens it, but not below the shortest pause.
func (w *Watcher) rest(ctx context.Context, pause time.Duration) {
	pause = pause*3/4 + rand.N(pause/2) //nolint:gosec // no secret depends on it
	least := time.NewTimer(min(pause, shortestPause))
	defer least.Stop()
	select {
	case <-ctx.Done():
		return
	case <-least.C:
	}
	rest := time.NewTimer(pause - min(pause, shortestPause))
	defer rest.Stop()
	select {
	case <-ctx.Done():
	case <-rest.C:
	case <-w.look:
	}
}
