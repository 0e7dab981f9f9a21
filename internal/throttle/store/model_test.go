package store

import (
	"context"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestModel makes the same calls to the scripts and the in-memory store, and compares all answers after each step. Each part has its
// own server.
func TestModel(t *testing.T) {
	t.Parallel()
	for part := range 2 {
		t.Run(fmt.Sprint("part ", part+1), func(t *testing.T) {
			t.Parallel()
			server := servertest.StartRedis(t)
			client := newClient(t, redis.Options{Addr: server.Addr})
			rapid.Check(t, func(rt *rapid.T) {
				testkit.NoError(rt, client.FlushDB(context.Background()).Err())
				m := newModel(t, rt, client)
				rt.Repeat(map[string]func(*rapid.T){
					"":                  m.Compare,
					"decide":            m.decide,
					"decide again":      m.decide, // more often than the others
					"decide and decide": m.decide,
					"decide new ones":   m.decideNew,
					"resolve":           m.resolve,
					"report":            m.report,
					"repeat a call":     m.repeat,
					"finish":            m.finish,
					"finish unasked":    m.finishUnasked,
					"extend":            m.extend,
					"refund":            m.refund,
					"wait":              m.wait,
					"wait for a slot":   m.waitForSlot,
					"clock steps":       m.stepClock,
					"change the limits": m.changeLimits,
					"mute":              m.mute,
				})
			})
		})
	}
}

// model holds both stores and the expected state.
type model struct {
	redis      *Redis
	memory     *Memory
	clock      *testkit.Clock // of both stores
	settings   Settings
	categories []string
	nodes      []limits.Node

	guarantees []limits.Guarantee
	revision   uint64
	wentBack   bool           // the clock went back
	times      map[int64]bool // times with slots
	events     map[string]Request
	resolved   []Request
	leases     []heldLease
	admitted   map[string]int    // admissions less refunds, by record and version
	taken      map[string]*taken // by record and version
	lastCall   struct {
		nonce    string
		requests []Request
	}
	lastWait time.Duration     // of the latest denial
	keyed    bool              // keyed events have pairs, and may be folded
	posted   int               // number of receipts
	changed  map[string]Change // newest changes of flapping keys, by pair
}

type heldLease struct {
	Lease
	*taken

	returned bool // the holder returned its slots
}

// taken returns when and by which limits an event's slots were taken.
type taken struct {
	at        int64
	evaluated *Rules // limits of the decision
	none      bool   // denied and forwarded, without slots
	left      bool   // a later call may have found the slots outside of a window
}

func newModel(t *testing.T, rt *rapid.T, client *redis.Client) *model {
	m := &model{
		events:   make(map[string]Request),
		times:    make(map[int64]bool),
		admitted: make(map[string]int),
		taken:    make(map[string]*taken),
		changed:  make(map[string]Change),
		keyed:    rapid.Bool().Draw(rt, "keys have messages"),
		settings: Settings{
			PairTTL: 30 * time.Hour,
			Flap: Flap{
				Changes: rapid.IntRange(2, 3).Draw(rt, "changes"),
				Window:  rapid.SampledFrom([]time.Duration{10 * time.Hour, 50 * time.Hour}).Draw(rt, "window of changes"),
			},
			Lease:     rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second, 5 * time.Minute}).Draw(rt, "lease"),
			Retention: rapid.SampledFrom([]time.Duration{time.Minute, 10 * time.Minute, 3 * time.Hour}).Draw(rt, "retention"),
			Forward:   rapid.IntRange(0, 4).Draw(rt, "forward") == 4,
		},
	}
	m.settings.Tree = drawTree(rt, &m.guarantees)
	if rapid.Bool().Draw(rt, "has a shadow") {
		m.settings.Shadow = drawTree(rt, &m.guarantees)
	}
	m.redis = newRedis(client, "model", m.settings)
	m.clock = withFakeTime(t, m.redis)
	m.memory = NewMemory(m.settings, m.clock.Read, nil)
	m.memory.AdoptRules(m.redis.Rules())
	m.memory.sweepAt = math.MaxInt // see forget
	if m.keyed {
		m.memory.KeepPairs()
	}
	most := 6
	if m.keyed {
		most = 2 // so that many events have one pair
	}
	m.categories = rapid.SliceOfNDistinct(rapid.Custom(drawCategory), 1, most, rapid.ID[string]).Draw(rt, "categories")
	m.listNodes()
	return m
}

