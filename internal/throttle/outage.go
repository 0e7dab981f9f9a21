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

// outage tracks whether Redis answers. Its users query it, and report failed calls to it. docs/architecture.md has a picture of its states.
type outage struct {
	o        *LimiterOptions
	denials  *denials // forgotten with unpaired when Redis is lost, which may lose its data
	unpaired *unpaired

	mu       sync.Mutex
	state    outageState
	changed  chan struct{} // closed and replaced at each change that may end a wait
	since    time.Time     // when Redis stopped answering; before the first answer, when this worker started
	cause    error         // why Redis does not answer
	answered bool          // Redis has answered once
}

type outageState int

const (
	unavailable outageState = iota // Redis does not answer, and no policy acts
	answering                      // Redis decides
	acting                         // the failure policy decides
)

// newOutage begins in the state unavailable.
func newOutage(o *LimiterOptions, denials *denials, unpaired *unpaired) *outage {
	return &outage{
		o: o, denials: denials, unpaired: unpaired,
		changed: make(chan struct{}), since: time.Now(), cause: errors.New("not reached yet"),
	}
}

func unavailableBecause(cause error) error {
	if errors.Is(cause, script.ErrUnavailable) {
		return cause
	}
	return fmt.Errorf("%w: %w", script.ErrUnavailable, cause)
}

// current returns the state, and why Redis does not answer.
func (o *outage) current() (outageState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state, o.cause
}

func (o *outage) isAnswering() bool { return o.mustAnswer() == nil }

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

// ready returns nil while Redis or the failure policy decides. Before Redis has answered once, its settings may be wrong: a rollout with such
// settings ends at its first worker, which is not ready.
func (o *outage) ready() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == unavailable || !o.answered {
		return unavailableBecause(o.cause)
	}
	return nil
}

// isPolicy reports whether the failure policy applies in a state. The policy hold applies at once.
func (o *outage) isPolicy(state outageState) bool {
	return state == acting || state == unavailable && o.o.Policy == Hold
}

// enter changes the state. The caller holds the lock.
func (o *outage) enter(state outageState, cause error) {
	if o.state == answering {
		o.since = time.Now()
	}
	o.state, o.cause = state, cause
	o.answered = o.answered || state == answering
	o.signalLocked()
	if o.isPolicy(state) {
		o.o.Metrics.PolicyActs()
	} else {
		o.o.Metrics.PolicyInactive()
	}
}

// reached records the result of the first contact.
func (o *outage) reached(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		o.enter(answering, nil)
	case errors.Is(err, script.ErrForbidden):
		o.enter(unavailable, err)
		o.o.Logger.Error("redis refuses this worker", "error", err)
	default:
		o.fail(err)
	}
}

// lost records that Redis does not answer.
func (o *outage) lost(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != answering {
		return
	}
	o.denials.forget()
	o.unpaired.pairs.Clear()
	o.fail(cause)
}

// fail begins an outage. The caller holds the lock.
func (o *outage) fail(cause error) {
	o.enter(unavailable, cause)
	o.o.Logger.Warn("redis is unavailable", "policy", string(o.o.Policy), "grace", o.o.Grace, "error", cause)
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
		o.o.Logger.Error("redis refuses this worker", "error", err)
	case refused:
		o.cause = err
	case o.state == unavailable && o.o.Policy != Hold && time.Since(o.since) >= o.o.Grace:
		o.enter(acting, err)
		o.o.Logger.Warn("redis stays unavailable, the failure policy acts", "policy", string(o.o.Policy), "instances", o.o.Instances(), "error", err)
	}
}

// resume lets Redis decide again, after the replay has sent it the restored grants.
func (o *outage) resume(restored int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.o.Logger.Info("redis answers", "unavailable", time.Since(o.since).Round(time.Millisecond), "restored", restored)
	o.enter(answering, nil)
}
