package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Policy says what happens while Redis is away.
type Policy string

// The failure policies.
const (
	Hold   Policy = "hold"   // wait; events stay in JetStream
	Local  Policy = "local"  // after the grace, each instance decides by its share of every limit
	Open   Policy = "open"   // after the grace, everything is sent
	Closed Policy = "closed" // after the grace, everything is dropped
)

// Source tells who decided.
type Source string

// The sources of decisions.
const (
	SourceRedis Source = "redis"
	SourceCache Source = "cache"
	SourceLocal Source = "local" // this instance alone, by the failure policy
)

// LevelNone stands for the level of what no limit of the shadow denied.
const LevelNone = "none"

// LevelClosed is the level of a denial by the closed failure policy, which no limit denied.
const LevelClosed = "closed"

// Metrics is told what the gate does. Its methods may be called by many goroutines at once.
type Metrics interface {
	Decision(verdict, source string, n int)
	DecisionDuration(d time.Duration)
	Degraded(on bool)
	Refunded(n int)
	ShadowDecision(level, verdict string, n int)
	Levels(inForce, shadow []string) // the rules that can deny have changed
	LimitUsed(level string, used int64)
	LimitSize(level string, size int64)
}

// GateOptions say how a worker's questions are answered.
type GateOptions struct {
	Settings
	Redis        *Redis
	Policy       Policy
	Grace        time.Duration // how long Redis may be away before a policy other than hold acts
	DenyCacheTTL time.Duration // 0 turns the cache off
	Pace         Pace          // of each destination
	RoomMax      int           // events of one first-level category that wait at once
	Instances    func() int    // how many instances are alive, for their shares; nil is one

	// Refresh has limits adopted that are newer than those in force here, or fails. nil: limits never change.
	Refresh func(ctx context.Context) error

	Logger  *slog.Logger
	Metrics Metrics
}

// Gate is what a worker asks: the deny cache, then Redis, and the failure policy while Redis is away.
//
//	              a call fails                 grace is over
//	answering ────────────────► away ─────────────────────────► acting
//	    ▲                        │ (hold stays here)               │
//	    └──── a probe succeeds, admissions made meanwhile ─────────┘
//	          are written into the logs
type Gate struct {
	o        GateOptions
	rules    atomic.Pointer[Ruleset]
	cache    *denyCache
	shadow   *denyCache // what is known to be full in the shadow
	local    *Memory    // decides while the policy acts, and follows this instance's admissions before
	pauses   pauses
	pacer    *pacer
	usage    *usage
	records  records
	refused  refusals
	broken   broken
	unpaired *unpaired
	finish   batcher[Lease, bool]
	extend   batcher[Lease, Lease]
	release  batcher[Lease, Lease]
	refund   batcher[Lease, bool]

	mu         sync.Mutex
	state      gateState
	changed    chan struct{} // closed and replaced at each change of state
	since      time.Time     // of the state
	cause      error         // why Redis is away
	answered   bool          // Redis has answered once
	backlog    []*Grant      // admitted, delivered or refunded without Redis knowing
	unanswered []unanswered  // calls whose replies did not come
	behind     behind
}

type gateState int

const (
	away gateState = iota
	answering
	acting
)

// maxBacklog bounds what is remembered for Redis during an outage: a few tens of megabytes.
const maxBacklog = 100_000

// probeEvery is how often a Redis that is away is tried.
const probeEvery = 250 * time.Millisecond

// NewGate makes a gate that answers once [Gate.Run] has reached Redis.
func NewGate(o GateOptions) *Gate {
	local := o.Settings
	local.Forward = o.Forward || o.Policy == Open
	g := &Gate{
		o:        o,
		cache:    newDenyCache(o.DenyCacheTTL, time.Now),
		shadow:   newDenyCache(o.DenyCacheTTL, time.Now),
		local:    NewMemory(local, time.Now, o.Instances),
		pacer:    newPacer(o.Pace),
		unpaired: newUnpaired(o.DenyCacheTTL, time.Now),
		changed:  make(chan struct{}),
		since:    time.Now(),
		cause:    errors.New("not reached yet"),
	}
	g.rules.Store(o.rules())
	g.usage = newUsage(o.rules(), o.Metrics)
	g.finish.call = o.Redis.Finish
	g.extend.call = func(ctx context.Context, leases []Lease) ([]Lease, error) {
		return o.Redis.Extend(ctx, leases, o.Lease)
	}
	g.release.call = func(ctx context.Context, leases []Lease) ([]Lease, error) {
		return o.Redis.Extend(ctx, leases, 0)
	}
	g.refund.call = o.Redis.Refund
	return g
}

