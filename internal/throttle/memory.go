package throttle

import (
	"context"
	"maps"
	"slices"
	"sort"
	"sync"
	"time"
)

// Memory is the limiter of one process. It decides as [Redis] does, without a server: while Redis is away, in tests, and
// as the model that the scripts are compared with. What it holds is gone with the process.
type Memory struct {
	settings Settings
	clock    func() time.Time
	share    func() int // instances among which each limit is divided; nil is one

	mu      sync.Mutex
	rules   *Ruleset
	adopted bool  // and no call was made with them yet
	since   int64 // when the first one was
	inForce book
	shadow  book
	records map[string]*record
	pairs   map[string]memoryPair // by pair, or by a line feed and the record of the event that has taken it; nil: none are kept
	calls   []grantingCall        // in the order of their times
	sweepAt int                   // number of records and meters at which the forgotten ones are removed next
}

// book holds the meters of one set of limits.
type book struct {
	meters   map[string]*memoryMeter // by name
	admitted map[string]int64        // shadow: message -> time of admission
}

type memoryMeter struct {
	inMemory
	limits []Limit // as they were used last
}

// record is what is remembered of an admitted event.
type record struct {
	stamp     int64
	at        int64 // when its slots were taken; 0 if none were
	timed     bool  // some meter needs that time
	leaseEnd  int64 // of whoever delivers it; it counts if doneUntil is 0
	doneUntil int64 // when it may be forgotten, once it is delivered
	released  bool  // the holder has ended the lease, and certainly delivered nothing
	inDoubt   bool  // somebody who held the lease before may have
}

// grantingCall is a call that granted something.
type grantingCall struct {
	at    int64
	nonce string
}

// minSweep is how many records and meters are kept before looking for forgotten ones is worth it.
const minSweep = 1024

// NewMemory makes a limiter without admissions. The share, asked at each decision, divides every limit; a limit above 0
// never falls below 1 by it.
func NewMemory(s Settings, clock func() time.Time, share func() int) *Memory {
	if share == nil {
		share = func() int { return 1 }
	}
	return &Memory{
		settings: s,
		clock:    clock,
		share:    share,
		rules:    s.rules(),
		inForce:  book{meters: make(map[string]*memoryMeter)},
		shadow:   book{meters: make(map[string]*memoryMeter), admitted: make(map[string]int64)},
		records:  make(map[string]*record),
		sweepAt:  minSweep,
	}
}

// Adopt puts other limits in force. What the old ones counted goes on to count where limits have the same place.
func (m *Memory) Adopt(rules Ruleset) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rules, m.adopted = &rules, true
	clear(m.shadow.admitted) // by the shadow as it was
}

// Decide implements [Limiter]. It never fails.
func (m *Memory) Decide(_ context.Context, requests []Request) (Ruling, error) {
	return m.decideBatch("", requests), nil
}

// decideBatch gives a repeated call, told by its nonce, the same answer. Calls that are never repeated have none.
func (m *Memory) decideBatch(nonce string, requests []Request) Ruling {
	m.mu.Lock()
	defer m.mu.Unlock()
	batch := memoryBatch{
		Memory:    m,
		now:       m.now(),
		lease:     m.settings.Lease.Microseconds(),
		retention: m.settings.Retention.Microseconds(),
		granted:   make(map[string]bool),
	}
	if m.adopted {
		m.since, m.adopted = batch.now, false
	}
	for _, call := range m.calls {
		if nonce != "" && call.nonce == nonce && call.at > batch.now-nonceKept.Microseconds() {
			batch.leaseGrantedBefore = call.at + batch.lease
		}
	}
	ruling := Ruling{At: batch.now, Decisions: make([]Decision, len(requests))}
	for i, request := range requests {
		ruling.Decisions[i] = batch.decide(request)
	}
	if batch.grants > 0 {
		m.remember(batch.now, nonce)
	}
	if batch.shadowAdmitted {
		maps.DeleteFunc(m.shadow.admitted, func(_ string, at int64) bool { return at <= batch.now-m.rules.shadowKept() })
	}
	return ruling
}

