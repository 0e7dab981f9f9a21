package overrides

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Pauses between attempts to read the bucket.
	shortestPause = 250 * time.Millisecond
	longestPause  = 5 * time.Second

	// healthPeriod is how often a watcher compares what it has applied with the bucket. A change that is on its way then
	// has this long to arrive.
	healthPeriod = 2 * time.Second
)

var (
	errNotRead  = errors.New("the limits bucket was not read yet")
	errWentBack = errors.New("it went back to an older state, as after a restore")
	errBehind   = errors.New("changes do not arrive")
)

// Watcher mirrors a bucket. Its methods may run at once, Run only once.
type Watcher struct {
	bucket *Bucket
	apply  func(Snapshot)
	look   chan struct{} // filled to have the health check run now

	mu          sync.Mutex
	unavailable error         // why the applied snapshot may not be what the bucket holds
	outage      bool          // the log has a line about unavailable
	applied     *Snapshot     // shares no memory with the one that was passed on
	newest      time.Time     // time of the newest change of an override that is applied
	served      uint64        // calls of Refresh that may return
	changed     chan struct{} // closed when served changes

	calls     atomic.Uint64 // of Refresh so far
	waiting   waiter        // belongs to Run; so do the next two fields
	tendAgain time.Time     // nothing is stored before; zero unless the last attempt failed, which the log has said
	forged    place         // of the newest forged message that was counted
}

// waiter is the calls of Refresh up to a number. A waiter is released once the watcher has applied the revision it waits for.
type waiter struct {
	calls, revision uint64
}

// place is a revision of a bucket.
type place struct {
	generation int64
	revision   uint64
}

// NewWatcher prepares a watcher. It passes snapshots to apply, from one goroutine: the first one even if the bucket is
// empty, then one for each change, each with memory of its own. A snapshot is older than the one before it if the bucket
// went back, as after a restore. The function must not wait for Refresh.
func NewWatcher(js jetstream.JetStream, o Options, apply func(Snapshot)) *Watcher {
	return &Watcher{
		bucket:      newBucket(js, o),
		apply:       apply,
		look:        make(chan struct{}, 1),
		unavailable: errNotRead,
		changed:     make(chan struct{}),
	}
}

// Run mirrors the bucket until the context ends, through every failure.
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
		w.note(err)
		if time.Since(began) > longestPause {
			pauses.Reset()
		}
		w.sleep(ctx, pauses.NextBackOff())
	}
}

// Unavailable returns why the applied snapshot may not be what the bucket holds, or nil. It is not nil before the first
// snapshot.
func (w *Watcher) Unavailable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unavailable
}

// Refresh returns when everything that the bucket held at the time of the call is applied, or with the context's error and
// why the bucket is unavailable. If the bucket is unavailable, Refresh makes the next attempt come soon. Calls made at once
// share one look at the bucket.
func (w *Watcher) Refresh(ctx context.Context) error {
	call := w.calls.Add(1)
	select {
	case w.look <- struct{}{}:
	default: // a health check is due and has not begun
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

// mostChanges bounds what Changes returns.
const mostChanges = 20

// Changes returns which overrides were changed after a time, by the server's clock: the newest 20, the oldest first. It asks
// the server only if there are any. The error is the server's, or why nothing was read yet.
func (w *Watcher) Changes(ctx context.Context, since time.Time) ([]Change, error) {
	w.mu.Lock()
	reason, read, newest := w.unavailable, w.applied != nil, w.newest
	w.mu.Unlock()
	switch {
	case !read:
		return nil, reason
	case !newest.After(since):
		return nil, nil
	}
	history, err := w.bucket.History(ctx)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, past := range history {
		if !past.Adopted && past.Changed.After(since) {
			changes = append(changes, past.Change)
		}
	}
	return changes[max(0, len(changes)-mostChanges):], nil
}

// mirror reads the bucket and applies its changes until that fails.
func (w *Watcher) mirror(ctx context.Context) error {
	calls := w.calls.Load()
	if err := w.bucket.find(ctx); err != nil {
		return err
	}
	reading, err := w.bucket.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return w.bucket.fail("reading", err)
	}
	defer reading.stop()
	state := w.bucket.newState(reading)
	state.remember(w.applied)
	w.countForged(state, reading.stored...)
	w.advance(state)
	w.note(nil)
	w.release(waiter{calls, w.tend(ctx, state, reading.info.TimeStamp)})

	health := healthCheck{created: reading.info.Created}
	rounds := time.Tick(healthPeriod)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case a := <-reading.arrived:
			change, err := reading.change(a)
			if err != nil {
				return w.bucket.fail("following", err)
			}
			w.countForged(state, change)
			state.take(w.bucket, change)
			w.advance(state)
			continue
		case <-rounds:
		case <-w.look:
		}
		if err := w.check(ctx, &health); err != nil {
			return w.bucket.fail("following", err)
		}
		w.tend(ctx, state, health.now)
	}
}

// countForged counts the forged messages among changes, each once.
func (w *Watcher) countForged(s *state, changes ...Change) {
	if w.forged.generation != s.generation {
		w.forged = place{generation: s.generation}
	}
	n := 0
	for _, c := range changes {
		if c.forged && c.Revision > w.forged.revision {
			n++
			w.forged.revision = c.Revision
		}
	}
	if n > 0 && w.bucket.o.Forged != nil {
		w.bucket.o.Forged(n)
	}
}

// advance applies a state unless it is applied already. After a restore two states may have one revision.
func (w *Watcher) advance(s *state) {
	next := s.snapshot()
	applied := w.applied // which nobody else sets
	if applied != nil && applied.Generation == next.Generation && applied.Revision == next.Revision &&
		slices.Equal(applied.Entries, next.Entries) {
		return
	}
	w.apply(s.snapshot())
	w.mu.Lock()
	w.applied, w.newest = &next, s.changed
	w.mu.Unlock()
	w.release(w.waiting)
}

// healthCheck is what a watcher remembers from one look at the bucket to the next.
type healthCheck struct {
	created time.Time
	now     time.Time // by the server's clock at the newest look
	missing uint64    // a revision that had not arrived at an earlier look, or 0
	since   time.Time
}

// check compares what is applied with what the bucket's leader has, and has calls of Refresh wait for that. The error says
// why the bucket has to be read anew.
func (w *Watcher) check(ctx context.Context, h *healthCheck) error {
	calls := w.calls.Load()
	stream, err := w.bucket.look(ctx)
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

// release lets the calls of a waiter return if its revision is applied, else later.
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

// note keeps why the bucket cannot be mirrored, or nil if all that it held is applied. The log has a line when that changes.
func (w *Watcher) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began, ended := err != nil && !w.outage, err == nil && w.outage
	w.unavailable, w.outage = err, err != nil
	if began {
		w.bucket.o.Logger.Warn("limits bucket is unavailable, last known limits stay in force", "bucket", w.bucket.o.Name, "error", err)
	}
	if ended {
		w.bucket.o.Logger.Info("limits bucket is back", "bucket", w.bucket.o.Name,
			"generation", w.applied.Generation, "revision", w.applied.Revision)
	}
}

// sleep waits before the next attempt. Refresh shortens the pause, but not below the shortest one.
func (w *Watcher) sleep(ctx context.Context, pause time.Duration) {
	least := min(pause, shortestPause)
	select {
	case <-ctx.Done():
		return
	case <-time.After(least):
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause - least):
	case <-w.look:
	}
}