// Adopt puts other limits in force, at once and for every decision that follows.
func (g *Gate) Adopt(rules Ruleset) {
	g.usage.adopt(&rules) // first, so that a denial by a new rule is counted as its own
	g.o.Redis.Adopt(rules)
	g.local.Adopt(rules)
	g.rules.Store(&rules)
}

func levelsOf(tree *Tree) []string {
	if tree == nil {
		return nil
	}
	var names []string
	for _, level := range tree.Levels() {
		names = append(names, level.Level)
	}
	return names
}

// Full tells whether an event of the category is known to be denied, and by which node, without asking Redis. Where there
// is a shadow, that has to be known to deny it too: else it would not be asked.
func (g *Gate) Full(category string) (Node, bool) {
	if g.o.Forward || !g.behind.current.Load() {
		return Node{}, false
	}
	if state, _ := g.currentState(); g.o.Policy == Open && state != answering {
		return Node{}, false
	}
	rules := g.rules.Load()
	node, full := g.cache.find(rules.Tree.route(category))
	if full && rules.Shadow != nil {
		var shadowed Node
		if shadowed, full = g.shadow.find(rules.Shadow.route(category)); full {
			g.o.Metrics.ShadowDecision(shadowed.Level, "denied", 1)
		}
	}
	if full {
		g.o.Metrics.Decision("denied", string(SourceCache), 1)
	}
	return node, full
}

// Answer is a decision and what comes of it.
type Answer struct {
	Decision
	Opened string // of a resolved event to deliver: the receipt of what it resolves
	Grant  *Grant // of an event to deliver, else nil
	Err    error  // this event cannot be judged, others can; the verdict is 0
}

// Decide judges a batch. On an error, which is ErrUnavailable or the context's, nothing is known to be decided: give the
// events back and call [Gate.Await].
func (g *Gate) Decide(ctx context.Context, requests []Request) ([]Answer, error) {
	state, cause := g.currentState()
	g.unpaired.see(requests)
	switch state {
	case answering:
		return g.aside(ctx, requests, logsOf, g.askInTurn)
	case acting:
		return g.act(ctx, requests), nil
	case away:
	}
	return nil, unavailable(cause)
}

func (g *Gate) ask(ctx context.Context, requests []Request) ([]Answer, error) {
	asked, nonce := time.Now(), newNonce()
	answers, err := g.askOnce(ctx, nonce, requests)
	g.o.Metrics.DecisionDuration(time.Since(asked))
	switch {
	case err == nil:
		return answers, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, ErrRefused):
		return g.askEach(ctx, requests, logsOf, g.askOnce, err)
	case errors.Is(err, ErrStale):
		return g.askNewer(ctx, requests, err)
	default:
		g.leaveUnanswered(nonce, requests)
		g.lost(err)
		return nil, unavailable(err)
	}
}

// askOnce makes one call.
func (g *Gate) askOnce(ctx context.Context, nonce string, requests []Request) ([]Answer, error) {
	asked := time.Now()
	ruling, err := g.rule(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	g.pauses.learn(asked, ruling.Pauses)
	return g.answers(SourceRedis, asked, ruling.Decisions, requests), nil
}

// askNewer asks again with the limits that are in force elsewhere. If they cannot be learned, nothing is decided here.
func (g *Gate) askNewer(ctx context.Context, requests []Request, stale error) ([]Answer, error) {
	g.mu.Lock()
	lags := g.lags()
	g.mu.Unlock()
	if lags {
		return nil, stale // keepUp looks for them
	}
	var (
		answers []Answer
		nonce   string
	)
	err := g.catchUp(ctx, stale, func() (err error) {
		nonce = newNonce()
		answers, err = g.askOnce(ctx, nonce, requests)
		return err
	})
	switch {
	case err == nil:
		return answers, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, ErrStale):
		return nil, err
	case errors.Is(err, ErrRefused):
		return g.askEach(ctx, requests, logsOf, g.askOnce, err)
	}
	g.leaveUnanswered(nonce, requests)
	g.lost(err)
	return nil, unavailable(err)
}

// unanswered is a call whose reply did not come: perhaps the server granted something to nobody.
type unanswered struct {
	nonce    string
	requests []Request
}

// maxUnanswered bounds the calls that are remembered. More are hardly under way at once; what they were granted lapses.
const maxUnanswered = 16