func (m *model) listNodes() {
	nodes := make(map[string]limits.Node)
	for _, category := range m.categories {
		for _, key := range modelKeys {
			for _, node := range m.settings.Tree.PathOfKey(category, limits.HashOfKey(key)) {
				nodes[node.Place()] = node
			}
		}
	}
	m.nodes = nil
	for _, path := range slices.Sorted(maps.Keys(nodes)) {
		m.nodes = append(m.nodes, nodes[path])
	}
}

func (m *model) changeLimits(rt *rapid.T) {
	m.settings.Tree, m.settings.Shadow = drawTree(rt, &m.guarantees), nil
	if rapid.Bool().Draw(rt, "has a shadow") {
		m.settings.Shadow = drawTree(rt, &m.guarantees)
	}
	m.adopt(rt, rapid.IntRange(0, 2).Draw(rt, "mutes") == 0)
}

func (m *model) mute(rt *rapid.T) { m.adopt(rt, rapid.Bool().Draw(rt, "mutes")) }

// adopt puts the limits of the settings in force, and a drawn mute if mutes is true.
func (m *model) adopt(rt *rapid.T, mutes bool) {
	// After a change of limits the shadow decides an event anew. The event may still hold an in-flight slot there. The in-memory store
	// finds that slot in the same call, the script only in the next call.
	if m.settings.Shadow != nil && slices.Contains(Compile(limits.Ruleset{Tree: m.settings.Shadow}).algorithms(), algorithm.InFlight.String()) {
		m.settings.Shadow = nil
	}
	m.revision++
	ruleset := limits.Ruleset{Tree: m.settings.Tree, Shadow: m.settings.Shadow, Position: limits.Position{Generation: 1, Revision: m.revision}}
	if mutes {
		ruleset.Mutes = []*limits.Mute{{
			Path:  rapid.SampledFrom([]string{"a", "b", "a.*", "b.a", ">"}).Draw(rt, "muted"),
			Spare: rapid.SampledFrom([]string{"", "critical"}).Draw(rt, "except"),
			Until: m.clock.Read().Add(time.Hour), Revision: m.revision,
		}}
	}
	rules := Compile(ruleset)
	m.redis.AdoptRules(rules)
	m.memory.AdoptRules(rules)
	m.listNodes()
}

func stampedRecord(r Request) string { return fmt.Sprintf("%s@%d", r.ID, r.Message.version()) }

func (m *model) decide(rt *rapid.T) {
	m.lastCall.nonce, m.lastCall.requests = NewNonce(), m.drawRequests(rt)
	m.call(rt)
}

// decideNew asks for unknown events, whose IDs older events may have had. The script may evaluate such a batch as one.
func (m *model) decideNew(rt *rapid.T) {
	requests := make([]Request, rapid.IntRange(1, 8).Draw(rt, "events"))
	for i := range requests {
		made := len(m.events)
		stored := m.nextStored()
		category := rapid.SampledFrom(m.categories).Draw(rt, "category")
		if rapid.Bool().Draw(rt, "derived") {
			requests[i] = derived(rapid.Uint64Range(9, 16).Draw(rt, "sequence"), stored, category)
		} else {
			requests[i] = request(fmt.Sprint("new-", made), category)
		}
		requests[i] = m.drawKey(rt, requests[i])
		m.events[fmt.Sprint("new/", made)] = requests[i]
	}
	m.lastCall.nonce, m.lastCall.requests = NewNonce(), requests
	m.call(rt)
}

func (m *model) repeat(rt *rapid.T) {
	if m.lastCall.nonce == "" || slices.ContainsFunc(m.lastCall.requests, m.forgotten) {
		m.decide(rt)
		return
	}
	m.call(rt)
}

func (m *model) call(rt *rapid.T) {
	nonce, requests := m.lastCall.nonce, m.lastCall.requests
	m.tick()
	got := testkit.Must(m.redis.DecideOnce(context.Background(), nonce, requests))(rt)
	m.check(rt, got, m.memory.DecideOnce(nonce, requests))
}

