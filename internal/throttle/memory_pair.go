package throttle

import "context"

// memoryPair is a pair that is open or, once it was resolved, the pair of the event that resolves it.
type memoryPair struct {
	version int64  // of the newest message that fired
	first   string // receipt of the first message
	newest  string // receipt of the newest one, where there were more
	again   bool   // there were more
	expires int64
}

// pair is what a field holds that has not expired.
func (m *Memory) pair(field string, now int64) (pair memoryPair, there bool) {
	pair, there = m.pairs[field]
	return pair, there && pair.expires > now
}

// KeepPairs has Finish note which pairs are open, for Resolve. Nothing bounds their number but their expiry.
func (m *Memory) KeepPairs() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pairs = make(map[string]memoryPair)
}

// settlePair takes note of a delivery that is told for the first time.
func (m *Memory) settlePair(lease Lease, now int64) {
	field := lease.pairField()
	if m.pairs == nil || field == "" {
		return
	}
	if lease.resolving {
		delete(m.pairs, field)
		return
	}
	version := lease.Message.version()
	switch pair, open := m.pair(field, now); {
	case !open:
		m.pairs[field] = memoryPair{version: version, first: lease.receipt, expires: now + m.settings.PairTTL.Microseconds()}
	case version > pair.version:
		pair.version, pair.newest, pair.again = version, lease.receipt, true
		m.pairs[field] = pair
	}
}

// takePair gives an open pair to an event. A pair that fired again after the event stays open.
func (m *Memory) takePair(pair memoryPair, request Request) {
	if pair.again && pair.version > request.Message.version() {
		m.pairs[request.Pair] = memoryPair{version: pair.version, first: pair.newest, expires: pair.expires}
	} else {
		delete(m.pairs, request.Pair)
	}
	m.pairs["\n"+request.eventKey()] = memoryPair{first: pair.first, expires: pair.expires}
}

// Resolve evaluates resolved events as [Redis.Resolve] does, once KeepPairs was called. Here a firing event opens its pair when it is
// delivered, not before: until then the resolved event is Unpaired.
func (m *Memory) Resolve(_ context.Context, requests []Request) ([]Decision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, granted := m.now(), make(map[string]bool)
	resolutions := make([]Decision, len(requests))
	for i, request := range requests {
		name := request.eventKey()
		known := m.known(name, now)
		resolution := m.resolve(request, name, known, now, granted[name])
		if resolution.Verdict == Admitted || resolution.Verdict == Reclaimed {
			granted[name] = true
			doubt := resolution.Verdict == Reclaimed && known != nil && (known.inDoubt || !known.released)
			lease := Lease{Request: request, End: now + m.settings.Lease.Microseconds(), slotless: true, resolving: true, inDoubt: doubt}
			m.records[name] = &record{version: request.Message.version(), leaseEnd: lease.End, inDoubt: doubt}
			taken, _ := m.pair(lease.pairField(), now)
			resolution.Lease, resolution.InDoubt, resolution.Opened = lease, doubt, taken.first
		}
		resolutions[i] = resolution
	}
	if len(granted) > 0 {
		m.remember(now, "")
	}
	return resolutions, nil
}

func (m *Memory) resolve(request Request, name string, known *record, now int64, granted bool) Decision {
	switch {
	case known != nil && known.version != request.Message.version():
		return Decision{Verdict: Duplicate}
	case granted:
		return Decision{Verdict: Leased, Wait: m.settings.Lease}
	case known != nil && known.doneUntil != 0:
		return Decision{Verdict: Done}
	case known != nil && known.leaseEnd > now:
		return Decision{Verdict: Leased, Wait: micros(known.leaseEnd - now)}
	}
	if _, taken := m.pair("\n"+name, now); taken || known != nil {
		return Decision{Verdict: Reclaimed}
	}
	if pair, open := m.pair(request.Pair, now); open {
		m.takePair(pair, request)
		return Decision{Verdict: Admitted}
	}
	return Decision{Verdict: Unpaired}
}
