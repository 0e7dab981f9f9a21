package store

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

func TestMain(m *testing.M) {
	scripttest.Main(m)
}

// patience bounds each wait of a test.
const patience = scripttest.Patience

// start is the first time of each fake clock.
var start = testkit.Start

func newClient(t testing.TB, o redis.Options) *redis.Client { return scripttest.NewClient(t, o) }

func startRedis(t testing.TB) (*servertest.Redis, *redis.Client) {
	t.Helper()
	server := servertest.StartRedis(t)
	return server, newClient(t, redis.Options{Addr: server.Addr})
}

func newRedis(client redis.UniversalClient, prefix string, s Settings) *Redis {
	return newRedisBy(client, prefix, script.Eval, s)
}

func newRedisBy(client redis.UniversalClient, prefix string, way script.Scripting, s Settings) *Redis {
	return NewRedis(script.NewRunner(script.Options{Client: client, Prefix: prefix, Timeout: patience, Scripting: way}), s)
}

func keysOf(prefix string) keys { return newKeys(script.NewRunner(script.Options{Prefix: prefix})) }

func parseLimits(t testkit.Test, text string) limits.Limits {
	t.Helper()
	return testkit.Must(limits.Parse(text))(t)
}

// Limits from their texts.
var newPlan, newTree, guarded, newRuleset = scripttest.Plan, scripttest.Tree, scripttest.Guarded, scripttest.Ruleset

// request asks for one slot for an event with an ID of its producer.
func request(id, category string) Request {
	return Request{ID: id, Category: category, Cost: 1, Message: Message{Stream: "EVENTS", Sequence: 1, Stored: start}}
}

func (r Request) withCost(cost int) Request {
	r.Cost = cost
	return r
}

func (r Request) ofKey(key string) Request {
	r.Key = key
	return r
}

func (r Request) inMessage(sequence uint64) Request {
	r.Message.Sequence = sequence
	return r
}

// derived asks for one slot for an event with an ID from its place in the stream.
func derived(sequence uint64, stored time.Time, category string) Request {
	message := Message{Stream: "EVENTS", Sequence: sequence, Stored: stored}
	return Request{ID: fmt.Sprintf("EVENTS:%d", sequence), Derived: true, Category: category, Cost: 1, Message: message}
}

func several(n int, name, category string) []Request {
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = request(fmt.Sprintf("%s%d", name, i+1), category)
	}
	return requests
}

// withFakeTime makes the scripts read a clock that the test moves.
func withFakeTime(t testing.TB, r *Redis) *testkit.Clock {
	t.Helper()
	options, clock := scripttest.WithClock(t, r.d.runner.Options())
	r.runWith(options)
	return clock
}

// runWith runs the scripts with other options.
func (r *Redis) runWith(o script.Options) {
	r.d.runner = script.NewRunner(o)
	r.d.keys = newKeys(r.d.runner)
	r.AdoptRules(r.Rules())
}

// withSource changes the scripts' text.
func (r *Redis) withSource(change func(script lua.Script, source string) string) {
	options := r.d.runner.Options()
	source := options.Source
	options.Source = func(script lua.Script, algorithms []string) string { return change(script, source(script, algorithms)) }
	r.runWith(options)
}

// evaluateAsOne makes each decision fail that fastpath.lua does not make.
func (r *Redis) evaluateAsOne() {
	r.withSource(func(_ lua.Script, text string) string {
		return strings.Replace(text, "-- Read the buckets and the asks.", "error('not evaluated as one')", 1)
	})
}

func pause(t *testing.T, r *Redis, destination string, d time.Duration) {
	t.Helper()
	logs := testkit.NewLog(t)
	pacing.New(pacing.Options{Runner: r.d.runner, Logger: logs.Logger()}).Pause(t.Context(), destination, d)
	logs.WantCount(t, 0, "cannot share a pause with other instances")
}

func wantVerdicts(t testkit.Test, decisions []Decision, want ...Verdict) {
	t.Helper()
	var got []Verdict
	for _, d := range decisions {
		got = append(got, d.Verdict)
	}
	testkit.EqualSlices(t, got, want, "verdicts")
}

// anyStore is what Redis and [inMemory] have in common.
type anyStore interface {
	Decide(ctx context.Context, requests []Request) (BatchResult, error)
	Finish(ctx context.Context, leases []Lease) ([]bool, error)
	Extend(ctx context.Context, leases []Lease, d time.Duration) ([]Lease, error)
	Refund(ctx context.Context, leases []Lease) ([]bool, error)
}

// inMemory is a Memory with the methods of a Redis.
type inMemory struct{ *Memory }

func newMemory(s Settings, clock func() time.Time, share func() int) inMemory {
	return inMemory{NewMemory(s, clock, share)}
}

func (m inMemory) Decide(_ context.Context, requests []Request) (BatchResult, error) {
	return m.DecideOnce("", requests), nil
}

func (m inMemory) Finish(_ context.Context, leases []Lease) ([]bool, error) {
	return m.Memory.Finish(leases), nil
}

func (m inMemory) Extend(_ context.Context, leases []Lease, d time.Duration) ([]Lease, error) {
	return m.Memory.Extend(leases, d), nil
}

func (m inMemory) Refund(_ context.Context, leases []Lease) ([]bool, error) {
	return m.Memory.Refund(leases), nil
}

func decisionsOf(t *testing.T, store anyStore, requests ...Request) []Decision {
	t.Helper()
	return testkit.Must(store.Decide(t.Context(), requests))(t).Decisions
}

// wantAdmitted checks that a store admits events, and returns their leases.
func wantAdmitted(t *testing.T, store anyStore, requests ...Request) []Lease {
	t.Helper()
	decisions := decisionsOf(t, store, requests...)
	for i, d := range decisions {
		testkit.Require(t, d.Verdict == Admitted, "%q: got %+v, want it admitted", requests[i].ID, d)
	}
	return leasesOf(decisions)
}

// finish records deliveries, and drops which are new.
func finish(ctx context.Context, store anyStore, leases ...Lease) error {
	_, err := store.Finish(ctx, leases)
	return err
}

// usedSlots returns the number of slots in use, for each limit of each node.
func (r *Redis) usedSlots(ctx context.Context, nodes []limits.Node) ([][]int64, error) {
	uses, err := r.Readings.Uses(ctx, nodes)
	used := make([][]int64, len(uses))
	for i, ofNode := range uses {
		for _, use := range ofNode {
			used[i] = append(used[i], use.Used)
		}
	}
	return used, err
}

// alike compares two answers of stores. They hold no errors, because a store defers nothing.
func alike(a, b any) bool { return reflect.DeepEqual(a, b) }