// check compares the answers of Redis and of the memory to the last call.
func (m *model) check(rt *rapid.T, got, want BatchResult) {
	requests := m.lastCall.requests
	testkit.Equal(rt, got.At, want.At, "time of the decision, compared with the memory")
	m.forgetAfterFold(requests, got.At)
	for i := range requests {
		if m.wentBack { // the mark of an old lease may lie behind a later end: Redis errs towards doubt
			want.Decisions[i].InDoubt = want.Decisions[i].InDoubt || got.Decisions[i].InDoubt
			want.Decisions[i].Lease.InDoubt = want.Decisions[i].Lease.InDoubt || got.Decisions[i].Lease.InDoubt
			if got.Decisions[i].InDoubt && want.Decisions[i].Verdict == Admitted { // a repeated call reports a lease in doubt as reclaimed
				want.Decisions[i].Verdict = Reclaimed
			}
		}
		if !alike(got.Decisions[i], want.Decisions[i]) {
			rt.Fatalf("event %d, %+v, at %d:\nredis  %+v\nmemory %+v", i, requests[i], got.At, got.Decisions[i], want.Decisions[i])
		}
	}
	if slices.ContainsFunc(got.Decisions, func(d Decision) bool { return d.Lease.Request.ID != "" || d.Shadow.Verdict == Admitted }) {
		m.times[got.At] = true
	}
	for _, held := range m.leases {
		held.left = held.left || got.At <= held.at-tolerance.Microseconds() || got.At >= held.at+m.shortestWindow(held.Request.Category)
	}
	for i, d := range got.Decisions {
		rt.Logf("%v: %s cost %d in %q: verdict %d", time.UnixMicro(got.At).UTC(), stampedRecord(requests[i]), requests[i].Cost, requests[i].Category, d.Verdict)
		if d.Verdict == Denied {
			m.lastWait = d.Wait
		}
		if d.Lease.Request.ID == "" {
			continue
		}
		if slices.ContainsFunc(m.leases, func(held heldLease) bool {
			return held.Request.eventKey() == d.Lease.Request.eventKey() && held.End == d.Lease.End
		}) {
			continue // a repeated call
		}
		name := stampedRecord(requests[i])
		if d.Verdict == Admitted {
			m.admitted[name]++
		}
		if d.Verdict != Reclaimed {
			m.taken[name] = &taken{at: got.At, evaluated: d.Lease.rules, none: d.Verdict != Admitted}
		}
		if m.taken[name] == nil { // finished without a decision, in place of another message with the ID
			m.taken[name] = &taken{at: got.At, evaluated: d.Lease.rules, none: true, left: true}
		}
		m.leases = append(m.leases, heldLease{Lease: d.Lease, taken: m.taken[name]})
	}
}

// resolve asks for what events resolve.
func (m *model) resolve(rt *rapid.T) {
	requests := make([]Request, rapid.IntRange(1, 4).Draw(rt, "events"))
	for i := range requests {
		requests[i] = m.drawResolved(rt)
	}
	m.resolveAll(rt, requests)
}

// report asks for the report that a key is steady, since no change or since the newest change that an early report got.
func (m *model) report(rt *rapid.T) {
	request := m.drawResolved(rt)
	request = request.Report(max(1, m.changed[request.Pair]))
	m.changed[request.Pair] = max(m.changed[request.Pair], m.resolveAll(rt, []Request{request})[0].Changed)
}

func (m *model) resolveAll(rt *rapid.T, requests []Request) []Decision {
	if !m.keyed {
		return make([]Decision, len(requests))
	}
	m.tick()
	at := m.memory.times.now()
	got := testkit.Must(m.redis.Pairs.Resolve(context.Background(), requests))(rt)
	want := m.memory.Resolve(requests)
	m.forgetAfterFold(requests, at)
	for i, d := range got {
		if !alike(d, want[i]) {
			rt.Fatalf("event %d, %+v:\nredis  %+v\nmemory %+v", i, requests[i], d, want[i])
		}
		rt.Logf("%s of %q: verdict %d", stampedRecord(requests[i]), requests[i].Pair, d.Verdict)
		if d.Lease.End > 0 {
			m.times[at] = true
			m.leases = append(m.leases, heldLease{Lease: d.Lease, taken: &taken{none: true}})
		}
	}
	return got
}

