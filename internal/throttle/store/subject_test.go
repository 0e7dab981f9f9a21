package store

import (
	"cmp"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// subject is any store, with a clock of the test.
type subject struct {
	anyStore
	t      *testing.T
	clock  *testkit.Clock
	tree   *limits.Tree
	shadow *limits.Tree
	// changes is how often other limits were put in force.
	changes uint64
	adopt   func(rules limits.Ruleset)
	repeat  func(nonce string, requests []Request) (BatchResult, error)
	counts  func(nodes []limits.Node) ([][]int64, error)
}

func newMemorySubject(t *testing.T, s Settings) *subject {
	clock := testkit.NewClock(nil)
	memory := newMemory(s, clock.Read, nil)
	return &subject{
		anyStore: memory, t: t, clock: clock, tree: s.Tree, shadow: s.Shadow, adopt: func(rules limits.Ruleset) { memory.AdoptRules(Compile(rules)) },
		repeat: func(nonce string, requests []Request) (BatchResult, error) {
			return memory.DecideOnce(nonce, requests), nil
		},
		counts: func(nodes []limits.Node) ([][]int64, error) { return memory.Usage(nodes), nil },
	}
}

func newRedisSubject(t *testing.T, client redis.UniversalClient, s Settings) *subject {
	return subjectOf(t, newRedis(client, "test:"+t.Name(), s), s)
}

func subjectOf(t *testing.T, store *Redis, s Settings) *subject {
	clock := withFakeTime(t, store)
	return &subject{
		anyStore: store, t: t, clock: clock, tree: s.Tree, shadow: s.Shadow, adopt: store.Adopt,
		repeat: func(nonce string, requests []Request) (BatchResult, error) {
			return store.DecideOnce(t.Context(), nonce, requests)
		},
		counts: func(nodes []limits.Node) ([][]int64, error) { return store.usedSlots(t.Context(), nodes) },
	}
}

// newSingleSubject disables the evaluation of a batch as one.
func newSingleSubject(t *testing.T, client redis.UniversalClient, s Settings) *subject {
	store := newRedis(client, "test:"+t.Name(), s)
	evaluated := subjectOf(t, store, s)
	store.withSource(func(name lua.Script, text string) string {
		const condition = "if fastpath ~= ''"
		if name == lua.Decide && strings.Count(text, condition) != 1 {
			t.Fatalf("the script does not say %q once", condition)
		}
		return strings.Replace(text, condition, "if false", 1)
	})
	return evaluated
}

// newFunctionsSubject runs the scripts as a library of functions.
func newFunctionsSubject(t *testing.T, client redis.UniversalClient, s Settings) *subject {
	return subjectOf(t, newRedisBy(client, "test:"+t.Name(), script.Functions, s), s)
}

func (s *subject) result(requests ...Request) BatchResult {
	s.t.Helper()
	result := testkit.Must(s.Decide(s.t.Context(), requests))(s.t)
	testkit.Require(s.t, len(result.Decisions) == len(requests), "got %d decisions, want %d", len(result.Decisions), len(requests))
	return result
}

func (s *subject) decide(requests ...Request) []Decision {
	s.t.Helper()
	return s.result(requests...).Decisions
}

// want asks and compares the verdicts.
func (s *subject) want(verdict Verdict, requests ...Request) []Decision {
	s.t.Helper()
	decisions := s.decide(requests...)
	for i, d := range decisions {
		testkit.Require(s.t, d.Verdict == verdict,
			"event %d of %d, %q: verdict %d, want %d (%+v)", i+1, len(requests), requests[i].ID, d.Verdict, verdict, d)
		if got := d.Lease.Request.ID != ""; got != (verdict == Admitted || verdict == Reclaimed) {
			s.t.Fatalf("verdict %d of %q comes with lease %+v", d.Verdict, requests[i].ID, d.Lease)
		}
	}
	return decisions
}

// admit checks that events are admitted, and returns their leases.
func (s *subject) admit(requests ...Request) []Lease {
	s.t.Helper()
	return leasesOf(s.want(Admitted, requests...))
}

func leasesOf(decisions []Decision) []Lease {
	leases := make([]Lease, len(decisions))
	for i, d := range decisions {
		leases[i] = d.Lease
	}
	return leases
}

// deny checks that an event is denied at a level, with a wait.
func (s *subject) deny(level string, wait time.Duration, r Request) Decision {
	s.t.Helper()
	d := s.want(Denied, r)[0]
	testkit.Require(s.t, d.Node.Level == level && d.Wait == wait, "denied by %q for %v, want %q for %v", d.Node.Level, d.Wait, level, wait)
	return d
}

// opens checks that an event is denied at a level with a wait, denied a microsecond before the wait is over, and then admitted.
func (s *subject) opens(level string, wait time.Duration, r Request) Lease {
	s.t.Helper()
	s.deny(level, wait, r)
	s.clock.Advance(wait - time.Microsecond)
	s.deny(level, time.Microsecond, r)
	s.clock.Advance(time.Microsecond)
	return s.admit(r)[0]
}

// admits checks that one call admits the first n events, and denies the others at a level.
func (s *subject) admits(n int, level string, requests ...Request) []Lease {
	s.t.Helper()
	decisions := s.decide(requests...)
	for i, d := range decisions {
		switch {
		case i < n && d.Verdict != Admitted:
			s.t.Fatalf("event %d of %d, %q: %+v, want it admitted", i+1, len(requests), requests[i].ID, d)
		case i >= n && (d.Verdict != Denied || d.Node.Level != level):
			s.t.Fatalf("event %d of %d, %q: %+v, want it denied by %q", i+1, len(requests), requests[i].ID, d, level)
		}
	}
	return leasesOf(decisions[:n])
}

func (s *subject) change(plan limits.Plan) {
	s.t.Helper()
	rules := newRuleset(s.t, plan, "")
	s.tree, s.shadow = rules.Tree, rules.Shadow
	s.changes++
	rules.Position = limits.Position{Generation: 1, Revision: s.changes}
	s.adopt(rules)
}

// slots returns the taken slots of each limit on the path, the root first.
func (s *subject) slots(category string) [][]int64 {
	s.t.Helper()
	return testkit.Must(s.counts(s.tree.Path(category)))(s.t)
}

// taken compares the taken slots of the first limit of each node on the path, the root first.
func (s *subject) taken(category string, want ...int64) {
	s.t.Helper()
	s.takenOfKey(category, "", want...)
}

// takenOfKey is taken for the path of a key.
func (s *subject) takenOfKey(category, key string, want ...int64) {
	s.t.Helper()
	nodes := s.tree.PathOfKey(category, limits.HashOfKey(key))
	counts := testkit.Must(s.counts(nodes))(s.t)
	got := make([]int64, len(counts))
	for i := range counts {
		got[i] = counts[i][0]
	}
	testkit.Require(s.t, reflect.DeepEqual(got, want), "slots taken on the path to %q of the key %q: %v, want %v", category, key, got, want)
}

func (s *subject) finish(leases ...Lease) {
	s.t.Helper()
	testkit.NoError(s.t, finish(s.t.Context(), s, leases...))
}

func (s *subject) extend(d time.Duration, leases ...Lease) []Lease {
	s.t.Helper()
	extended := testkit.Must(s.Extend(s.t.Context(), leases, d))(s.t)
	testkit.Require(s.t, len(extended) == len(leases), "got %d extended leases, want %d", len(extended), len(leases))
	return extended
}

func (s *subject) lost(d time.Duration, leases ...Lease) {
	s.t.Helper()
	for _, lease := range s.extend(d, leases...) {
		testkit.Equal(s.t, lease.End, 0, "end of the lost lease of %q", lease.Request.ID)
	}
}

func (s *subject) refund(want bool, leases ...Lease) {
	s.t.Helper()
	returned := testkit.Must(s.Refund(s.t.Context(), leases))(s.t)
	testkit.Require(s.t, len(returned) == len(leases), "got %d answers to refunds, want %d", len(returned), len(leases))
	for i, got := range returned {
		testkit.Equal(s.t, got, want, "refund of %q", leases[i].Request.ID)
	}
}

const (
	testLease     = 30 * time.Second
	testRetention = time.Hour
)

// conformanceCase is a rule for every store.
type conformanceCase struct {
	name                    string
	global, category, rules string        // no limits unless given
	guarantees              string        // as ParseGuarantees reads them
	shadow                  string        // as ParseOverrides reads them
	lease                   time.Duration // testLease unless given
	retention               time.Duration // testRetention unless given
	forward                 bool
	run                     func(s *subject)
}

func (c conformanceCase) settings(t *testing.T) Settings {
	plan := guarded(t, newPlan(t, cmp.Or(c.global, "none"), cmp.Or(c.category, "none"), c.rules), c.guarantees)
	rules := newRuleset(t, plan, c.shadow)
	settings := Settings{Tree: rules.Tree, Shadow: rules.Shadow, Lease: testLease, Retention: testRetention, Forward: c.forward}
	if c.lease != 0 {
		settings.Lease = c.lease
	}
	if c.retention != 0 {
		settings.Retention = c.retention
	}
	return settings
}
