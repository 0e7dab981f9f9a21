package overrides

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/oplog"
)

const (
	// Pauses between attempts to read the bucket.
	shortestPause = 250 * time.Millisecond
	longestPause  = 5 * time.Second

	// healthPeriod is the interval between two checks of the applied state against the bucket. A change has this long to arrive.
	healthPeriod = 2 * time.Second
)

var (
	errNotRead  = errors.New("the limits bucket has not been read yet")
	errWentBack = errors.New("it went back to an older state, probably by a restore")
	errBehind   = errors.New("changes do not arrive")
)

// Watcher mirrors a bucket. Its methods may be called concurrently, Run only once.
type Watcher struct {
	bucket *Bucket
	apply  func(Snapshot) error
	look   chan struct{} // triggers the health check
	health *oplog.Condition

	mu      sync.Mutex
	applied *Snapshot     // the snapshot that apply got last, with memory of its own
	served  uint64        // number of calls of Refresh that may return
	changed chan struct{} // closed when served changes

	calls     atomic.Uint64 // of Refresh so far
	waiting   waiter        // belongs to Run; so do the next two fields
	tendAgain time.Time     // tend stores nothing before; zero unless the last attempt failed
	forged    struct {      // of the newest counted forged message
		generation int64
		revision   uint64
	}
}

// waiter has the calls of Refresh up to a number. They return once the watcher has applied the revision.
type waiter struct {
	calls, revision uint64
}

// NewWatcher returns a watcher. Its Run calls apply from one goroutine: first with the bucket's state, even if the bucket is empty, then
// after each change. Each snapshot has memory of its own. After a restore of the bucket, a snapshot may be older than the previous
// snapshot. If apply returns an error, Run reads the bucket again after a pause. The function must not wait for Refresh.
func NewWatcher(js jetstream.JetStream, o Options, apply func(Snapshot) error) *Watcher {
	return &Watcher{
		bucket: newBucket(js, o),
		apply:  apply,
		look:   make(chan struct{}, 1),
		health: oplog.NewCondition(o.Logger.With("bucket", o.Name),
			"limits bucket is unavailable: keeping the last known limits", "limits bucket is available again"),
		changed: make(chan struct{}),
	}
}

// Run mirrors the bucket until the context ends. It retries after every failure.
func (w *Watcher) Run(ctx context.Context) {
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: shortestPause, MaxInterval: longestPause, Multiplier: 2, RandomizationFactor: .25,
	}
	for {
		began := time.Now()
		err := w.mirror(ctx)
		if ctx.Err() != nil {
			return
		}
		w.health.Note(err)
		if time.Since(began) > longestPause {
			pauses.Reset()
		}
		w.sleep(ctx, pauses.NextBackOff())
	}
}

// Unavailable returns why the applied snapshot may differ from the bucket, or is not there yet; nil: the watcher follows the bucket.
func (w *Watcher) Unavailable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.applied == nil {
		return cmp.Or(w.health.Err(), errNotRead)
	}
	return w.health.Err()
}

// Refresh waits until the watcher has applied everything that the bucket held at the time of the call. If the context ends first, Refresh
// returns its error and why the bucket is unavailable. The next attempt to reach the bucket starts soon, one for all concurrent calls.
func (w *Watcher) Refresh(ctx context.Context) error {
	call := w.calls.Add(1)
	select {
	case w.look <- struct{}{}:
	default: // a health check is already due
	}
	for {
		w.mu.Lock()
		done, changed := w.served >= call, w.changed
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if reason := w.Unavailable(); reason != nil {
				return fmt.Errorf("%w (%w)", reason, context.Cause(ctx))
			}
			return context.Cause(ctx)
		}
	}
}

// Changes returns the changes of overrides after a time, by the server's clock, the oldest first. The bucket bounds their number: it keeps the
// last 64 changes of each override. Changes sends a request only if there are any. Before the first snapshot, it returns the error of Unavailable.
func (w *Watcher) Changes(ctx context.Context, since time.Time) ([]Change, error) {
	w.mu.Lock()
	applied := w.applied
	w.mu.Unlock()
	switch {
	case applied == nil:
		return nil, w.Unavailable()
	case !applied.changed.After(since):
		return nil, nil
	}
	history, err := w.bucket.History(ctx)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, past := range history {
		if !past.Adopted() && past.Changed.After(since) {
			changes = append(changes, past.Change)
		}
	}
	return changes, nil
}

