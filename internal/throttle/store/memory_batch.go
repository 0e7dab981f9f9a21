package store

import (
	"cmp"
	"maps"
	"slices"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// memoryBatch is one call of Decide.
type memoryBatch struct {
	memory             *Memory
	now, lease         int64
	leaseGrantedBefore int64           // the end of the leases that this very call granted before
	granted            map[string]bool // records whose lease this call has given away
	shadowAdmitted     bool            // the shadow admitted something new
	announced          []string        // pairs of events whose deliveries begin with this call
	grants             int             // number of leases newly granted
}

func (b *memoryBatch) decide(request Request) Decision {
	name, version := request.eventKey(), request.Message.version()
	known := b.memory.records.known(name, b.now)
	switch {
	case known == nil:
		if folded, ends := b.fold(request, name, version); ends {
			return folded
		}
		return b.evaluate(request, name, version)
	case known.version != version:
		return Decision{Verdict: Duplicate}
	case known.fold != nil:
		return Decision{Verdict: Folded, Fold: known.fold}
	case known.doneUntil != 0:
		return Decision{Verdict: Done}
	case b.granted[name]:
		return Decision{Verdict: Leased, Wait: b.memory.settings.Lease}
	case known.leaseEnd == b.leaseGrantedBefore && !known.released && !known.waits:
		b.granted[name] = true
		if known.inDoubt {
			return b.takenOver(request, known)
		}
		return Decision{Verdict: Admitted, Lease: b.newLease(request, known.leaseEnd)}
	case b.memory.records.isHeld(known, b.now):
		return Decision{Verdict: Leased, Wait: micros(known.leaseEnd - b.now)}
	case request.Cost == 0:
		return Decision{Verdict: Unknown}
	}
	sets := b.newLease(request, 0).evaluatedBy(b.memory.rules)
	if wait := b.memory.resume(sets[0], request, b.now, b.lease); wait > 0 && !b.memory.settings.Forward {
		return Decision{Verdict: Leased, Wait: micros(wait)}
	}
	known.leaseEnd = b.now + b.lease
	known.inDoubt, known.released, known.waits = known.mayBeDelivered(), false, false
	b.granted[name] = true
	b.grants++
	b.announce(request, name)
	return b.takenOver(request, known)
}

func (b *memoryBatch) takenOver(request Request, known *record) Decision {
	lease := b.newLease(request, known.leaseEnd)
	lease.InDoubt = known.inDoubt
	return Decision{Verdict: Reclaimed, Lease: lease, InDoubt: known.inDoubt}
}

// fold counts an event in the newest message of its pair, or lets it wait for that message. If it does neither, ends is false.
func (b *memoryBatch) fold(request Request, name string, version int64) (answer Decision, ends bool) {
	m := b.memory
	if m.pairs.byField == nil || !m.rules.folding(m.settings)(request) {
		return Decision{}, false
	}
	flaps := m.pairs.countChange(request, b.now)
	if pair, open := m.pairs.of(request.Pair, b.now); open {
		newest := pair.messages[len(pair.messages)-1]
		fits := flaps || newest.posted > b.now-request.Fold.Within.Microseconds()
		if newest.receipt != "" && newest.severity >= request.Fold.Severity && fits {
			m.pairs.endDelivery(request.Pair, name, b.now)
			return m.records.folded(name, version, b.now, m.pairs.foldInto(pair, request, b.now, flaps)), true
		}
	}
	if !flaps && request.Fold.Within == 0 {
		return Decision{}, false
	}
	for other := range m.pairs.deliveries(request.Pair, b.now) {
		known := m.records.known(other, b.now)
		if other != name && known != nil && known.doneUntil == 0 {
			m.pairs.coming[request.Pair] = max(m.pairs.coming[request.Pair], b.now+request.Fold.ComesBack.Microseconds())
			return Decision{Verdict: Leased, Wait: request.Fold.ComesBack, Awaits: true}, true
		}
	}
	return Decision{}, false
}

// announce records that an event is being delivered, if it may be folded.
func (b *memoryBatch) announce(request Request, name string) {
	pairs := &b.memory.pairs
	if pairs.byField == nil || !b.memory.rules.folding(b.memory.settings)(request) {
		return
	}
	open, _ := pairs.of(request.Pair, b.now)
	version := versionOf(open.messages, name, request.Message.version())
	deliveries := pairs.deliveries(request.Pair, b.now)
	if deliveries[name] == version {
		return
	}
	deliveries[name] = version
	pairs.underWay[request.Pair] = memoryDeliveries{deliveries, b.now + pairs.ttl.Microseconds()}
	b.announced = append(b.announced, request.Pair)
}

// forgetDeliveries removes ended deliveries, and the oldest deliveries above the bound, from the pairs to which this call added deliveries.
func (b *memoryBatch) forgetDeliveries() {
	for _, pair := range b.announced {
		deliveries := b.memory.pairs.underWay[pair].versions
		maps.DeleteFunc(deliveries, func(name string, _ int64) bool {
			known := b.memory.records.known(name, b.now)
			return known == nil || known.doneUntil != 0
		})
		oldest := slices.SortedFunc(maps.Keys(deliveries), func(a, b string) int {
			return cmp.Or(cmp.Compare(deliveries[a], deliveries[b]), cmp.Compare(a, b))
		})
		for _, name := range oldest[:max(0, len(oldest)-mostDeliveries)] {
			delete(deliveries, name)
		}
	}
}

func (b *memoryBatch) newLease(request Request, end int64) Lease {
	return Lease{Request: request, End: end, rules: b.memory.rules, slotless: request.Slotless}
}

func (b *memoryBatch) evaluate(request Request, name string, version int64) (decision Decision) {
	if request.Cost == 0 {
		return Decision{Verdict: Unknown}
	}
	if denial := b.memory.rules.Muted(request); denial != nil {
		decision.MutedBy(denial)
		return decision
	}
	decision = Decision{Verdict: Admitted}
	if !request.Slotless {
		decision = b.charge(&b.memory.inForce, b.memory.rules.InForce, request)
	}
	if b.memory.rules.InShadow != nil {
		decision.Shadow = b.evaluateInShadow(request)
	}
	admitted := decision.Verdict == Admitted
	if !admitted && !b.memory.settings.Forward {
		return decision
	}
	decision.Lease = b.newLease(request, b.now+b.lease)
	decision.Lease.slotless = !admitted || request.Slotless
	r := &record{version: version, leaseEnd: decision.Lease.End}
	if admitted {
		r.at, r.route = b.now, b.memory.rules.InForce.Route(request.Category, request.Key)
	}
	b.memory.records.byKey[name] = r
	b.granted[name] = true
	b.grants++
	b.announce(request, name)
	return decision
}

// evaluateInShadow returns the decision of the shadow limits. An event that the shadow has admitted takes no second slot.
func (b *memoryBatch) evaluateInShadow(request Request) ShadowDecision {
	name := request.messageName()
	if at, known := b.memory.shadow.admitted[name]; known && at > b.now-b.memory.rules.shadowKept(b.memory.settings.Lease) {
		return ShadowDecision{Verdict: Admitted}
	}
	d := b.charge(&b.memory.shadow, b.memory.rules.InShadow, request)
	if d.Verdict == Admitted {
		b.memory.shadow.admitted[name] = b.now
		b.shadowAdmitted = true
	}
	return d.ofShadow()
}

// charge takes an event's slots at all buckets of its path. If a limit denies the event, it takes nothing and returns the first such limit
// from the root down.
func (b *memoryBatch) charge(set *book, tree *Routes, request Request) Decision {
	r := tree.Route(request.Category, request.Key)
	e := b.memory.shares.event(b.now, r, request)
	for _, m := range r.buckets {
		for _, limit := range m.limits {
			if m.neverFits(limit, r.guarantee, e.Cost) {
				return Decision{Verdict: ExceedsCapacity, Node: m.node, Limit: limit}
			}
		}
	}
	own := make([][]limits.Limit, len(r.buckets))
	for i, m := range r.buckets {
		own[i] = b.memory.shares.divided(m, e)
		if full, wait := set.of(m).Wait(m.sees(e), own[i]); wait > 0 {
			return Decision{Verdict: Denied, Node: m.node, Limit: m.limits[full], Wait: micros(wait)}
		}
	}
	for i, m := range r.buckets {
		set.take(m, e, own[i])
	}
	return Decision{Verdict: Admitted}
}

// resume renews the slots that follow a continued delivery, and takes lost slots again. If other events have the lost slots, it returns how
// long the delivery must wait. It ignores a limit that has become too small for the event, which would wait for ever.
func (m *Memory) resume(set evaluated, request Request, now, lease int64) (wait int64) {
	e := m.shares.event(now, m.rules.InForce.Route(request.Category, request.Key), request)
	e.Lease = lease
	e.Message = request.messageName()
	following := slices.DeleteFunc(set.following(request, micros(lease)), func(b bucket) bool { return e.Cost > b.limits[0].Count })
	for _, b := range following {
		state := m.inForce.of(b)
		if state.following().Holds(e, b.limits[0]) {
			continue
		}
		if _, wait := state.Wait(e, m.shares.divided(b, e)); wait > 0 {
			return wait
		}
	}
	for _, b := range following {
		m.inForce.take(b, e, b.limits)
	}
	return 0
}
