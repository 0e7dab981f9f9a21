package throttle

import (
	"context"
	"time"
)

// memoryPair is a pair that is open or, once it was resolved, that of the event which resolves it.
type memoryPair struct {
	stamp   int64  // of the newest message that fired
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
	stamp := lease.Message.stamp()
	switch pair, open := m.pair(field, now); {
	case !open:
		m.pairs[field] = memoryPair{stamp: stamp, first: lease.receipt, expires: now + m.settings.PairTTL.Microseconds()}
	case stamp > pair.stamp:
		pair.stamp, pair.newest, pair.again = stamp, lease.receipt, true
		m.pairs[field] = pair
	}
}

// takePair gives an open pair to the event of a record. What fired again after the event stays open.
func (m *Memory) takePair(pair memoryPair, request Request) {
	if pair.again && pair.stamp > request.Message.stamp() {
		m.pairs[request.Pair] = memoryPair{stamp: pair.stamp, first: pair.newest, expires: pair.expires}
	} else {
		delete(m.pairs, request.Pair)
	}
	m.pairs["\n"+request.record()] = memoryPair{first: pair.first, expires: pair.expires}
}

// Resolve judges resolved events as [Redis.Resolve] does, once KeepPairs was called. Only what was delivered opens a pair:
// an event whose firing one is under way is Unpaired here.
func (m *Memory) Resolve(_ context.Context, requests []Request) ([]Resolution, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, granted := m.now(), make(map[string]bool)
	resolutions := make([]Resolution, len(requests))
	for i, request := range requests {
		name := request.record()
		resolutions[i] = m.resolve(request, name, now, granted[name])
		switch resolution := &resolutions[i]; resolution.Verdict {
		case Admitted, Repeated:
			granted[name] = true
			end := now + m.settings.Lease.Microseconds()
			known := m.records[name]
			resolution.InDoubt = resolution.Verdict == Repeated && known != nil && m.remembered(known, now) && (known.inDoubt || !known.released)
			m.records[name] = &record{stamp: request.Message.stamp(), leaseEnd: end, inDoubt: resolution.InDoubt}
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

func (m *Memory) resolve(request Request, name string, now int64, granted bool) Resolution {
	known := m.records[name]
	if known != nil && !m.remembered(known, now) {
		known = nil
	}
	answer := func(verdict Verdict, wait int64) Resolution {
		return Resolution{Decision: Decision{Verdict: verdict, Wait: time.Duration(wait) * time.Microsecond}}
	}
	switch {
	case known != nil && known.stamp != request.Message.stamp():
		return answer(Duplicate, 0)
	case granted:
		return answer(Leased, m.settings.Lease.Microseconds())
	case known != nil && known.doneUntil != 0:
		return answer(Done, 0)
	case known != nil && known.leaseEnd > now:
		return answer(Leased, known.leaseEnd-now)
	}
	if _, taken := m.pair("\n"+name, now); taken || known != nil {
		return answer(Repeated, 0)
	}
	if pair, open := m.pair(request.Pair, now); open {
		m.takePair(pair, request)
		return answer(Admitted, 0)
	}
	return answer(Unpaired, 0)
}
