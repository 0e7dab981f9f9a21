package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/oracle"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func exactLimit(node limits.Node, limit limits.Limit) oracle.Limit {
	return oracle.Limit{
		Path: node.Path, Keyed: node.Key != "", Kind: oracle.Kind(limit.Algorithm.String()), Count: limit.Count, Window: limit.Window.Microseconds(), Burst: limit.Capacity(),
	}
}

// exactDeployment returns the limits of categories for the oracle, in the order of their paths.
func exactDeployment(tree *limits.Tree, categories []string) oracle.Deployment {
	nodes := make(map[string]limits.Node)
	for _, category := range categories {
		for _, node := range tree.PathOfKey(category, "any") {
			nodes[node.Path+"\x00"+node.Key] = node // the limits of each key come before the path below
		}
	}
	var d oracle.Deployment
	for _, place := range slices.Sorted(maps.Keys(nodes)) {
		for _, limit := range nodes[place].Limits {
			d.Limits = append(d.Limits, exactLimit(nodes[place], limit))
		}
	}
	for _, guarantee := range tree.Guarantees() {
		d.Guarantees = append(d.Guarantees, oracle.Guarantee{Path: guarantee.Path, Slots: guarantee.Slots})
	}
	return d
}

// observer collects the answers to clients. Clients may use it at once.
type observer struct {
	t *testing.T

	mu     sync.Mutex
	events []oracle.Event
	places map[string]int // indexes of the admissions in events, by ID
	calls  int
}

func newObserver(t *testing.T) *observer { return &observer{t: t, places: make(map[string]int)} }

// decided records a call, and returns the leases.
func (o *observer) decided(requests []Request, result BatchResult) (leases []Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	for i, d := range result.Decisions {
		event := oracle.Event{
			ID: requests[i].ID, Category: requests[i].Category, Key: requests[i].Key, Cost: int64(requests[i].Cost), At: result.At, Call: o.calls,
		}
		switch d.Verdict {
		case Admitted:
			event.Admitted = true
			o.places[event.ID] = len(o.events)
			leases = append(leases, d.Lease)
		case Denied:
			event.By, event.Next = exactLimit(d.Node, d.Limit), result.At+d.Wait.Microseconds()
		default:
			o.t.Errorf("%q: %+v", requests[i].ID, d)
		}
		o.events = append(o.events, event)
	}
	return leases
}

// left records when a delivery ended, or when its slots were returned.
func (o *observer) left(lease Lease, when oracle.Span, delivered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	event := &o.events[o.places[lease.Request.ID]]
	if delivered {
		event.Ended = when
		return
	}
	event.Returned = when
}

// check has the oracle check all events. Each algorithm must have denied one.
func (o *observer) check(d oracle.Deployment) {
	o.t.Helper()
	denials := make(map[oracle.Kind]int)
	for _, event := range o.events {
		denials[event.By.Kind]++
	}
	testkit.Check(o.t, slices.ContainsFunc(o.events, func(e oracle.Event) bool { return e.By.Keyed }),
		"no limit of each key denied any of %d events: that says nothing of them", len(o.events))
	for _, limit := range d.Limits {
		testkit.Check(o.t, denials[limit.Kind] != 0, "no %s limit denied any of %d events: that says nothing of them", limit.Kind, len(o.events))
	}
	if err := oracle.Check(d, o.events); err != nil {
		o.t.Error(err)
	}
}

// exactTree returns limits of every algorithm, with guarantees.
func exactTree(t *testing.T) (tree *limits.Tree, categories []string) {
	rules := "*@key=9/1s,a@key=2/100ms+fixed:9/1s,g.*@key=token:4/1s;burst=2,e@key=inflight:2/30s,f@key=none,a=10/100ms+40/1s,a.b=fixed:3/100ms,d=leaky:15/1s,e=inflight:3/30s,f=token:3/100ms;burst=2+counter:20/1s"
	categories = []string{"a", "a.b", "a.b.x", "c", "d", "e", "f", "g", "g.h"}
	for _, a := range algorithm.All() {
		rules += fmt.Sprintf(",%s=%s:2/1s", a, a)
		categories = append(categories, a.String())
	}
	plan := newPlan(t, "40/200ms+token:190/1s;burst=40", "counter:2/100ms", rules)
	return newRuleset(t, guarded(t, plan, "a.b=4,d=2,g.h=3"), "").Tree, categories
}

// keysOfExact are the keys of drawn events.
var keysOfExact = []string{"", "x", "y", "z"}

// TestExactUnderConcurrency has many clients decide, deliver and refund at once, by the server's own clock. The oracle checks the answers.
func TestExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	tree, categories := exactTree(t)
	const (
		clients   = 4
		perClient = 3
		calls     = 40
	)
	o := newObserver(t)
	var work sync.WaitGroup
	for c := range clients {
		client := newClient(t, redis.Options{Addr: server.Addr})
		store := newRedis(client, "exact", Settings{Tree: tree, Lease: testLease, Retention: testRetention})
		for g := range perClient {
			work.Go(func() {
				for call := range calls {
					requests := make([]Request, 1+rand.IntN(8))
					for i := range requests {
						category := categories[rand.IntN(len(categories))]
						requests[i] = request(fmt.Sprint(c, "-", g, "-", call, "-", i), category).withCost(1 + rand.IntN(2)).ofKey(keysOfExact[rand.IntN(len(keysOfExact))])
					}
					before := time.Now()
					result, err := store.Decide(t.Context(), requests)
					after := time.Now()
					if err != nil {
						t.Error(err)
						return
					}
					if at := time.UnixMicro(result.At); at.Before(before.Add(-time.Second)) || at.After(after.Add(time.Second)) {
						t.Errorf("decided at %v, asked between %v and %v", at, before, after)
					}
					leases := o.decided(requests, result)
					time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond) // a delivery takes a while
					for _, lease := range leases {
						endDelivery(o, store, lease, rand.IntN(4) > 0)
					}
				}
			})
		}
	}
	work.Wait()
	o.check(exactDeployment(tree, categories))
}

// endDelivery finishes a delivery or returns its slots, and records the span of that call.
func endDelivery(o *observer, store anyStore, lease Lease, delivered bool) {
	const imprecision = 1000 // microseconds between the clocks of test and server
	from := time.Now().UnixMicro() - imprecision
	if delivered {
		if _, err := store.Finish(o.t.Context(), []Lease{lease}); err != nil {
			o.t.Error(err)
		}
	} else if returned, err := store.Refund(o.t.Context(), []Lease{lease}); err != nil || !returned[0] {
		o.t.Errorf("refund: %v, %v", returned, err)
	}
	o.left(lease, oracle.Span{From: from, Upto: time.Now().UnixMicro() + imprecision}, delivered)
}