func (g *Gate) leaveUnanswered(nonce string, requests []Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.unanswered) == maxUnanswered {
		return
	}
	lookups := slices.Clone(requests)
	for i := range lookups {
		lookups[i].Cost = 0 // nothing more is to be admitted
	}
	g.unanswered = append(g.unanswered, unanswered{nonce, lookups})
}

// giveUp ends the leases that unanswered calls were granted: their events were given back and are asked for again.
func (g *Gate) giveUp(ctx context.Context) error {
	for {
		g.mu.Lock()
		if len(g.unanswered) == 0 {
			g.mu.Unlock()
			return nil
		}
		call := g.unanswered[0]
		g.mu.Unlock()
		ruling, err := g.o.Redis.decideBatch(ctx, call.nonce, call.requests)
		if err == nil {
			err = g.forgo(ctx, ruling)
		}
		if err != nil && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrStale) {
			return err // else their leases lapse by themselves
		}
		g.mu.Lock()
		g.unanswered = g.unanswered[1:]
		g.mu.Unlock()
	}
}

func (g *Gate) forgo(ctx context.Context, ruling Ruling) error {
	var leases []Lease
	for _, d := range ruling.Decisions {
		if d.Lease.ID != "" {
			leases = append(leases, d.Lease)
		}
	}
	_, err := g.o.Redis.Extend(ctx, leases, 0)
	return err
}

// answers turns decisions into answers, and lets the caches and the local limiter take note of them.
func (g *Gate) answers(source Source, asked time.Time, decisions []Decision, requests []Request) []Answer {
	var (
		answers  = make([]Answer, len(decisions))
		admitted []Request
		counts   = make(map[string]int, 3)
		rules    = g.rules.Load()
	)
	for i, d := range decisions {
		answers[i].Decision = d
		if label := d.Verdict.label(); label != "" {
			counts[label]++
		}
		switch d.Verdict {
		case Admitted:
			admitted = append(admitted, requests[i])
		case Denied:
			if source == SourceRedis { // a share of a limit is full sooner than the limit
				g.cache.learn(asked, rules.Tree.route(requests[i].Category), d, requests[i].Cost)
			}
			g.usage.denied(d, asked)
		case NeverFits:
			if source == SourceRedis {
				g.cache.learn(asked, rules.Tree.route(requests[i].Category), d, requests[i].Cost)
			}
			g.refused.neverFits(g.o.Logger, requests[i], d)
		case Repeated, Leased, Done, Duplicate, Unknown, Unpaired:
		}
		g.learnFromShadow(asked, source, rules, requests[i], d.Shadow)
		g.usage.touch(requests[i].Category)
	}
	var at time.Time
	if source == SourceRedis && g.o.Policy == Local && len(admitted) > 0 {
		at = g.local.Follow(admitted)
	}
	for i := range answers {
		if answers[i].Lease.ID != "" {
			answers[i].Grant = &Grant{gate: g, lease: answers[i].Lease, admitted: at, followed: answers[i].Verdict == Admitted && !at.IsZero()}
		}
	}
	for label, n := range counts {
		g.o.Metrics.Decision(label, string(source), n)
	}
	return answers
}

// learnFromShadow counts what the shadow says of an event.
func (g *Gate) learnFromShadow(asked time.Time, source Source, rules *Ruleset, request Request, d ShadowDecision) {
	switch d.Verdict {
	case 0:
	case Admitted:
		g.o.Metrics.ShadowDecision(LevelNone, "admitted", 1)
	default:
		g.o.Metrics.ShadowDecision(d.Node.Level, "denied", 1)
		if source == SourceRedis && rules.Shadow != nil {
			denied := Decision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
			g.shadow.learn(asked, rules.Shadow.route(request.Category), denied, request.Cost)
		}
	}
}

// act decides without Redis.
func (g *Gate) act(ctx context.Context, requests []Request) []Answer {
	if g.o.Policy == Closed && !g.o.Forward {
		answers := make([]Answer, len(requests))
		for i := range answers {
			answers[i].Verdict, answers[i].Node = Denied, Node{Level: LevelClosed}
		}
		g.o.Metrics.Decision("denied", string(SourceLocal), len(requests))
		return answers
	}
	asked := time.Now()
	ruling, err := g.local.Decide(ctx, requests)
	if err != nil { // the in-memory limiter has no way to fail
		panic(fmt.Sprintf("throttle: the in-memory limiter failed: %v", err))
	}
	if g.o.Policy == Open {
		for i := range ruling.Decisions {
			if d := &ruling.Decisions[i]; d.Verdict == Denied || d.Verdict == NeverFits {
				*d = Decision{Verdict: Admitted, Lease: d.Lease}
			}
		}
	}
	answers := g.answers(SourceLocal, asked, ruling.Decisions, requests)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, answer := range answers {
		if answer.Grant == nil {
			continue
		}
		answer.Grant.local, answer.Grant.admitted = true, asked
		if answer.Verdict == Admitted {
			g.owe(answer.Grant)
		}
	}
	return answers
}