// now is always later than a time at which something was granted, unless that lies beyond the tolerance.
func (m *Memory) now() int64 {
	now := m.clock().UnixMicro()
	upto := now + tolerance.Microseconds()
	if newest := m.newestCall(upto); newest > 0 {
		now = max(now, newest+1)
	}
	return now
}

// newestCall is the time of the newest call up to a time, 0 if there is none.
func (m *Memory) newestCall(upto int64) int64 {
	for _, call := range slices.Backward(m.calls) {
		if call.at <= upto {
			return call.at
		}
	}
	return 0
}

func (m *Memory) remember(now int64, nonce string) {
	upto := now + tolerance.Microseconds()
	m.calls = slices.DeleteFunc(m.calls, func(call grantingCall) bool { return call.nonce == nonce || call.at > upto })
	later := sort.Search(len(m.calls), func(i int) bool { return m.calls[i].at > now }) // a clock may have run ahead a little
	m.calls = slices.Insert(m.calls, later, grantingCall{at: now, nonce: nonce})
	m.sweep(now)
}

// forgetCalls drops those that no answer depends on any more, but never the newest, above whose time the clock stays.
func (m *Memory) forgetCalls(now int64) {
	upto := now - nonceKept.Microseconds()
	if newest := m.newestCall(now + tolerance.Microseconds()); newest > 0 {
		upto = min(upto, newest)
	}
	kept := sort.Search(len(m.calls), func(i int) bool { return m.calls[i].at >= upto })
	m.calls = m.calls[kept:]
}

// sweep removes, from time to time, forgotten records and the meters of paths that are idle.
func (m *Memory) sweep(now int64) {
	if len(m.records)+len(m.inForce.meters)+len(m.shadow.meters) < m.sweepAt {
		return
	}
	for name, r := range m.records {
		if !m.remembered(r, now) {
			delete(m.records, name)
		}
	}
	maps.DeleteFunc(m.pairs, func(_ string, pair memoryPair) bool { return pair.expires <= now })
	for _, b := range []book{m.inForce, m.shadow} {
		for name, meter := range b.meters {
			if meter.idle(now, meter.limits) {
				delete(b.meters, name)
			}
		}
	}
	m.sweepAt = max(minSweep, 2*(len(m.records)+len(m.inForce.meters)+len(m.shadow.meters)))
}

func (m *Memory) remembered(r *record, now int64) bool {
	return r.doneUntil > now || r.doneUntil == 0 && r.leaseEnd > now-m.settings.Retention.Microseconds()
}

// of is the state of a meter, an unused one if it has none yet.
func (b *book) of(m meter) *memoryMeter {
	state := b.meters[m.name]
	if state == nil {
		state = &memoryMeter{inMemory: algorithms[m.algorithm].inMemory()}
	}
	state.limits = m.limits
	return state
}

func (b *book) take(m meter, e memoryEvent) {
	state := b.of(m)
	state.take(m.sees(e), m.limits)
	b.meters[m.name] = state
}

// event is an event of a category in this call.
func (m *Memory) event(now int64, r *route, tree *Tree, request Request) memoryEvent {
	e := memoryEvent{
		now: now, lease: m.settings.Lease.Microseconds(), cost: int64(request.Cost), guarantee: r.guarantee,
	}
	if r.follows {
		e.message = request.messageName()
	}
	by := m.divisor()
	e.inShares = by > 1
	for _, guarantee := range tree.guarantees {
		share := max(guarantee.Slots/by, 1)
		if guarantee.Path == e.guarantee {
			share = max(share, min(e.cost, guarantee.Slots))
		}
		guarantee.Slots = share
		e.guarantees = append(e.guarantees, guarantee)
	}
	return e
}

func (m *Memory) divisor() int64 { return int64(max(1, m.share())) }

