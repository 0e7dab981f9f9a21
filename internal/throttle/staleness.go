package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

const (
	// compareEvery is how often the limits here are compared with those in force, also while there is no event.
	compareEvery = time.Second

	// refreshTimeout bounds the wait for limits that others use already.
	refreshTimeout = 2 * time.Second

	// behindAtMost is how long an instance that had the limits in force may lack newer ones and still count as ready. A change arrives
	// sooner.
	behindAtMost = 5 * time.Second
)

// staleness is what is known of limits in force that are newer than those here. While there are any, this instance decides nothing and takes
// no event: instances that know these limits get the events.
type staleness struct {
	*LimiterOptions
	outage  *outage
	current atomic.Bool // the limits here are those in force, as far as is known

	mu     sync.Mutex
	everSo bool      // the limits here were those in force once
	since  time.Time // when newer ones could not be had first; zero: there are none
	newer  limits.Position
	cause  error // why they cannot be had; nil: the limits that can be had are older
	told   bool
}

// keepUp compares the limits here with those in force until the context ends: also an instance without events has to notice that it is
// behind, and that it has caught up.
func (s *staleness) keepUp(ctx context.Context) {
	repeat(ctx, compareEvery, func(time.Time) {
		if s.outage.isAnswering() {
			s.compare(ctx)
		}
	})
}

// compare finds out whether the limits here are those in force. If they are not, it looks for newer ones.
func (s *staleness) compare(ctx context.Context) {
	err := s.Redis.compare(ctx)
	switch {
	case err == nil:
		s.caughtUp()
	case errors.Is(err, script.ErrStale):
		_ = s.catchUp(ctx, err, func() error { return s.Redis.compare(ctx) })
	}
}

// catchUp has newer limits adopted and then asks again. The error is that of the last question, or the context's.
func (s *staleness) catchUp(ctx context.Context, stale error, ask func() error) error {
	var cause error
	if s.Refresh != nil {
		refreshing, cancel := context.WithTimeout(ctx, refreshTimeout)
		defer cancel()
		for range 3 { // they may change again meanwhile
			if cause = s.Refresh(refreshing); cause != nil {
				break
			}
			err := ask()
			if err == nil {
				s.caughtUp()
				return nil
			}
			if !errors.Is(err, script.ErrStale) {
				return err
			}
			stale = err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.fellBehind(newerThan(stale), cause)
	return stale
}

// fellBehind notes that newer limits are in force and why they cannot be had.
func (s *staleness) fellBehind(newer limits.Position, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newer, s.cause = newer, cause
	if s.since.IsZero() {
		s.since = time.Now()
		s.current.Store(false)
		s.outage.signal()
	}
	if s.told || time.Since(s.since) < behindAtMost {
		return
	}
	here := s.Redis.rules().Position
	s.told = true
	s.Logger.Error("limits here are older than those in force, no events are taken", "generation", here.Generation, "revision", here.Revision,
		"newer_generation", newer.Generation, "newer_revision", newer.Revision, "error", s.reason())
}

// caughtUp notes that the limits here are those in force.
func (s *staleness) caughtUp() {
	if s.current.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told {
		here := s.Redis.rules().Position
		s.Logger.Info("limits here are those in force again", "generation", here.Generation, "revision", here.Revision)
	}
	s.everSo, s.since, s.told, s.cause = true, time.Time{}, false, nil
	s.current.Store(true)
	s.outage.signal()
}

// lags tells whether newer limits are in force that cannot be had.
func (s *staleness) lags() bool {
	if !s.outage.isAnswering() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.since.IsZero()
}

// ready is why an instance that lags is not ready, or nil.
func (s *staleness) ready() error {
	lags := s.lags()
	s.mu.Lock()
	defer s.mu.Unlock()
	if lags && (s.told || !s.everSo) {
		return fmt.Errorf("%w: %s, here is %s: %w", script.ErrStale, s.newer, s.Redis.rules().Position, s.reason())
	}
	return nil
}

// errWentBack tells operators what to do: only they know which of two states is to be in force.
var errWentBack = errors.New("what can be read is older, as after a restore; notifier limits adopt puts that in force")

// reason is why newer limits cannot be had. The caller holds the lock.
func (s *staleness) reason() error {
	if s.cause != nil {
		return fmt.Errorf("they cannot be read: %w", s.cause)
	}
	return errWentBack
}
