package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

const (
	// compareEvery is how often this instance compares its limits with the limits in force, even while no event arrives.
	compareEvery = time.Second

	// refreshTimeout bounds the wait for limits that other instances already use.
	refreshTimeout = 2 * time.Second

	// behindAtMost is how long an instance that had the limits in force may lack newer limits and still count as ready. A change arrives
	// sooner.
	behindAtMost = 5 * time.Second
)

// staleness tracks whether newer limits than this instance's are in force. If so, this instance decides nothing and takes no event:
// instances with the newer limits get the events.
type staleness struct {
	o       *LimiterOptions
	outage  *outage
	current atomic.Bool // this instance's limits are in force, according to the latest answer

	asked      atomic.Pointer[time.Time] // when the newest call began that confirmed this instance's limits; nil: none did
	confirming *batcher[struct{}, struct{}]

	mu         sync.Mutex
	wasCurrent bool      // this instance's limits were in force at some time
	since      time.Time // when fetching newer limits first failed; zero: no newer limits are in force
	newer      limits.Position
	cause      error // why they cannot be fetched; nil: the limits that can be fetched are older
	logged     bool  // the log says that the limits are outdated
}

const (
	// ConfirmedFor is how long after a confirmation of the limits no post needs another confirmation.
	ConfirmedFor = 500 * time.Millisecond
	// postedWithin is how long after a confirmation a post may begin: it may have to wait for a connection.
	postedWithin = 900 * time.Millisecond
	// MutedAfter is how long after a change of the limits no worker begins a post by older limits.
	MutedAfter = time.Second
)

func newStaleness(o *LimiterOptions, outage *outage) *staleness {
	s := &staleness{o: o, outage: outage}
	s.confirming = newBatcher(func(ctx context.Context, all []struct{}) ([]struct{}, error) { return all, s.confirm(ctx) })
	return s
}

// confirmed reports whether a call that began less than d ago confirmed this instance's limits.
func (s *staleness) confirmed(d time.Duration) bool {
	asked := s.asked.Load()
	return asked != nil && time.Since(*asked) < d
}

// note records that a call confirmed this instance's limits.
func (s *staleness) note(asked time.Time) {
	if last := s.asked.Load(); last == nil || last.Before(asked) {
		s.asked.Store(&asked)
	}
}

// confirm makes sure that this instance has the limits in force. While Redis does not answer, it asks the bucket of the limits.
func (s *staleness) confirm(ctx context.Context) error {
	asked, err := time.Now(), s.outage.mustAnswer()
	if err == nil {
		err = s.compare(ctx)
	}
	switch {
	case err == nil, errors.Is(err, script.ErrStale):
		return err
	case s.o.Refresh == nil: // the limits never change
		return nil
	}
	refreshing, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	if err = s.o.Refresh(refreshing); err == nil {
		s.note(asked)
	}
	return err
}

// keepUp compares this instance's limits with the limits in force until the context ends. Even an instance without events must notice that
// it lags, and that it has caught up.
func (s *staleness) keepUp(ctx context.Context) {
	for await.For(ctx, compareEvery) {
		if s.outage.isAnswering() {
			_ = s.compare(ctx) // the next comparison tries again
		}
	}
}

// compare checks whether this instance's limits are in force. If not, it fetches newer limits.
func (s *staleness) compare(ctx context.Context) error {
	ask := func() error {
		asked := time.Now()
		err := s.o.Redis.Compare(ctx)
		if err == nil {
			s.note(asked)
		}
		return err
	}
	err := ask()
	switch {
	case err == nil:
		s.caughtUp()
	case errors.Is(err, script.ErrStale):
		err = s.catchUp(ctx, err, ask)
	}
	return err
}

// catchUp adopts newer limits and then asks again. It returns the error of the last attempt. If the context has ended, it returns the
// context's error.
func (s *staleness) catchUp(ctx context.Context, stale error, ask func() error) error {
	var cause error
	if s.o.Refresh != nil {
		refreshing, cancel := context.WithTimeout(ctx, refreshTimeout)
		defer cancel()
		for range 3 { // they may change again meanwhile
			if cause = s.o.Refresh(refreshing); cause != nil {
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
	s.fellBehind(store.NewerThan(stale), cause)
	return stale
}

// fellBehind records that newer limits are in force, and why they cannot be fetched.
func (s *staleness) fellBehind(newer limits.Position, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newer, s.cause = newer, cause
	if s.since.IsZero() {
		s.since = time.Now()
		s.current.Store(false)
		s.outage.signal()
	}
	if s.logged || time.Since(s.since) < behindAtMost {
		return
	}
	here := s.o.Redis.Rules().Position
	s.logged = true
	s.o.Logger.Error("limits are outdated: pulling no events", "generation", here.Generation, "revision", here.Revision,
		"newer_generation", newer.Generation, "newer_revision", newer.Revision, "error", s.reason())
}

// caughtUp records that this instance's limits are in force.
func (s *staleness) caughtUp() {
	if s.current.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logged {
		here := s.o.Redis.Rules().Position
		s.o.Logger.Info("limits are current again", "generation", here.Generation, "revision", here.Revision)
	}
	s.wasCurrent, s.since, s.logged, s.cause = true, time.Time{}, false, nil
	s.current.Store(true)
	s.outage.signal()
}

// lags reports whether newer limits are in force that this instance cannot fetch.
func (s *staleness) lags() bool {
	if !s.outage.isAnswering() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.since.IsZero()
}

// ready returns an error if the instance lags and either never had the limits in force or has lagged for behindAtMost.
func (s *staleness) ready() error {
	lags := s.lags()
	s.mu.Lock()
	defer s.mu.Unlock()
	if lags && (s.logged || !s.wasCurrent) {
		return fmt.Errorf("%w: %s, here is %s: %w", script.ErrStale, s.newer, s.o.Redis.Rules().Position, s.reason())
	}
	return nil
}

// errWentBack names the command for operators: only they know which of two states should be in force.
var errWentBack = errors.New("what can be read is older: after a restore, notifier limits adopt puts that in force; another deployment needs a NOTIFIER_REDIS_PREFIX of its own")

// reason returns why newer limits cannot be fetched. The caller holds the lock.
func (s *staleness) reason() error {
	if s.cause != nil {
		return fmt.Errorf("they cannot be read: %w", s.cause)
	}
	return errWentBack
}