// divided is this instance's share of a meter's limits, but never less than one event needs that fits the limit. Of a limit
// with guarantees, what belongs to nobody is divided, and the shares of the guarantees come on top.
func (m *Memory) divided(of meter, e memoryEvent, tree *Tree) []Limit {
	by := m.divisor()
	if by == 1 {
		return of.limits
	}
	guaranteed, shares := int64(0), int64(0)
	if of.guaranteed() {
		for i, guarantee := range tree.guarantees {
			guaranteed += guarantee.Slots
			shares += e.guarantees[i].Slots
		}
	}
	divided := make([]Limit, len(of.limits))
	for i, limit := range of.limits {
		divided[i] = limit
		if limit.Algorithm == TokenBucket {
			divided[i].Burst = max(limit.capacity()/by, e.cost)
		}
		divided[i].Count = shares
		if free := limit.Count - guaranteed; free > 0 {
			divided[i].Count += max(free/by, min(e.cost, free))
		}
	}
	return divided
}

// memoryBatch is one call of Decide.
type memoryBatch struct {
	*Memory
	now, lease, retention int64
	leaseGrantedBefore    int64           // the end of the leases that this very call granted before
	granted               map[string]bool // records whose lease this call has given away
	shadowAdmitted        bool            // the shadow admitted something new
	grants                int             // how many of them did not have it before
}

func (b *memoryBatch) decide(request Request) Decision {
	name, stamp := request.record(), request.Message.stamp()
	known := b.records[name]
	if known != nil && !b.remembered(known, b.now) {
		known = nil
	}
	switch {
	case known == nil:
		return b.judge(request, name, stamp)
	case known.stamp != stamp:
		return Decision{Verdict: Duplicate}
	case known.doneUntil != 0:
		return Decision{Verdict: Done}
	case b.granted[name]:
		return Decision{Verdict: Leased, Wait: b.settings.Lease}
	case known.leaseEnd == b.leaseGrantedBefore:
		b.granted[name] = true
		if known.inDoubt {
			return b.takenOver(request, known)
		}
		return Decision{Verdict: Admitted, Lease: b.newLease(request, known.leaseEnd)}
	case known.leaseEnd > b.now:
		return Decision{Verdict: Leased, Wait: time.Duration(known.leaseEnd-b.now) * time.Microsecond}
	case request.Cost == 0:
		return Decision{Verdict: Unknown}
	default:
		if wait := b.resume(b.rules.Tree, request, b.now, b.lease); wait > 0 {
			return Decision{Verdict: Leased, Wait: time.Duration(wait) * time.Microsecond}
		}
		if b.rules.Tree.route(request.Category).timed && known.at < b.since {
			known.timed = false // older limits admitted it: those of now have nothing of it
		}
		known.leaseEnd = b.now + b.lease
		known.inDoubt, known.released = known.inDoubt || !known.released, false
		b.granted[name] = true
		b.grants++
		return b.takenOver(request, known)
	}
}

func (b *memoryBatch) takenOver(request Request, known *record) Decision {
	lease := b.newLease(request, known.leaseEnd)
	lease.inDoubt = known.inDoubt
	return Decision{Verdict: Repeated, Lease: lease, InDoubt: known.inDoubt}
}

func (b *memoryBatch) newLease(request Request, end int64) Lease {
	return Lease{Request: request, End: end, tree: b.rules.Tree, shadow: b.rules.Shadow}
}

func (b *memoryBatch) judge(request Request, name string, stamp int64) Decision {
	if request.Cost == 0 {
		return Decision{Verdict: Unknown}
	}
	decision := b.charge(&b.inForce, b.rules.Tree, request)
	at := int64(0)
	if decision.Verdict == Admitted {
		at = b.now
	}
	if b.rules.Shadow != nil {
		decision.Shadow = b.judgeInShadow(request)
	}
	if decision.Verdict == Admitted || b.settings.Forward {
		decision.Lease = b.newLease(request, b.now+b.lease)
		decision.Lease.slotless = decision.Verdict != Admitted
		b.records[name] = &record{
			stamp: stamp, at: at, timed: at != 0 && b.rules.Tree.route(request.Category).timed, leaseEnd: decision.Lease.End,
		}
		b.granted[name] = true
		b.grants++
	}
	return decision
}