// owe remembers what Redis has to be told. The caller holds the lock.
func (g *Gate) owe(grant *Grant) {
	if grant.owed {
		return
	}
	if len(g.backlog) == maxBacklog {
		g.backlog[0].owed = false
		g.backlog = g.backlog[1:]
	}
	grant.owed = true
	g.backlog = append(g.backlog, grant)
}

// Await returns when Decide may work: nil, or the context's error. It does not while newer limits are in force than here.
func (g *Gate) Await(ctx context.Context) error {
	for {
		g.mu.Lock()
		works, changed := g.state != away && !g.lags(), g.changed
		g.mu.Unlock()
		if works {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Ready is nil while events can be decided, by Redis or by the failure policy. Limits that are behind for a moment do not
// count.
func (g *Gate) Ready() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == away {
		return unavailable(g.cause)
	}
	return g.notReady()
}

func unavailable(cause error) error { return fmt.Errorf("%w: %w", ErrUnavailable, cause) }

// currentState is the state and, unless that is answering, why.
func (g *Gate) currentState() (gateState, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state, g.cause
}

// works shows that Redis can do what is needed. To be read is not enough: a replica can, and a server that cannot save.
func (g *Gate) works(ctx context.Context) error {
	if err := g.o.Redis.Probe(ctx); err != nil {
		return err
	}
	return g.o.Redis.Rehearse(ctx)
}

func (g *Gate) enter(state gateState, cause error) {
	g.state, g.cause, g.since = state, cause, time.Now()
	g.answered = g.answered || state == answering
	g.signal()
	g.o.Metrics.Degraded(state == acting || state == away && g.o.Policy == Hold)
}

// signal has whoever waits look again. The caller holds the lock.
func (g *Gate) signal() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// lost takes note that Redis does not answer.
func (g *Gate) lost(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != answering {
		return
	}
	g.enter(away, cause)
	g.cache.forget() // what comes back may have lost its data
	g.shadow.forget()
	g.unpaired.forget()
	g.o.Logger.Warn("redis is away", "policy", string(g.o.Policy), "grace", g.o.Grace, "error", cause)
}

// Run reaches Redis, watches over an outage and keeps the usage metrics, until the context ends.
func (g *Gate) Run(ctx context.Context) {
	g.reach(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keeping.Go(func() { g.keepUp(ctx) })
	_ = g.usage.refresh(ctx, g.o.Redis) // the ticks go on with it
	usage := time.NewTicker(usageEvery)
	defer usage.Stop()
	for ctx.Err() == nil {
		g.mu.Lock()
		state, changed := g.state, g.changed
		g.mu.Unlock()
		if state != answering {
			g.probe(ctx)
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-usage.C:
			// A single call may have failed while the others were answered.
			if _, err := g.repay(ctx); err != nil && ctx.Err() == nil {
				g.lost(err)
				continue
			}
			// An idle worker notices here that Redis is away.
			if err := g.usage.refresh(ctx, g.o.Redis); errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
				g.lost(err)
			}
		}
	}
}

// reach makes the first contact.
func (g *Gate) reach(ctx context.Context) {
	err := g.works(ctx)
	if err == nil {
		g.compare(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.enter(away, err)
		if errors.Is(err, ErrForbidden) {
			g.o.Logger.Error("redis refuses this worker", "error", err)
		} else {
			g.o.Logger.Warn("redis is not there yet", "policy", string(g.o.Policy), "grace", g.o.Grace, "error", err)
		}
		return
	}
	g.enter(answering, nil)
}

// probe tries once whether Redis is back; if not, it lets the policy act in time, and rests.
func (g *Gate) probe(ctx context.Context) {
	err := g.works(ctx)
	if err == nil {
		err = g.comeBack(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	// A worker that is refused from its start knows nothing of what others, who are answered, admit meanwhile.
	refused := !g.answered && errors.Is(err, ErrForbidden)
	switch {
	case refused && g.state == acting:
		g.enter(away, err)
		g.o.Logger.Error("redis refuses this worker", "error", err)
	case refused:
		g.cause = err
	case g.state == away && g.o.Policy != Hold && time.Since(g.since) >= g.o.Grace:
		g.enter(acting, err)
		g.o.Logger.Warn("redis stays away, the failure policy acts", "policy", string(g.o.Policy), "instances", g.instances(), "error", err)
	}
	g.mu.Unlock()
	select {
	case <-time.After(probeEvery):
	case <-ctx.Done():
	}
}

func (g *Gate) instances() int {
	if g.o.Instances == nil {
		return 1
	}
	return g.o.Instances()
}

// comeBack tells Redis what happened without it and lets it answer again.
func (g *Gate) comeBack(ctx context.Context) error {
	if err := g.giveUp(ctx); err != nil {
		return err
	}
	restored := 0
	for {
		n, err := g.repay(ctx)
		if err != nil {
			return err
		}
		restored += n
		g.mu.Lock()
		if len(g.backlog) == 0 {
			g.o.Logger.Info("redis answers", "away", time.Since(g.since).Round(time.Millisecond), "restored", restored)
			g.enter(answering, nil)
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
	}
}

// repay tells Redis what it has missed, and returns of how many events. On an error, what is not told stays owed.
func (g *Gate) repay(ctx context.Context) (told int, err error) {
	for {
		g.mu.Lock()
		batch := g.backlog[:min(len(g.backlog), MaxBatch)]
		g.backlog = g.backlog[len(batch):]
		for _, grant := range batch {
			grant.owed = false
		}
		if len(batch) == 0 {
			g.backlog = nil
			g.mu.Unlock()
			return told, nil
		}
		g.mu.Unlock()
		err := g.settle(ctx, batch)
		if errors.Is(err, ErrRefused) {
			err = g.settleEach(ctx, batch)
		}
		if err != nil {
			g.mu.Lock()
			for _, grant := range batch {
				g.owe(grant)
			}
			g.mu.Unlock()
			return told, err
		}
		told += len(batch)
	}
}

// settleEach leaves out events whose own logs are at fault: one log of the wrong type must not stop the others.
func (g *Gate) settleEach(ctx context.Context, batch []*Grant) error {
	if err := g.works(ctx); err != nil {
		return err
	}
	for i := range batch {
		err := g.settle(ctx, batch[i:i+1])
		if errors.Is(err, ErrRefused) {
			g.refused.report(g.o.Logger, batch[i].category(), err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settle tells Redis about the grants of a batch. Repeating it is harmless.
func (g *Gate) settle(ctx context.Context, batch []*Grant) error {
	var (
		admissions         []admission
		refunds            []Lease
		restored, refunded []*Grant
	)
	g.mu.Lock()
	for _, grant := range batch {
		if grant.refunded && !grant.local {
			refunds, refunded = append(refunds, grant.lease), append(refunded, grant)
			continue
		}
		admissions = append(admissions, admission{lease: grant.lease, at: grant.admitted, became: grant.became})
		restored = append(restored, grant)
	}
	g.mu.Unlock()

	returned, err := g.o.Redis.Refund(ctx, refunds)
	if err != nil {
		return err
	}
	for i, grant := range refunded {
		if returned[i] {
			grant.returned()
		}
	}
	if len(restored) == 0 {
		return nil
	}
	leaseEnd, err := g.o.Redis.Restore(ctx, admissions)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, grant := range restored {
		if grant.became == goesOn && grant.local {
			grant.local, grant.lease.End = false, leaseEnd
		}
		if grant.refunded && !grant.local {
			g.owe(grant) // now that Redis knows of the admission, it can be refunded
		}
	}
	return nil
}

// Pause lets a destination rest for d, on all instances.
func (g *Gate) Pause(ctx context.Context, destination string, d time.Duration) {
	now := time.Now()
	g.pauses.learn(now, map[string]time.Duration{destination: d})
	g.pacer.rest(now, destination, d)
	if state, _ := g.currentState(); state != answering {
		return
	}
	if err := g.o.Redis.Pause(ctx, destination, g.o.Pace, d); err != nil {
		g.o.Logger.Warn("other instances do not know of a pause", "destination", destination, "error", err)
	}
}

// NextSlot tells which level was full last and when its next slot opens: the global one if it is full, else the one
// that opens first. The wait is 0 if no limit is known to be full.
func (g *Gate) NextSlot() (level string, wait time.Duration) { return g.usage.nextSlot(time.Now()) }

// label is the verdict as notifier_decisions_total shows it.
func (v Verdict) label() string {
	switch v {
	case Admitted:
		return "admitted"
	case Denied, NeverFits, Unpaired:
		return "denied"
	case Repeated, Leased, Done, Duplicate:
		return "repeated"
	case Unknown:
	}
	return ""
}
