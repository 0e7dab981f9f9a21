package store

import "time"

// restore is [Redis.restore] in memory, for events without pairs in limits of sliding logs.
func (m *Memory) restore(admissions []Admission, clock time.Time) (leaseEnd int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.times.now()
	leaseEnd = now + m.settings.Lease.Microseconds()
	for _, a := range admissions {
		request := a.Lease.Request
		r := m.records.known(request.eventKey(), now)
		if r == nil {
			r = m.admitEarlier(request, now-clock.Sub(a.At).Microseconds())
		} else if r.leaseEnd <= now {
			r.inDoubt = r.mayBeDelivered()
		}
		switch {
		case r.doneUntil > now:
		case a.Became == WasDelivered:
			r.doneUntil = now + m.settings.Retention.Microseconds()
		default:
			r.leaseEnd, r.released, r.waits, r.inDoubt = leaseEnd, false, false, r.inDoubt || a.Lease.InDoubt
		}
	}
	return leaseEnd
}

// admitEarlier takes the slots of an event at a time that has passed, and returns its new record.
func (m *Memory) admitEarlier(request Request, at int64) *record {
	route := m.rules.InForce.Route(request.Category, request.Key)
	for _, bucket := range route.buckets {
		m.inForce.take(bucket, m.shares.event(at, route, m.rules.InForce, request))
	}
	r := &record{version: request.Message.version(), at: at, route: route}
	m.records.byKey[request.eventKey()] = r
	return r
}
