package store

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Memory is the store of one process. It decides as [Redis] does, without a server: while Redis is unavailable, in tests, and as the
// model that the scripts are compared with. It keeps nothing beyond the process.
type Memory struct {
	settings Settings
	shares   shares

	mu      sync.Mutex
	rules   *Rules
	inForce book
	shadow  book
	records records
	pairs   memoryPairs
	times   timeline
	sweepAt int // number of records and buckets that triggers the next sweep
}

// book holds the buckets of one set of limits.
type book struct {
	buckets  map[string]*memoryBucket              // of paths, by name
	ofKeys   *simplelru.LRU[string, *memoryBucket] // of keys, by name
	admitted map[string]int64                      // shadow: message -> time of admission
}

func newBook() book {
	ofKeys, _ := simplelru.NewLRU[string, *memoryBucket](math.MaxInt, nil) // fails only if the size is not positive
	return book{buckets: make(map[string]*memoryBucket), ofKeys: ofKeys, admitted: make(map[string]int64)}
}

type memoryBucket struct {
	algorithm.State
	limits []limits.Limit // from the latest admission
}

// following returns the state of a bucket that follows deliveries.
func (b *memoryBucket) following() algorithm.Following {
	state, _ := b.State.(algorithm.Following)
	return state
}

// record is what is remembered of an admitted event.
type record struct {
	version   int64
	at        int64  // time of admission; 0 if it took no slots
	route     *Route // the route that counted the event
	leaseEnd  int64  // end of the lease on its delivery; meaningless unless doneUntil is 0
	doneUntil int64  // when it may be forgotten, once it is delivered
	released  bool   // the holder has ended the lease, and certainly delivered nothing
	waits     bool   // the holder has certainly delivered nothing so far
	inDoubt   bool   // an earlier holder of the lease may have delivered it
	fold      *Fold  // where it is counted, if it was folded and not delivered
}

// records are the records of admitted events.
type records struct {
	retention time.Duration
	lease     time.Duration // the longest lease that is granted now
	byKey     map[string]*record
}

// known returns the record of an event key; nil if there is none, or it is forgotten.
func (r *records) known(eventKey string, now int64) *record {
	if known := r.byKey[eventKey]; known != nil && r.remembered(known, now) {
		return known
	}
	return nil
}

// mayBeDelivered reports, after the end of the lease, whether its last holder or an earlier holder may have delivered the event.
func (r *record) mayBeDelivered() bool { return r.inDoubt || !r.released && !r.waits }

// isHeld reports whether the lease of an event has not lapsed, as is_held of doubt.lua.
func (r *records) isHeld(one *record, now int64) bool {
	return one.leaseEnd > now && one.leaseEnd <= now+(r.lease+algorithm.Tolerance).Microseconds()
}

func (r *records) remembered(one *record, now int64) bool {
	return one.doneUntil > now || one.doneUntil == 0 && one.leaseEnd > now-r.retention.Microseconds()
}

// minSweep is the smallest number of records and buckets that is worth a sweep.
const minSweep = 1024

// NewMemory makes a store without admissions. For each decision, share returns the number of instances that split every limit; nil means 1.
// A share of a limit above 0 is at least 1.
func NewMemory(s Settings, clock func() time.Time, share func() int) *Memory {
	if share == nil {
		share = func() int { return 1 }
	}
	return &Memory{
		settings: s, shares: shares{instances: share, lease: s.Lease}, rules: Compile(s.rules()),
		inForce: newBook(),
		shadow:  newBook(),
		records: records{retention: s.Retention, lease: s.Lease, byKey: make(map[string]*record)},
		pairs: memoryPairs{
			ttl: s.PairTTL, underWay: make(map[string]memoryDeliveries), coming: make(map[string]int64), rule: s.Flap, flaps: make(map[string]*memoryFlap),
		},
		times:   timeline{clock: clock},
		sweepAt: minSweep,
	}
}

// KeepKeys bounds the number of keys whose slots this store counts. Beyond the bound, it forgets the slots of the least recently used key.
// Without a call there is no bound.
func (m *Memory) KeepKeys(most int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inForce.ofKeys.Resize(most)
	m.shadow.ofKeys.Resize(most)
}

// AdoptRules puts other limits in force. Limits of the same path keep their counts.
func (m *Memory) AdoptRules(rules *Rules) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rules = rules
	clear(m.shadow.admitted) // admitted by the previous shadow limits
}