// judgeInShadow tells what the shadow says. An event that it has admitted takes no second slot.
func (b *memoryBatch) judgeInShadow(request Request) ShadowDecision {
	name := request.messageName()
	if at, known := b.shadow.admitted[name]; known && at > b.now-b.rules.shadowKept() {
		return ShadowDecision{Verdict: Admitted}
	}
	d := b.charge(&b.shadow, b.rules.Shadow, request)
	if d.Verdict == Admitted {
		b.shadow.admitted[name] = b.now
		b.shadowAdmitted = true
	}
	return ShadowDecision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
}

// charge takes an event's slots at all meters of its path, or tells the first limit from the root down that denies.
func (b *memoryBatch) charge(set *book, tree *Tree, request Request) Decision {
	r := tree.route(request.Category)
	e := b.event(b.now, r, tree, request)
	for _, m := range r.meters {
		for _, limit := range m.limits {
			if tree.neverFits(m, limit, r.guarantee, e.cost) {
				return Decision{Verdict: NeverFits, Node: m.node, Limit: limit}
			}
		}
	}
	for _, m := range r.meters {
		if full, wait := set.of(m).wait(m.sees(e), b.divided(m, e, tree)); wait > 0 {
			return Decision{Verdict: Denied, Node: m.node, Limit: m.limits[full], Wait: time.Duration(wait) * time.Microsecond}
		}
	}
	for _, m := range r.meters {
		set.take(m, e)
	}
	return Decision{Verdict: Admitted}
}

// resume renews the slots that follow a delivery which goes on, and takes those again that it has lost; or tells how long it
// has to wait for them. A limit that has become too small for it does not keep it for ever.
func (m *Memory) resume(judged *Tree, request Request, now, lease int64) (wait int64) {
	tree := m.rules.Tree
	e := m.event(now, tree.route(request.Category), tree, request)
	e.lease = lease
	e.message = request.messageName()
	var held, lost []meter
	for _, following := range tree.following(judged, request.Category) {
		state := m.inForce.of(following)
		f, follows := state.inMemory.(follower)
		if !follows || e.cost > following.limits[0].Count {
			continue
		}
		if f.holds(e, following.limits) {
			held = append(held, following)
			continue
		}
		if _, wait := state.wait(e, m.divided(following, e, tree)); wait > 0 {
			return wait
		}
		lost = append(lost, following)
	}
	for _, following := range held {
		m.inForce.take(following, e)
	}
	for _, following := range lost {
		m.inForce.take(following, e)
	}
	return 0
}

// Follow records admissions that another limiter made now, so that this one's count does not start at zero.
func (m *Memory) Follow(requests []Request) (at time.Time) {
	at = m.clock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, request := range requests {
		r := m.rules.Tree.route(request.Category)
		for _, meter := range r.meters {
			m.inForce.take(meter, m.event(at.UnixMicro(), r, m.rules.Tree, request))
		}
	}
	m.sweep(at.UnixMicro())
	return at
}

// Unfollow takes back what Follow recorded at a time.
func (m *Memory) Unfollow(lease Lease, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveBack(&m.inForce, lease.treeOr(m.rules.Tree), lease.Request, at.UnixMicro(), (*route).all)
}

// Ended takes note that a delivery has ended that Follow recorded.
func (m *Memory) Ended(lease Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveBack(&m.inForce, lease.treeOr(m.rules.Tree), lease.Request, 0, (*route).following)
}

// giveBack returns an event's slots, at all meters of its path or some.
func (m *Memory) giveBack(set *book, tree *Tree, request Request, at int64, which func(*route) []meter) {
	current := m.rules.Tree
	if set == &m.shadow {
		current = tree // a shadow returns only what it has taken itself
	}
	r := current.routeIn(tree, request.Category)
	for _, meter := range which(r) {
		if state := set.meters[meter.name]; state != nil {
			e := m.event(m.now(), r, tree, request)
			state.giveBack(meter.sees(e), at, meter.limits)
		}
	}
}