// forgetAfterFold calls forget if the call at that time folded an event.
func (m *model) forgetAfterFold(requests []Request, at int64) {
	if slices.ContainsFunc(requests, func(request Request) bool {
		r := m.memory.records.byKey[request.eventKey()]
		return r != nil && r.fold != nil && r.doneUntil == at+m.settings.Retention.Microseconds()
	}) {
		m.forget(at)
	}
}

// forget drops old records in memory at the end of a delivery and when an event is folded, as the scripts do. The in-memory store itself drops
// records from time to time. The difference shows for a lease that ended long ago and after the clock went back by more than the retention.
func (m *model) forget(now int64) {
	for name, r := range m.memory.records.byKey {
		if !m.memory.records.remembered(r, now) {
			delete(m.memory.records.byKey, name)
		}
	}
}

func (m *model) pick(indexes []int) []Lease {
	leases := make([]Lease, len(indexes))
	for i, index := range indexes {
		leases[i] = m.leases[index].Lease
	}
	return leases
}

func (m *model) finish(rt *rapid.T) { m.finishAll(rt, m.pick(m.drawLeases(rt))) }

// finishUnasked finishes a delivery without a decision before.
func (m *model) finishUnasked(rt *rapid.T) {
	request := m.drawRequest(rt)
	for _, event := range m.events { // use its own cost, not the 0 of a look
		if event.eventKey() == request.eventKey() && event.Message == request.Message {
			request = event
		}
	}
	m.finishAll(rt, []Lease{{Request: request}})
}

func (m *model) finishAll(rt *rapid.T, leases []Lease) {
	if len(leases) == 0 {
		return
	}
	m.forget(m.memory.times.now())
	for i := range leases {
		if m.posted++; rapid.IntRange(0, 9).Draw(rt, "unknown where") > 0 {
			leases[i].Receipt = fmt.Sprint("receipt ", m.posted)
		}
		leases[i].Unshown = leases[i].Resolving && rapid.Bool().Draw(rt, "keeps its pair")
	}
	got := testkit.Must(m.redis.Finish(context.Background(), leases))(rt)
	want := m.memory.Finish(leases)
	testkit.Require(rt, slices.Equal(got, want), "finished %+v:\nredis  %v\nmemory %v", leases, got, want)
}

func (m *model) extend(rt *rapid.T) {
	// After the clock went back a returned lease looks like a renewal whose reply was lost. A worker does not extend a lease that it has
	// returned.
	indexes := slices.DeleteFunc(m.drawLeases(rt), func(i int) bool { return m.wentBack && m.leases[i].returned })
	d := rapid.SampledFrom([]time.Duration{0, time.Second, m.settings.Lease}).Draw(rt, "for")
	leases := m.pick(indexes)
	for i := range leases {
		leases[i].InDoubt = leases[i].InDoubt || d == 0 && rapid.Bool().Draw(rt, "in doubt")
		leases[i].Waits = rapid.Bool().Draw(rt, "waits")
	}
	got := testkit.Must(m.redis.Extend(context.Background(), leases, d))(rt)
	want := m.memory.Extend(leases, d)
	testkit.Require(rt, slices.Equal(got, want), "extended by %v:\nredis  %+v\nmemory %+v", d, got, want)
	for i, index := range indexes {
		m.leases[index].Lease = got[i]
		// A repeated call takes a lease for its own that ends as one that it has granted does. Only a clock that went back has a call come at
		// that time.
		m.times[got[i].End-m.settings.Lease.Microseconds()] = true
	}
}