// DecideOnce decides as [Redis.DecideOnce] does. A call that is never repeated has no nonce.
func (m *Memory) DecideOnce(nonce string, requests []Request) BatchResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	batch := memoryBatch{memory: m, now: m.times.now(), lease: m.settings.Lease.Microseconds(), granted: make(map[string]bool)}
	for _, call := range m.times.calls {
		if nonce != "" && call.nonce == nonce && call.at > batch.now-nonceKept.Microseconds() {
			batch.leaseGrantedBefore = call.at + batch.lease
		}
	}
	result := BatchResult{At: batch.now, Decisions: make([]Decision, len(requests))}
	for i, request := range requests {
		result.Decisions[i] = batch.decide(request)
		if m.rules.folding(m.settings)(request) {
			m.pairs.mark(&result.Decisions[i], request, batch.now)
		}
	}
	batch.forgetDeliveries()
	if batch.grants > 0 {
		m.times.remember(batch.now, nonce)
		m.sweep(batch.now)
	}
	if batch.shadowAdmitted {
		maps.DeleteFunc(m.shadow.admitted, func(_ string, at int64) bool { return at <= batch.now-m.rules.shadowKept(m.settings.Lease) })
	}
	return result
}

// sweep removes forgotten records and idle buckets, from time to time.
func (m *Memory) sweep(now int64) {
	if m.size() < m.sweepAt {
		return
	}
	maps.DeleteFunc(m.records.byKey, func(_ string, r *record) bool { return !m.records.remembered(r, now) })
	maps.DeleteFunc(m.pairs.byField, func(_ string, pair memoryPair) bool { return pair.expires <= now })
	maps.DeleteFunc(m.pairs.coming, func(_ string, until int64) bool { return until <= now })
	maps.DeleteFunc(m.pairs.flaps, func(_ string, flap *memoryFlap) bool { return flap.expires <= now })
	maps.DeleteFunc(m.pairs.underWay, func(_ string, deliveries memoryDeliveries) bool { return deliveries.expires <= now })
	isIdle := func(_ string, bucket *memoryBucket) bool {
		inUse := func(limit limits.Limit) bool { return bucket.Used(now, m.settings.Lease.Microseconds(), limit) > 0 }
		return !slices.ContainsFunc(bucket.limits, inUse)
	}
	for _, b := range []book{m.inForce, m.shadow} {
		maps.DeleteFunc(b.buckets, isIdle)
		for _, name := range b.ofKeys.Keys() {
			if bucket, found := b.ofKeys.Peek(name); found && isIdle(name, bucket) {
				b.ofKeys.Remove(name)
			}
		}
	}
	m.sweepAt = max(minSweep, 2*m.size())
}

func (m *Memory) size() int {
	return len(m.records.byKey) + m.inForce.size() + m.shadow.size()
}

func (b *book) size() int { return len(b.buckets) + b.ofKeys.Len() }

// find returns the state of a bucket; nil if there is none yet.
func (b *book) find(m bucket) *memoryBucket {
	if m.node.Key == "" {
		return b.buckets[m.name]
	}
	state, _ := b.ofKeys.Get(m.name)
	return state
}

// of returns the state of a bucket: an unused state if there is none yet.
func (b *book) of(m bucket) *memoryBucket {
	state := b.find(m)
	if state == nil {
		state = &memoryBucket{State: m.algorithm.Description().Memory()}
	}
	return state
}

// take takes an event's slots by the limits of the bucket, or by a share of them.
func (b *book) take(m bucket, e algorithm.Event, own []limits.Limit) {
	state := b.of(m)
	state.limits = own
	state.Take(m.sees(e), own)
	if m.node.Key == "" {
		b.buckets[m.name] = state
	} else {
		b.ofKeys.Add(m.name, state)
	}
}

// Mirror records admissions that Redis made now, so that this store does not start without any. While Redis decides, this instance may use a
// limit alone, so the buckets refill by whole limits, not by shares.
func (m *Memory) Mirror(requests []Request) (at time.Time) {
	at = m.times.clock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, request := range requests {
		r := m.rules.InForce.Route(request.Category, request.Key)
		for _, bucket := range r.buckets {
			m.inForce.take(bucket, m.shares.event(at.UnixMicro(), r, request), bucket.limits)
		}
	}
	m.sweep(at.UnixMicro())
	return at
}

// Unmirror takes back an admission that Mirror recorded at a time.
func (m *Memory) Unmirror(lease Lease, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.giveBack(lease.evaluatedBy(m.rules)[0], lease.Request, at.UnixMicro(), anyBucket)
}

// Ended records the end of a delivery, after Mirror recorded its admission.
func (m *Memory) Ended(lease Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endDelivery(lease)
}

func anyBucket(bucket) bool { return true }

// giveBack returns an event's slots to the wanted buckets of a set of limits. A token bucket was refilled by this instance's share up to now, even
// if Redis made the admissions, so it never has too many tokens.
func (m *Memory) giveBack(set evaluated, request Request, at int64, wanted func(bucket) bool) {
	counts, r := &m.inForce, set.route(request)
	if set.name == inShadow {
		counts = &m.shadow
	}
	for _, bucket := range r.buckets {
		if state := counts.find(bucket); state != nil && wanted(bucket) {
			e := m.shares.event(m.times.now(), r, request)
			state.GiveBack(bucket.sees(e), at, m.shares.divided(bucket, e))
		}
	}
}

