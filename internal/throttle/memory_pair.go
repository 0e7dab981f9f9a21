package throttle

import (
	"context"
	"time"
)

// memoryPair is a pair that is open or, once it was resolved, that of the event which resolves it.
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

// takePair gives an open pair to an event. What fired again after the event stays open.
func (m *Memory) takePair(pair memoryPair, request Request) {
	if pair.again && pair.version > request.Message.version() {
		m.pairs[request.Pair] = memoryPair{version: pair.version, first: pair.newest, expires: pair.expires}
	} else {
		delete(m.pairs, request.Pair)
	}
	m.pairs["\n"+request.eventKey()] = memoryPair{first: pair.first, expires: pair.expires}
}

// Resolve evaluates resolved events as [Redis.Resolve] does, once KeepPairs was called. Only what was delivered opens a pair:
// an event whose firing one is under way is Unpaired here.
func (m *Memory) Resolve(_ context.Context, requests []Request) ([]Decision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, granted := m.now(), make(map[string]bool)
	resolutions := make([]Decision, len(requests))
	for i, request := range requests {
		name := request.eventKey()
		resolutions[i] = m.resolve(request, name, now, granted[name])
		switch resolution := &resolutions[i]; resolution.Verdict {
		case Admitted, Reclaimed:
			granted[name] = true
			end := now + m.settings.Lease.Microseconds()
			known := m.records[name]
			resolution.InDoubt = resolution.Verdict == Reclaimed && known != nil && m.remembered(known, now) && (known.inDoubt || !known.released)
			m.records[name] = &record{version: request.Message.version(), leaseEnd: end, inDoubt: resolution.InDoubt}
			resolution.Lease = Lease{Request: request, End: end, slotless: true, resolving: true, inDoubt: resolution.InDoubt}
			taken, _ := m.pair(resolution.Lease.pairField(), now)
			resolution.Opened = taken.first
		}
	}
	if len(granted) > 0 {
		m.remember(now, "")
	}
	return resolutions, nil
}

func (m *Memory) resolve(request Request, name string, now int64, granted bool) Decision {
	known := m.records[name]
	if known != nil && !m.remembered(known, now) {
		known = nil
	}
	answer := func(verdict Verdict, wait int64) Decision {
		return Decision{Verdict: verdict, Wait: time.Duration(wait) * time.Microsecond}
	}
	switch {
	case known != nil && known.version != request.Message.version():
		return answer(Duplicate, 0)
	case granted:
		return answer(Leased, m.settings.Lease.Microseconds())
	case known != nil && known.doneUntil != 0:
		return answer(Done, 0)
	case known != nil && known.leaseEnd > now:
		return answer(Leased, known.leaseEnd-now)
	}
	if _, taken := m.pair("\n"+name, now); taken || known != nil {
		return answer(Reclaimed, 0)
	}
	if pair, open := m.pair(request.Pair, now); open {
		m.takePair(pair, request)
		return answer(Admitted, 0)
	}
	return answer(Unpaired, 0)
}
