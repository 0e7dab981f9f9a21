package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// Policy says what happens while Redis is unavailable.
type Policy string

// The failure policies.
const (
	Hold   Policy = "hold"   // wait; events stay in JetStream
	Local  Policy = "local"  // after the grace, each instance decides by its share of every limit
	Open   Policy = "open"   // after the grace, everything is sent
	Closed Policy = "closed" // after the grace, everything is dropped
)

// outage tracks whether Redis answers, and what Redis has missed. The limiter queries the outage, and reports failed calls to it. The outage
// knows nothing of the limiter. docs/architecture.md has a picture of its states.
type outage struct {
	*LimiterOptions
	logOnce *logOnce

	// Both are called without the lock.
	forget   func()         // drops what was learned from Redis, which may lose its data
	returned func(*granted) // notes that Redis has returned the slots of a refunded event

	mu          sync.Mutex
	state       outageState
	changed     chan struct{} // closed and replaced at each change that may end a wait
	since       time.Time     // of the state
	cause       error         // why Redis does not answer
	answered    bool          // Redis has answered once
	unsynced    []*granted    // admitted, delivered or refunded without Redis knowing
	lostReplies []lostReply
}

type outageState int

const (
	unavailable outageState = iota // Redis does not answer, and no policy acts
	answering                      // Redis decides
	acting                         // the failure policy decides
)

// probeEvery is how often an unavailable Redis is tried.
const probeEvery = 250 * time.Millisecond

// newOutage begins in the state unavailable.
func newOutage(o *LimiterOptions, logOnce *logOnce, forget func(), returned func(*granted)) *outage {
	return &outage{
		LimiterOptions: o, logOnce: logOnce, forget: forget, returned: returned,
		changed: make(chan struct{}), since: time.Now(), cause: errors.New("not reached yet"),
	}
}

func unavailableBecause(cause error) error { return fmt.Errorf("%w: %w", script.ErrUnavailable, cause) }

// current returns the state, and why Redis does not answer.
func (o *outage) current() (outageState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state, o.cause
}

func (o *outage) isAnswering() bool {
	state, _ := o.current()
	return state == answering
}

// mustAnswer returns nil if Redis answers, and otherwise the reason why it does not.
func (o *outage) mustAnswer() error {
	if state, cause := o.current(); state != answering {
		return unavailableBecause(cause)
	}
	return nil
}

// watch returns the state, and a channel that is closed when it changes.
func (o *outage) watch() (outageState, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state, o.changed
}

// signal makes waiting goroutines check again.
func (o *outage) signal() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.signalLocked()
}

// signalLocked is signal for a caller that holds the lock.
func (o *outage) signalLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// await blocks until events can be decided. It returns nil or the context's error. While Redis answers, blocked may report that events
// cannot be decided. Code that changes the answer of blocked must call signal.
func (o *outage) await(ctx context.Context, blocked func() bool) error {
	for {
		state, changed := o.watch()
		if state != unavailable && !blocked() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ready returns nil while Redis or the failure policy decides.
func (o *outage) ready() error {
	if state, cause := o.current(); state == unavailable {
		return unavailableBecause(cause)
	}
	return nil
}

// run probes Redis until the context ends. While Redis answers, each tick sends what single calls failed to send. Then check makes a call,
// so that an idle worker notices that Redis is unavailable.
func (o *outage) run(ctx context.Context, every time.Duration, check func(context.Context) error) {
	ticks := time.Tick(every)
	for ctx.Err() == nil {
		state, changed := o.watch()
		if state != answering {
			o.probe(ctx)
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-ticks:
			if _, err := o.sync(ctx); err != nil && ctx.Err() == nil {
				o.lost(err)
				continue
			}
			if err := check(ctx); errors.Is(err, script.ErrUnavailable) && ctx.Err() == nil {
				o.lost(err)
			}
		}
	}
}

// works checks that Redis can do everything a worker needs. A read does not show that: a replica answers reads, and so does a server that
// cannot save.
func (o *outage) works(ctx context.Context) error {
	if err := o.Redis.SelfTest(ctx, o.SelfTests...); err != nil {
		return err
	}
	return o.Redis.Probe(ctx)
}

// enter changes the state. The caller holds the lock.
func (o *outage) enter(state outageState, cause error) {
	o.state, o.cause, o.since = state, cause, time.Now()
	o.answered = o.answered || state == answering
	o.signalLocked()
	o.Metrics.Degraded(state == acting || state == unavailable && o.Policy == Hold)
}

// reach makes the first contact. If Redis works, it calls compare before any decision.
func (o *outage) reach(ctx context.Context, compare func(context.Context)) {
	err := o.works(ctx)
	if err == nil {
		compare(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		o.enter(answering, nil)
	case errors.Is(err, script.ErrForbidden):
		o.enter(unavailable, err)
		o.Logger.Error("redis refuses this worker", "error", err)
	default:
		o.enter(unavailable, err)
		o.Logger.Warn("redis is not there yet", "policy", string(o.Policy), "grace", o.Grace, "error", err)
	}
}

// lost records that Redis does not answer.
func (o *outage) lost(cause error) {
	if !o.becomesUnavailable(cause) {
		return
	}
	o.forget()
	o.Logger.Warn("redis is unavailable", "policy", string(o.Policy), "grace", o.Grace, "error", cause)
}

// becomesUnavailable enters the state unavailable. It returns false if Redis was not answering before.
func (o *outage) becomesUnavailable(cause error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != answering {
		return false
	}
	o.enter(unavailable, cause)
	return true
}

// probe checks once whether Redis works again. If not, it lets the policy act once the grace is over, and then waits until the next probe is
// due.
func (o *outage) probe(ctx context.Context) {
	err := o.works(ctx)
	if err == nil {
		err = o.recover(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	o.stay(err)
	select {
	case <-time.After(probeEvery):
	case <-ctx.Done():
	}
}

// stay records why a probe failed, and lets the policy act once the grace is over.
func (o *outage) stay(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Redis may be answering other workers. This worker does not know their admissions, so its policy must not act.
	refused := !o.answered && errors.Is(err, script.ErrForbidden)
	switch {
	case refused && o.state == acting:
		o.enter(unavailable, err)
		o.Logger.Error("redis refuses this worker", "error", err)
	case refused:
		o.cause = err
	case o.state == unavailable && o.Policy != Hold && time.Since(o.since) >= o.Grace:
		o.enter(acting, err)
		o.Logger.Warn("redis stays unavailable, the failure policy acts", "policy", string(o.Policy), "instances", o.Instances(), "error", err)
	}
}

// recover sends Redis what it has missed, and lets Redis decide again.
func (o *outage) recover(ctx context.Context) error {
	if err := o.releaseLost(ctx); err != nil {
		return err
	}
	restored := 0
	for {
		told, err := o.sync(ctx)
		if err != nil {
			return err
		}
		restored += told
		if o.resume(restored) {
			return nil
		}
	}
}

// resume lets Redis decide again. It returns false if there is more to send first.
func (o *outage) resume(restored int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.unsynced) > 0 {
		return false
	}
	o.Logger.Info("redis answers", "unavailable", time.Since(o.since).Round(time.Millisecond), "restored", restored)
	o.enter(answering, nil)
	return true
}
