package throttle

import (
	"time"
)

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
	name, version := request.eventKey(), request.Message.version()
	known := b.records[name]
	if known != nil && !b.remembered(known, b.now) {
		known = nil
	}
	switch {
	case known == nil:
		return b.evaluate(request, name, version)
	case known.version != version:
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
		if wait := b.resume(b.rules.tree, request, b.now, b.lease); wait > 0 {
			return Decision{Verdict: Leased, Wait: time.Duration(wait) * time.Microsecond}
		}
		if b.rules.tree.route(request.Category).timed && known.at < b.since {
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
	return Decision{Verdict: Reclaimed, Lease: lease, InDoubt: known.inDoubt}
}

func (b *memoryBatch) newLease(request Request, end int64) Lease {
	return Lease{Request: request, End: end, tree: b.rules.tree, shadow: b.rules.shadow}
}

func (b *memoryBatch) evaluate(request Request, name string, version int64) Decision {
	if request.Cost == 0 {
		return Decision{Verdict: Unknown}
	}
	decision := b.charge(&b.inForce, b.rules.tree, request)
	at := int64(0)
	if decision.Verdict == Admitted {
		at = b.now
	}
	if b.rules.shadow != nil {
		decision.Shadow = b.evaluateInShadow(request)
	}
	if decision.Verdict == Admitted || b.settings.Forward {
		decision.Lease = b.newLease(request, b.now+b.lease)
		decision.Lease.slotless = decision.Verdict != Admitted
		b.records[name] = &record{
			version: version, at: at, timed: at != 0 && b.rules.tree.route(request.Category).timed, leaseEnd: decision.Lease.End,
		}
		b.granted[name] = true
		b.grants++
	}
	return decision
}

// evaluateInShadow tells what the shadow says. An event that it has admitted takes no second slot.
func (b *memoryBatch) evaluateInShadow(request Request) ShadowDecision {
	name := request.messageName()
	if at, known := b.shadow.admitted[name]; known && at > b.now-b.rules.shadowKept() {
		return ShadowDecision{Verdict: Admitted}
	}
	d := b.charge(&b.shadow, b.rules.shadow, request)
	if d.Verdict == Admitted {
		b.shadow.admitted[name] = b.now
		b.shadowAdmitted = true
	}
	return ShadowDecision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
}

// charge takes an event's slots at all buckets of its path, or tells the first limit from the root down that denies.
func (b *memoryBatch) charge(set *book, tree *routes, request Request) Decision {
	r := tree.route(request.Category)
	e := b.event(b.now, r, tree, request)
	for _, m := range r.buckets {
		for _, limit := range m.limits {
			if tree.neverFits(m, limit, r.guarantee, e.cost) {
				return Decision{Verdict: ExceedsCapacity, Node: m.node, Limit: limit}
			}
		}
	}
	for _, m := range r.buckets {
		if full, wait := set.of(m).wait(m.sees(e), b.divided(m, e, tree)); wait > 0 {
			return Decision{Verdict: Denied, Node: m.node, Limit: m.limits[full], Wait: time.Duration(wait) * time.Microsecond}
		}
	}
	for _, m := range r.buckets {
		set.take(m, e)
	}
	return Decision{Verdict: Admitted}
}

// resume renews the slots that follow a delivery which goes on, and takes those again that it has lost; or tells how long it
// has to wait for them. A limit that has become too small for it does not keep it for ever.
func (m *Memory) resume(evaluated *routes, request Request, now, lease int64) (wait int64) {
	tree := m.rules.tree
	e := m.event(now, tree.route(request.Category), tree, request)
	e.lease = lease
	e.message = request.messageName()
	var held, lost []bucket
	for _, following := range tree.following(evaluated, request.Category) {
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
