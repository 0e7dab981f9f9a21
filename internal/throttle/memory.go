package throttle

import (
	"context"
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
	logs    map[string]*slidingLog // by path
	records map[string]*record
	calls   []grantingCall // in the order of their times
	sweepAt int            // number of records at which the forgotten ones are removed next
}

// record is what is remembered of an admitted event.
type record struct {
	stamp     int64
	at        int64 // when its slots were taken; 0 if none were
	leaseEnd  int64 // of whoever delivers it; it counts if doneUntil is 0
	doneUntil int64 // when it may be forgotten, once it is delivered
}

// grantingCall is a call that granted something.
type grantingCall struct {
	at    int64
	nonce string
}

// minSweep is how many records and logs are kept before looking for forgotten ones is worth it.
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
		logs:     make(map[string]*slidingLog),
		records:  make(map[string]*record),
		sweepAt:  minSweep,
	}
}

// Decide implements [Limiter]. It never fails.
func (m *Memory) Decide(_ context.Context, requests []Request) (Ruling, error) {
	return m.decideBatch(newNonce(), requests), nil
}

// decideBatch gives a repeated call, told by its nonce, the same answer.
func (m *Memory) decideBatch(nonce string, requests []Request) Ruling {
	m.mu.Lock()
	defer m.mu.Unlock()
	batch := memoryBatch{
		Memory:    m,
		now:       m.now(),
		share:     int64(max(1, m.share())),
		lease:     m.settings.Lease.Microseconds(),
		retention: m.settings.Retention.Microseconds(),
		granted:   make(map[string]bool),
	}
	for _, call := range m.calls {
		if call.nonce == nonce {
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
	return ruling
}

// now is always later than a time at which something was granted, unless that lies beyond the tolerance.
func (m *Memory) now() int64 {
	now := m.clock().UnixMicro()
	upto := now + tolerance.Microseconds()
	for _, call := range m.calls {
		if call.at <= upto {
			now = max(now, call.at+1)
		}
	}
	return now
}

func (m *Memory) remember(now int64, nonce string) {
	kept := m.calls[:0]
	for _, call := range m.calls {
		if call.nonce != nonce && call.at > now-nonceKept.Microseconds() && call.at <= now+tolerance.Microseconds() {
			kept = append(kept, call)
		}
	}
	kept = append(kept, grantingCall{at: now, nonce: nonce})
	m.calls = kept
	m.sweep(now)
}

// sweep removes, from time to time, forgotten records and the logs of paths that admitted nothing within any window.
func (m *Memory) sweep(now int64) {
	if len(m.records)+len(m.logs) < m.sweepAt {
		return
	}
	for name, r := range m.records {
		if !m.remembered(r, now) {
			delete(m.records, name)
		}
	}
	horizon := now - m.settings.Tree.LongestWindow().Microseconds()
	for path, log := range m.logs {
		if log.after(horizon) == len(log.entries) {
			delete(m.logs, path)
		}
	}
	m.sweepAt = max(minSweep, 2*(len(m.records)+len(m.logs)))
}

func (m *Memory) remembered(r *record, now int64) bool {
	return r.doneUntil > now || r.doneUntil == 0 && r.leaseEnd > now-m.settings.Retention.Microseconds()
}

func (m *Memory) log(path string) *slidingLog {
	log := m.logs[path]
	if log == nil {
		log = &slidingLog{}
		m.logs[path] = log
	}
	return log
}

// memoryBatch is one call of Decide.
type memoryBatch struct {
	*Memory
	now, share, lease, retention int64
	leaseGrantedBefore           int64           // the end of the leases that this very call granted before
	granted                      map[string]bool // records whose lease this call has given away
	grants                       int             // how many of them did not have it before
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
		return Decision{Verdict: Admitted, Lease: Lease{Request: request, End: known.leaseEnd}}
	case known.leaseEnd > b.now:
		return Decision{Verdict: Leased, Wait: time.Duration(known.leaseEnd-b.now) * time.Microsecond}
	case request.Cost == 0:
		return Decision{Verdict: Unknown}
	default:
		known.leaseEnd = b.now + b.lease
		b.granted[name] = true
		b.grants++
		return Decision{Verdict: Repeated, Lease: Lease{Request: request, End: known.leaseEnd}}
	}
}

func (b *memoryBatch) judge(request Request, name string, stamp int64) Decision {
	if request.Cost == 0 {
		return Decision{Verdict: Unknown}
	}
	path := b.settings.Tree.Path(request.Category)
	decision := b.denial(path, int64(request.Cost))
	at := int64(0)
	if decision.Verdict == Admitted {
		at = b.now
		b.charge(path, at, int64(request.Cost))
	}
	if decision.Verdict == Admitted || b.settings.Forward {
		decision.Lease = Lease{Request: request, End: b.now + b.lease}
		b.records[name] = &record{stamp: stamp, at: at, leaseEnd: decision.Lease.End}
		b.granted[name] = true
		b.grants++
	}
	return decision
}

// denial tells the first limit from the root down that denies.
func (b *memoryBatch) denial(path []Node, cost int64) Decision {
	for _, node := range path {
		for _, limit := range node.Limits {
			if cost > limit.Count {
				return Decision{Verdict: NeverFits, Node: node, Limit: limit}
			}
		}
	}
	for _, node := range path {
		log := b.logs[node.Path]
		if log == nil {
			continue
		}
		for _, limit := range node.Limits {
			from := b.now - limit.Window.Microseconds()
			used := log.count(from, b.now+tolerance.Microseconds())
			leaving := cost - (b.divided(limit, cost) - used) // slots that must leave the window first
			if leaving <= 0 {
				continue
			}
			opens := log.time(from, leaving) + limit.Window.Microseconds()
			return Decision{Verdict: Denied, Node: node, Limit: limit, Wait: time.Duration(opens-b.now) * time.Microsecond}
		}
	}
	return Decision{Verdict: Admitted}
}

// divided is this instance's share of a limit, but never less than one event needs that fits the limit.
func (b *memoryBatch) divided(limit Limit, cost int64) int64 {
	return max(limit.Count/b.share, cost)
}

func (m *Memory) charge(path []Node, at, cost int64) {
	for _, node := range path {
		log := m.log(node.Path)
		log.trim(at - node.Limits.longestWindow().Microseconds())
		log.add(at, cost)
	}
}

// Follow records admissions that another limiter made now, so that this one's count does not start at zero.
func (m *Memory) Follow(requests []Request) (at time.Time) {
	at = m.clock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, request := range requests {
		m.charge(m.settings.Tree.Path(request.Category), at.UnixMicro(), int64(request.Cost))
	}
	m.sweep(at.UnixMicro())
	return at
}

// Unfollow takes back what Follow recorded at a time.
func (m *Memory) Unfollow(request Request, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.discharge(request, at.UnixMicro())
}

// Finish implements [Limiter]. It never fails.
func (m *Memory) Finish(_ context.Context, leases []Lease) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, lease := range leases {
		name := lease.record()
		r := m.records[name]
		if r == nil {
			r = &record{stamp: lease.Message.stamp()}
			m.records[name] = r
		}
		r.stamp = lease.Message.stamp()
		r.doneUntil = now + m.settings.Retention.Microseconds()
	}
	return nil
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
		if r != nil && r.doneUntil == 0 && (r.leaseEnd == known || r.leaseEnd > known && known > now) {
			r.leaseEnd, lease.End = end, end
		}
		extended[i] = lease
	}
	return extended, nil
}

// held is the record of a lease that is still its holder's, or nil.
func (m *Memory) held(lease Lease) *record {
	r := m.records[lease.record()]
	if r == nil || r.doneUntil != 0 || r.leaseEnd != lease.End {
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
		delete(m.records, lease.record())
		m.discharge(lease.Request, r.at)
	}
	return returned, nil
}

func (m *Memory) discharge(request Request, at int64) {
	for _, node := range m.settings.Tree.Path(request.Category) {
		if log := m.logs[node.Path]; log != nil {
			log.remove(at, int64(request.Cost))
		}
	}
}

// Usage tells how many slots are taken now, for each limit of each node.
func (m *Memory) Usage(nodes []Node) [][]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	used := make([][]int64, len(nodes))
	for i, node := range nodes {
		used[i] = make([]int64, len(node.Limits))
		for l, limit := range node.Limits {
			if log := m.logs[node.Path]; log != nil {
				used[i][l] = log.count(now-limit.Window.Microseconds(), now+tolerance.Microseconds())
			}
		}
	}
	return used
}
