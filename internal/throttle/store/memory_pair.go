package store

import (
	"slices"
	"time"
)

// memoryPair is an open pair or, once it was resolved, the messages that the resolving event has taken.
type memoryPair struct {
	messages []pairMessage
	expires  int64
}

// pairMessage is one message of a pair.
type pairMessage struct {
	version  int64 // of the event
	eventKey string
	receipt  string

	posted   int64
	severity int
	folded   int64 // number of events that are folded into it
	newest   int64 // the newest version of these events

	staysOpen bool // of a report: the message stays in the open pair
}

// mostPairMessages is MOST_MESSAGES of lib/pairs.lua.
const mostPairMessages = 20

// mostDeliveries is MOST_DELIVERIES of lib/pairs.lua.
const mostDeliveries = 100

// memoryPairs are the pairs of a memory store.
type memoryPairs struct {
	ttl     time.Duration
	byField map[string]memoryPair // by the field name in Redis; nil: pairs are not tracked

	underWay map[string]memoryDeliveries // by pair: its events that are being delivered and may be folded
	coming   map[string]int64            // by pair: until when events come back that wait for a message

	rule  Flap
	flaps map[string]*memoryFlap // by pair
}

// memoryDeliveries are the firing events of a pair that are being delivered, as lib/pairs.lua stores them.
type memoryDeliveries struct {
	versions map[string]int64 // by event key
	expires  int64
}

// deliveries returns the versions of the events of a pair that are being delivered, by event key.
func (p *memoryPairs) deliveries(pair string, now int64) map[string]int64 {
	if deliveries := p.underWay[pair]; deliveries.expires > now {
		return deliveries.versions
	}
	return make(map[string]int64)
}

// of returns what a field holds; an expired field holds nothing.
func (p *memoryPairs) of(field string, now int64) (pair memoryPair, there bool) {
	if pair = p.byField[field]; pair.expires > now {
		return pair, true
	}
	return memoryPair{}, false
}

// settle records a delivery that is reported for the first time.
func (p *memoryPairs) settle(lease Lease, now int64) {
	field := lease.pairField()
	if p.byField == nil || field == "" || lease.Unshown {
		return
	}
	if lease.Resolving {
		delete(p.byField, field)
		return
	}
	var messages []pairMessage
	if pair, open := p.of(field, now); open {
		messages = pair.messages
	}
	message := pairMessage{
		version: lease.Request.Message.version(), eventKey: lease.Request.eventKey(), receipt: lease.Receipt,
		posted: now, severity: lease.Request.Fold.Severity,
	}
	message.version = versionOf(messages, message.eventKey, message.version)
	messages = append(messages, message)
	if len(messages) > mostPairMessages {
		messages = slices.Delete(messages, 1, 2)
	}
	p.byField[field] = memoryPair{messages: messages, expires: now + p.ttl.Microseconds()}
	p.endDelivery(field, message.eventKey, now)
}

// endDelivery removes an event from the events of a pair that are being delivered.
func (p *memoryPairs) endDelivery(pair, eventKey string, now int64) {
	if deliveries := p.deliveries(pair, now); deliveries[eventKey] != 0 {
		delete(deliveries, eventKey)
		p.underWay[pair] = memoryDeliveries{deliveries, now + p.ttl.Microseconds()}
	}
}

// versionOf returns the version that all messages of an event have. Without a message of the event, it returns version.
func versionOf(messages []pairMessage, eventKey string, version int64) int64 {
	if i := slices.IndexFunc(messages, func(m pairMessage) bool { return m.eventKey == eventKey }); i >= 0 {
		return messages[i].version
	}
	return version
}

// foldInto counts an event in the newest message of an open pair. flaps reports whether the key of the pair is flapping.
func (p *memoryPairs) foldInto(pair memoryPair, request Request, now int64, flaps bool) *Fold {
	messages := slices.Clone(pair.messages)
	newest := &messages[len(messages)-1]
	newest.folded, newest.newest = newest.folded+1, max(newest.newest, request.Message.version())
	p.byField[request.Pair] = memoryPair{messages: messages, expires: now + p.ttl.Microseconds()}
	fold := newFold(newest.folded+1, newest.posted/time.Minute.Microseconds())
	fold.Flaps = flaps
	return fold
}

// folded records an event that is folded.
func (r *records) folded(name string, version, now int64, fold *Fold) Decision {
	r.byKey[name] = &record{version: version, doneUntil: now + r.retention.Microseconds(), fold: fold}
	return Decision{Verdict: Folded, Fold: fold}
}

// storedLater is STORED_LATER of resolve.lua.
const storedLater = 2000 * versionSequences

// take gives the messages of an open pair to an event that resolves them: the messages of events that were stored before it. If there are
// none, it gets the messages of the first event that was stored up to two seconds later. The pair stays open for all other messages.
func (p *memoryPairs) take(pair memoryPair, request Request) (taken []pairMessage) {
	resolves := func(message pairMessage) bool {
		return message.version <= request.Message.version() || request.Steady > 0
	}
	if !slices.ContainsFunc(pair.messages, resolves) {
		first := slices.IndexFunc(pair.messages, func(m pairMessage) bool { return m.version <= request.Message.version()+storedLater })
		if first < 0 {
			return nil
		}
		resolves = func(message pairMessage) bool { return message.eventKey == pair.messages[first].eventKey }
	}
	var left []pairMessage
	for _, message := range pair.messages {
		if !resolves(message) {
			left = append(left, message)
			continue
		}
		taken = append(taken, message)
	}
	delete(p.byField, request.Pair)
	if len(left) > 0 {
		p.byField[request.Pair] = memoryPair{messages: left, expires: pair.expires}
	}
	p.byField["\n"+request.eventKey()] = memoryPair{messages: taken, expires: pair.expires}
	return taken
}