func (m *model) refund(rt *rapid.T) {
	indexes := m.drawLeases(rt)
	if len(indexes) == 0 {
		return
	}
	// A call has one count for each limit: the count in force, or that of the first lease for a limit no longer in force.
	older := m.leases[indexes[0]].rules
	indexes = slices.DeleteFunc(indexes, func(i int) bool {
		held := m.leases[i]
		return !m.refundable(held) || !held.Resolving && held.rules != older && held.rules.Tree != m.settings.Tree
	})
	leases := m.pick(indexes)
	got := testkit.Must(m.redis.Refund(context.Background(), leases))(rt)
	want := m.memory.Refund(leases)
	testkit.Require(rt, slices.Equal(got, want), "refunded %+v:\nredis  %v\nmemory %v", leases, got, want)
	if slices.Contains(got, true) {
		m.forget(m.memory.times.now())
	}
	for i, returned := range got {
		rt.Logf("refund of %s: %v", stampedRecord(leases[i].Request), returned)
		m.leases[indexes[i]].returned = m.leases[indexes[i]].returned || returned
		if held := m.leases[indexes[i]]; returned && !held.none {
			m.admitted[stampedRecord(held.Request)]--
		}
	}
}

func (m *model) wait(rt *rapid.T) {
	scale := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Minute}).Draw(rt, "scale")
	m.clock.Advance(time.Duration(rapid.IntRange(0, 90).Draw(rt, "times")) * scale)
}

// waitForSlot advances the clock to when the next slot opens by the last denial, or just before.
func (m *model) waitForSlot(rt *rapid.T) {
	early := rapid.SampledFrom([]time.Duration{time.Microsecond, 2 * time.Microsecond}).Draw(rt, "early")
	m.clock.Advance(max(0, m.lastWait-early))
}

func (m *model) stepClock(rt *rapid.T) {
	step := rapid.SampledFrom([]time.Duration{
		-time.Second, -59 * time.Second, -time.Minute, -61 * time.Second, -time.Hour, -24 * time.Hour, time.Hour, 24 * time.Hour,
	}).Draw(rt, "step")
	if step < 0 && m.keyed { // the script has removed expired fields of pairs, and the in-memory store has not
		return
	}
	m.wentBack = m.wentBack || step < 0
	m.clock.Advance(step)
}

// tick advances the clock by a microsecond, the shortest call, and past times with slots. A clock that went back and the shadow may have
// taken slots at those times, and logs distinguish slots of one name by time.
func (m *model) tick() {
	m.clock.Advance(time.Microsecond)
	for m.times[m.memory.times.now()] {
		m.clock.Set(time.UnixMicro(m.memory.times.now() + 1))
	}
}

func (m *model) Compare(rt *rapid.T) {
	m.compareUsage(rt)
	m.checkGuarantees(rt)
}

// checkGuarantees counts the logs: the used slots and the unused guaranteed slots of a global window never exceed the limit together.
// A change of limits or a clock that goes back may break this rule for a while.
func (m *model) checkGuarantees(rt *rapid.T) {
	if len(m.guarantees) == 0 || m.revision > 0 || m.wentBack {
		return
	}
	now := m.clock.Read()
	count := func(name string, limit limits.Limit) int64 {
		from := fmt.Sprintf("(%d", now.Add(-limit.Window).UnixMicro())
		n, err := m.redis.d.runner.Options().Client.ZCount(context.Background(), m.redis.d.keys.key(name), from, fmt.Sprint(now.UnixMicro())).Result()
		testkit.NoError(rt, err)
		return n
	}
	for _, limit := range m.settings.Tree.AllLevels()[0].Limits {
		if !limit.Description().PerNode {
			continue
		}
		used, unused := count("log", limit), int64(0)
		for _, guarantee := range m.guarantees {
			unused += max(0, guarantee.Slots-count("guarantee:"+guarantee.Path, limit))
		}
		testkit.Require(rt, used+unused <= limit.Count,
			"%d slots of %s are used and %d guaranteed ones are not: guarantees %v", used, limit, unused, m.guarantees)
	}
}

func (m *model) compareUsage(rt *rapid.T) {
	got := testkit.Must(m.redis.usedSlots(context.Background(), m.nodes))(rt)
	if want := m.memory.Usage(m.nodes); len(m.nodes) > 0 && !reflect.DeepEqual(got, want) {
		rt.Fatalf("slots taken at %v of %+v:\nredis  %v\nmemory %v", m.clock.Read(), m.nodes, got, want)
	}
}
