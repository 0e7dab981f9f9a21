package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// compareEvery is how often the limits here are compared with those in force, also while there is no event.
	compareEvery = time.Second

	// refreshTimeout bounds the wait for limits that others use already.
	refreshTimeout = 2 * time.Second

	// behindAtMost is how long an instance that had the limits in force may lack newer ones and still count as ready: a
	// change on its way arrives sooner.
	behindAtMost = 5 * time.Second
)

// behind is what a gate knows of limits in force that are newer than its own. While there are any, nothing is decided here
// and no event is taken: others, who know them, get the events. All but `current` belongs to the gate's lock.
type behind struct {
	current atomic.Bool // the limits here are those in force, as far as is known
	everSo  bool        // they were once
	since   time.Time   // when newer ones could not be had first; zero: there are none
	newer   Position
	cause   error // why they cannot be had; nil: what can be had is older
	told    bool
}

// keepUp compares the limits here with those in force until the context ends. So an instance without events notices too
// that it is behind, and that it has caught up.
func (g *Gate) keepUp(ctx context.Context) {
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if state, _ := g.currentState(); state == answering {
			g.compare(ctx)
		}
	}
}

// compare finds out whether the limits here are those in force. Who is turned away looks for newer ones first.
func (g *Gate) compare(ctx context.Context) {
	err := g.o.Redis.compare(ctx)
	switch {
	case err == nil:
		g.caughtUp()
	case errors.Is(err, ErrStale):
		_ = g.catchUp(ctx, err, func() error { return g.o.Redis.compare(ctx) })
	}
}

// catchUp has newer limits adopted and then asks again. The error is what the last question got, or the context's.
func (g *Gate) catchUp(ctx context.Context, stale error, ask func() error) error {
	var cause error
	if g.o.Refresh != nil {
		refreshing, cancel := context.WithTimeout(ctx, refreshTimeout)
		defer cancel()
		for range 3 { // they may change again meanwhile
			if cause = g.o.Refresh(refreshing); cause != nil {
				break
			}
			err := ask()
			if err == nil {
				g.caughtUp()
				return nil
			}
			if !errors.Is(err, ErrStale) {
				return err
			}
			stale = err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	g.fellBehind(newerThan(stale), cause)
	return stale
}

// fellBehind notes that newer limits are in force and why they cannot be had.
func (g *Gate) fellBehind(newer Position, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &g.behind
	b.newer, b.cause = newer, cause
	if b.since.IsZero() {
		b.since = time.Now()
		b.current.Store(false)
		g.signal()
	}
	if b.told || time.Since(b.since) < behindAtMost {
		return
	}
	b.told = true
	here := g.rules.Load()
	g.o.Logger.Error("limits here are older than those in force, no events are taken", "generation", here.Generation, "revision", here.Revision,
		"newer_generation", newer.Generation, "newer_revision", newer.Revision, "error", b.reason())
}

// caughtUp notes that the limits here are those in force.
func (g *Gate) caughtUp() {
	if g.behind.current.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &g.behind
	if b.told {
		here := g.rules.Load()
		g.o.Logger.Info("limits here are those in force again", "generation", here.Generation, "revision", here.Revision)
	}
	b.everSo, b.since, b.told, b.cause = true, time.Time{}, false, nil
	b.current.Store(true)
	g.signal()
}

// lags tells whether newer limits are in force that cannot be had. The caller holds the lock.
func (g *Gate) lags() bool { return g.state == answering && !g.behind.since.IsZero() }

// notReady is why an instance that lags is not ready, or nil. The caller holds the lock.
func (g *Gate) notReady() error {
	if b := &g.behind; g.lags() && (b.told || !b.everSo) {
		return fmt.Errorf("%w: %s, here is %s: %w", ErrStale, b.newer, g.rules.Load().Position(), b.reason())
	}
	return nil
}

// errWentBack is for operators, who alone can tell which of two states is to be in force.
var errWentBack = errors.New("what can be read is older, as after a restore; notifier limits adopt puts that in force")

// reason is why newer limits cannot be had. The caller holds the lock.
func (b *behind) reason() error {
	if b.cause != nil {
		return fmt.Errorf("they cannot be read: %w", b.cause)
	}
	return errWentBack
}