// KeepPairs makes Finish record open pairs, for Resolve. Only expiry bounds their number.
func (m *Memory) KeepPairs() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pairs.byField = make(map[string]memoryPair)
}

// Resolve evaluates resolved events as [Redis.Resolve] does, once KeepPairs was called. Nobody announces deliveries here: while a firing event
// that is never folded is being delivered, the resolved event is Unpaired.
func (m *Memory) Resolve(requests []Request) []Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, granted := m.times.now(), false
	var ended []pairMessage
	resolutions := make([]Decision, len(requests))
	for i, request := range requests {
		name := request.eventKey()
		known := m.records.known(name, now)
		resolution, taken := m.resolve(request, name, known, now)
		ended = append(ended, taken...)
		if resolution.Verdict == Admitted || resolution.Verdict == Reclaimed {
			granted = true
			doubt := resolution.Verdict == Reclaimed && known != nil && known.mayBeDelivered()
			lease := Lease{Request: request, End: now + m.settings.Lease.Microseconds(), slotless: true, Resolving: true, InDoubt: doubt}
			m.records.byKey[name] = &record{version: request.Message.version(), leaseEnd: lease.End, inDoubt: doubt}
			resolution.Lease, resolution.InDoubt = lease, doubt
		}
		if taken, there := m.pairs.of("\n"+name, now); there && (resolution.Lease.End > 0 || resolution.Verdict == Done) {
			for _, message := range taken.messages {
				count := newCount(message.folded, Change(message.newest).At().UnixMicro(), message.severity)
				count.StaysOpen = message.staysOpen
				resolution.Resolved = append(resolution.Resolved, Resolved{message.receipt, count})
			}
		}
		resolutions[i] = resolution
	}
	for _, message := range ended { // a repetition that comes late is a duplicate
		if known := m.records.known(message.eventKey, now); known != nil && (known.doneUntil == 0 || known.fold != nil) {
			continue
		}
		m.records.byKey[message.eventKey] = &record{version: message.version, doneUntil: now + m.settings.Retention.Microseconds()}
	}
	if granted {
		m.times.remember(now, "")
		m.sweep(now)
	}
	return resolutions
}

func (m *Memory) resolve(request Request, name string, known *record, now int64) (resolution Decision, taken []pairMessage) {
	switch {
	case known != nil && known.version != request.Message.version():
		return Decision{Verdict: Duplicate}, nil
	case known != nil && known.fold != nil:
		return Decision{Verdict: Folded, Fold: known.fold}, nil
	case known != nil && known.doneUntil != 0:
		return Decision{Verdict: Done}, nil
	case known != nil && m.records.isHeld(known, now):
		return Decision{Verdict: Leased, Wait: micros(known.leaseEnd - now)}, nil
	}
	if _, taken := m.pairs.of("\n"+name, now); taken || known != nil {
		return Decision{Verdict: Reclaimed}, nil
	}
	if wait := m.pairs.waitForDelivery(&m.records, request, now); wait > 0 {
		return Decision{Verdict: Leased, Wait: wait}, nil
	}
	if request.Steady > 0 {
		return m.pairs.report(request, now)
	}
	flaps := m.pairs.countChange(request, now)
	if pair, open := m.pairs.of(request.Pair, now); open {
		firesLater := slices.ContainsFunc(pair.messages, func(m pairMessage) bool { return m.newest > request.Message.version() })
		if firesLater || flaps && pair.messages[len(pair.messages)-1].receipt != "" {
			return m.records.folded(name, request.Message.version(), now, m.pairs.foldInto(pair, request, now, flaps)), nil
		}
		if taken := m.pairs.take(pair, request); taken != nil {
			return Decision{Verdict: Admitted}, taken
		}
		return Decision{Verdict: Unpaired, Awaits: true}, nil
	}
	return Decision{Verdict: Unpaired}, nil
}

// waitForDelivery returns when to ask again for a pair because of a firing event that is being delivered or comes back; 0 without one. It counts
// only events that were stored before the resolved event, unless the pair is not open or the request is a report.
func (p *memoryPairs) waitForDelivery(records *records, request Request, now int64) (wait time.Duration) {
	if p.coming[request.Pair] > now {
		wait = lapsedWait
	}
	_, isOpen := p.of(request.Pair, now)
	for name, version := range p.deliveries(request.Pair, now) {
		known := records.known(name, now)
		if known == nil || known.doneUntil != 0 || isOpen && version > request.resolvesUpto() && request.Steady == 0 {
			continue
		}
		if records.isHeld(known, now) {
			wait = max(wait, micros(known.leaseEnd-now))
		} else {
			wait = max(wait, lapsedWait)
		}
	}
	return wait
}

// lapsedWait is LAPSED_WAIT of resolve.lua.
const lapsedWait = time.Second