// Finish implements [Limiter]. It never fails.
func (m *Memory) Finish(_ context.Context, leases []Lease) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.forgetCalls(now)
	newly := make([]bool, len(leases))
	for i, lease := range leases {
		name := lease.record()
		r := m.records[name]
		if r == nil {
			r = &record{stamp: lease.Message.stamp()}
			m.records[name] = r
		}
		r.stamp = lease.Message.stamp()
		if newly[i] = r.doneUntil <= now; newly[i] {
			m.settlePair(lease, now) // later the pair may have been resolved
			r.doneUntil = now + m.settings.Retention.Microseconds()
		}
		m.endDelivery(lease)
	}
	return newly, nil
}

// Extend implements [Limiter]. It never fails.
func (m *Memory) Extend(_ context.Context, leases []Lease, d time.Duration) ([]Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	end := now + d.Microseconds()
	extended := make([]Lease, len(leases))
	for i, lease := range leases {
		r := m.records[lease.record()]
		known := lease.End
		lease.End = 0
		held := r != nil && r.doneUntil == 0 && !r.released && (r.leaseEnd == known || r.leaseEnd > known && known > now)
		if held && m.goesOn(lease, now, d) {
			r.leaseEnd, lease.End = end, end
			r.released = d == 0 && !lease.inDoubt
		}
		extended[i] = lease
	}
	return extended, nil
}

// endDelivery returns the slots that follow a delivery.
func (m *Memory) endDelivery(lease Lease) {
	if !lease.slotless {
		m.giveBack(&m.inForce, lease.treeOr(m.rules.Tree), lease.Request, 0, (*route).following)
	}
	if shadow := lease.shadowOr(m.rules.Shadow); shadow != nil {
		m.giveBack(&m.shadow, shadow, lease.Request, 0, (*route).following)
	}
}

// goesOn keeps the slots that follow a delivery as long as its lease, or returns them if that is ended. False: others have
// the slots that it has lost.
func (m *Memory) goesOn(lease Lease, now int64, d time.Duration) bool {
	if d == 0 {
		m.endDelivery(lease)
		return true
	}
	kept := max(d, m.settings.Lease).Microseconds()
	if !lease.slotless && m.resume(lease.treeOr(m.rules.Tree), lease.Request, now, kept) > 0 {
		return false
	}
	shadow := m.rules.Shadow
	if shadow == nil {
		return true
	}
	e := m.event(now, shadow.route(lease.Category), shadow, lease.Request)
	e.lease = kept
	for _, following := range shadow.following(lease.shadowOr(shadow), lease.Category) {
		if state := m.shadow.meters[following.name]; state != nil {
			if f, follows := state.inMemory.(follower); follows {
				f.extend(e, following.limits)
			}
		}
	}
	return true
}

// held is the record of a lease that is still its holder's, or nil.
func (m *Memory) held(lease Lease) *record {
	r := m.records[lease.record()]
	if r == nil || r.doneUntil != 0 || r.released || r.leaseEnd != lease.End {
		return nil
	}
	return r
}

// Refund implements [Limiter]. It never fails.
func (m *Memory) Refund(_ context.Context, leases []Lease) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	returned := make([]bool, len(leases))
	for i, lease := range leases {
		r := m.held(lease)
		if r == nil {
			continue
		}
		returned[i] = true
		m.forgetCalls(m.now())
		delete(m.records, lease.record())
		which := (*route).all
		if !r.timed {
			which = (*route).untimed
		}
		if !lease.slotless {
			m.giveBack(&m.inForce, lease.treeOr(m.rules.Tree), lease.Request, r.at, which)
		}
		name := lease.messageName()
		if at, known := m.shadow.admitted[name]; known {
			delete(m.shadow.admitted, name)
			if shadow := lease.shadowOr(m.rules.Shadow); shadow != nil {
				m.giveBack(&m.shadow, shadow, lease.Request, at, (*route).all)
			}
		}
	}
	return returned, nil
}

// Usage tells how many slots are taken now, for each limit of each node.
func (m *Memory) Usage(nodes []Node) [][]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	used := make([][]int64, len(nodes))
	for i, node := range nodes {
		for _, meter := range metersOf(node) {
			for _, limit := range meter.limits {
				used[i] = append(used[i], m.inForce.of(meter).used(now, m.settings.Lease.Microseconds(), limit))
			}
		}
	}
	return used
}