func (w *Watcher) mirror(ctx context.Context) error {
	calls := w.calls.Load()
	if err := w.bucket.find(ctx); err != nil {
		return err
	}
	reading, err := w.bucket.source.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return w.bucket.source.fail("reading", err)
	}
	defer reading.stop()
	state := w.bucket.newState(reading)
	state.remember(w.applied)
	w.countForged(state, reading.changes...)
	if err := w.advance(state); err != nil {
		return err
	}
	w.health.Note(nil, "generation", w.applied.Generation, "revision", w.applied.Revision)
	w.release(waiter{calls, w.tend(ctx, state, reading.read)})

	health := healthCheck{created: reading.created}
	rounds := time.Tick(healthPeriod)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case a := <-reading.arrived:
			change, err := reading.change(a)
			if err != nil {
				return w.bucket.source.fail("following", err)
			}
			w.countForged(state, change)
			state.take(w.bucket, change)
			if err := w.advance(state); err != nil {
				return err
			}
			continue
		case <-rounds:
		case <-w.look:
		}
		if err := w.check(ctx, &health); err != nil {
			return w.bucket.source.fail("following", err)
		}
		w.tend(ctx, state, health.now)
	}
}

// countForged reports the forged messages among changes, each once.
func (w *Watcher) countForged(s *state, changes ...Change) {
	if w.forged.generation != s.Generation {
		w.forged.generation, w.forged.revision = s.Generation, 0
	}
	n := 0
	for _, c := range changes {
		if c.stored.forged && c.Revision > w.forged.revision {
			n++
			w.forged.revision = c.Revision
		}
	}
	if n > 0 && w.bucket.o.Forged != nil {
		w.bucket.o.Forged(n)
	}
}

// advance applies a state unless it is already applied. After a restore, two different states may have the same revision.
func (w *Watcher) advance(s *state) error {
	next := s.snapshot()
	last := w.applied // only this goroutine sets it
	if last != nil && last.Generation == next.Generation && last.Revision == next.Revision &&
		slices.Equal(last.Entries, next.Entries) && slices.Equal(last.Mutes, next.Mutes) {
		return nil
	}
	if err := w.apply(s.snapshot()); err != nil {
		return err
	}
	w.mu.Lock()
	w.applied = &next
	w.mu.Unlock()
	w.release(w.waiting)
	return nil
}

type healthCheck struct {
	created time.Time
	now     time.Time // time of the latest check, by the server's clock
	missing uint64    // a revision that had not arrived at an earlier check; 0: there is none
	since   time.Time // when missing was set
}

// check makes calls of Refresh wait for the revision of the bucket's leader. It returns an error if the bucket must be read again.
func (w *Watcher) check(ctx context.Context, h *healthCheck) error {
	calls := w.calls.Load()
	stream, err := w.bucket.source.look(ctx)
	if err != nil {
		return err
	}
	now := stream.CachedInfo()
	last, applied := now.State.LastSeq, w.applied.Revision
	h.now = now.TimeStamp
	switch {
	case !now.Created.Equal(h.created):
		return errMadeAnew
	case last < applied:
		return errWentBack
	}
	w.release(waiter{calls, last})
	switch {
	case last == applied:
		h.missing = 0
	case applied >= h.missing:
		h.missing, h.since = last, time.Now()
	case time.Since(h.since) >= healthPeriod:
		return errBehind
	}
	return nil
}

// release ends the calls of a waiter as soon as its revision is applied.
func (w *Watcher) release(next waiter) {
	w.waiting = next
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.applied.Revision >= next.revision && next.calls > w.served {
		w.served = next.calls
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

// sleep waits before the next attempt. Refresh shortens the pause, but not below shortestPause.
func (w *Watcher) sleep(ctx context.Context, pause time.Duration) {
	least := min(pause, shortestPause)
	if !await.For(ctx, least) {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause - least):
	case <-w.look:
	}
}