// Finish records deliveries as [Redis.Finish] does.
func (m *Memory) Finish(leases []Lease) (newly []bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.times.now()
	m.times.forget(now)
	newly = make([]bool, len(leases))
	for i, lease := range leases {
		name := lease.Request.eventKey()
		r := cmp.Or(m.records.byKey[name], &record{})
		m.records.byKey[name], r.version = r, lease.Request.Message.version()
		r.fold = nil
		if newly[i] = r.doneUntil <= now; newly[i] {
			m.pairs.settle(lease, now) // not again: meanwhile the pair may have been resolved
			r.doneUntil = now + m.settings.Retention.Microseconds()
		}
		m.endDelivery(lease)
	}
	return newly
}

// Extend renews or ends leases as [Redis.Extend] does.
func (m *Memory) Extend(leases []Lease, d time.Duration) []Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.times.now()
	end := now + d.Microseconds()
	extended := make([]Lease, len(leases))
	held := make([]bool, len(leases)) // before this call, which may renew a lease twice
	for i, lease := range leases {
		r, known := m.records.byKey[lease.Request.eventKey()], lease.End
		// Only after the clock has gone back can the known end of a lease that was released be ahead: the holder may go on, as in extend.lua.
		held[i] = r != nil && r.doneUntil == 0 && (r.leaseEnd == known || r.leaseEnd > known && known > now && (r.waits || r.released || !lease.Waits))
	}
	for i, lease := range leases {
		r := m.records.byKey[lease.Request.eventKey()]
		lease.End = 0
		if held[i] && m.goesOn(lease, now, d) {
			r.leaseEnd, lease.End = end, end
			r.inDoubt = r.inDoubt || d > 0 && lease.InDoubt
			if r.released, r.waits = d == 0 && !lease.InDoubt, d > 0 && lease.Waits; r.released {
				r.leaseEnd-- // no caller knows it
			}
		}
		extended[i] = lease
	}
	return extended
}

// endDelivery returns the slots that follow a delivery.
func (m *Memory) endDelivery(lease Lease) {
	for _, set := range lease.evaluatedBy(m.rules) {
		m.giveBack(set, lease.Request, 0, bucket.followsDelivery)
	}
}

// goesOn keeps the slots that follow a delivery as long as its lease, or returns them if d is 0. It returns false if the slots were lost
// and other events have them.
func (m *Memory) goesOn(lease Lease, now int64, d time.Duration) bool {
	if d == 0 {
		m.endDelivery(lease)
		return true
	}
	kept, sets := max(d, m.settings.Lease).Microseconds(), lease.evaluatedBy(m.rules)
	if m.resume(sets[0], lease.Request, now, kept) > 0 && !m.settings.Forward {
		return false
	}
	for _, following := range sets[1].following(lease.Request, d) {
		if state := m.shadow.find(following); state != nil {
			e := m.shares.event(now, sets[1].current.Route(lease.Request.Category, lease.Request.Key), lease.Request)
			e.Lease = kept
			state.following().Extend(e, following.limits[0])
		}
	}
	return true
}

// Refund returns slots as [Redis.Refund] does.
func (m *Memory) Refund(leases []Lease) []bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	returned := make([]bool, len(leases))
	for i, lease := range leases {
		r := m.records.byKey[lease.Request.eventKey()]
		if returned[i] = r != nil && r.doneUntil == 0 && !r.released && r.leaseEnd == lease.End; !returned[i] {
			continue
		}
		m.times.forget(m.times.now())
		delete(m.records.byKey, lease.Request.eventKey())
		sets := lease.evaluatedBy(m.rules)
		m.giveBack(sets[0], lease.Request, r.at, func(b bucket) bool {
			return !b.algorithm.Description().TimesAdmissions || r.route != nil && r.route.named(b.name) >= 0
		})
		name := lease.Request.messageName()
		at, admitted := m.shadow.admitted[name]
		delete(m.shadow.admitted, name)
		if admitted {
			m.giveBack(sets[1], lease.Request, at, anyBucket)
		}
	}
	return returned
}

// Usage returns the number of slots in use, for each limit of each node.
func (m *Memory) Usage(nodes []limits.Node) [][]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.times.now()
	used := make([][]int64, len(nodes))
	for i, node := range nodes {
		for _, bucket := range m.rules.InForce.bucketsOf(node) {
			state := m.inForce.of(bucket)
			for _, limit := range bucket.limits {
				used[i] = append(used[i], state.Used(now, m.settings.Lease.Microseconds(), limit))
			}
		}
	}
	return used
}
