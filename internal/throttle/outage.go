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

// outage knows whether Redis answers, and what Redis missed meanwhile. The limiter asks the outage, and reports failed calls. The
// outage knows nothing of the limiter. docs/architecture.md has a picture of its states.
type outage struct {
	*LimiterOptions
	logOnce *logOnce

	// These are called, some with the lock held: they must not ask the outage.
	forget   func()         // Redis may lose its data: what was learned from it is out of date
	returned func(*granted) // Redis has returned the slots of a refunded event

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

// current is the state, and why Redis does not answer.
func (o *outage) current() (outageState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state, o.cause
}

func (o *outage) isAnswering() bool {
	state, _ := o.current()
	return state == answering
}

// mustAnswer is nil if Redis answers, else an error that says why it does not.
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

// signal has whoever waits look again.
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

// await returns once events can be decided: nil, or the context's error. While Redis answers, blocked may say that they cannot.
// Whoever changes the answer of blocked calls signal.
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

// ready is nil while Redis or the failure policy decides.
func (o *outage) ready() error {
	if state, cause := o.current(); state == unavailable {
		return unavailableBecause(cause)
	}
	return nil
}

// run tries Redis until the context ends. While Redis answers, each tick tells Redis what single calls failed to tell. Then check asks
// Redis something: there an idle worker notices that Redis is unavailable.
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

// works shows that Redis can do what is needed. A read does not show that: a replica answers it, and a server that cannot save.
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

// reach makes the first contact. If Redis works, compare is called before anything is decided.
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

// lost notes that Redis does not answer.
func (o *outage) lost(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != answering {
		return
	}
	o.enter(unavailable, cause)
	o.forget()
	o.Logger.Warn("redis is unavailable", "policy", string(o.Policy), "grace", o.Grace, "error", cause)
}

// probe tries once whether Redis works again. If Redis does not, probe lets the policy act in time, and then waits for the next try.
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

// stay notes why a probe failed, and lets the policy act once the grace is over.
func (o *outage) stay(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Redis may answer other workers meanwhile. This one knows nothing of their admissions, and must not act.
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

// recover tells Redis what happened meanwhile, and lets Redis decide again.
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

// resume lets Redis decide again, unless there is something more to tell it.
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
