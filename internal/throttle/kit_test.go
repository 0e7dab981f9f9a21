package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestMain(m *testing.M) { scripttest.Main(m) }

const (
	patience      = scripttest.Patience // bounds each wait of a test
	testLease     = 30 * time.Second
	testRetention = time.Hour
	testPairTTL   = 24 * time.Hour // longer than the retention, as in production
)

// start is the first time of each fake clock.
var start = testkit.Start

func newClient(t testing.TB, o redis.Options) *redis.Client { return scripttest.NewClient(t, o) }

func newRedis(client redis.UniversalClient, prefix string, s store.Settings) *store.Redis {
	return store.NewRedis(script.NewRunner(optionsOf(client, prefix)), s)
}

func optionsOf(client redis.UniversalClient, prefix string) script.Options {
	return script.Options{Client: client, Prefix: prefix, Timeout: patience, Scripting: script.Eval}
}

// Limits from their texts.
var newPlan, newTree, guarded, newRuleset = scripttest.Plan, scripttest.Tree, scripttest.Guarded, scripttest.Ruleset

func newRoutes(tree *limits.Tree) *store.Routes {
	return store.Compile(limits.Ruleset{Tree: tree}).InForce
}

// request asks for one slot for an event with an ID of its producer.
func request(id, category string) store.Request {
	return store.Request{ID: id, Category: category, Cost: 1, Message: store.Message{Stream: "EVENTS", Sequence: 1, Stored: start}}
}

func costing(cost int, r store.Request) store.Request {
	r.Cost = cost
	return r
}

func inMessage(sequence uint64, r store.Request) store.Request {
	r.Message.Sequence = sequence
	return r
}

func ofPair(key string, r store.Request) store.Request {
	r.Pair = r.Category + "\n" + key
	return r
}

func aboutDisk(id string) store.Request { return ofPair("disk", request(id, "a")) }

func several(n int, name, category string) []store.Request {
	requests := make([]store.Request, n)
	for i := range requests {
		requests[i] = request(fmt.Sprintf("%s%d", name, i+1), category)
	}
	return requests
}

// postponed returns an event denied by the limit 10/30m of path a. The next slot opens in 20 minutes.
func postponed(r store.Request) store.Postponement {
	return store.Postponement{
		Request: r, Wait: 20 * time.Minute, Longest: 4 * time.Hour, Node: limits.Node{Path: "a"}, Limit: limits.Limit{Count: 10, Window: 30 * time.Minute},
	}
}

func wantVerdicts(t testkit.Test, decisions []store.Decision, want ...store.Verdict) {
	t.Helper()
	var got []store.Verdict
	for _, d := range decisions {
		got = append(got, d.Verdict)
	}
	testkit.EqualSlices(t, got, want, "verdicts")
}

func startRedis(t testing.TB) (*servertest.Redis, *redis.Client) {
	t.Helper()
	server := servertest.StartRedis(t)
	return server, newClient(t, redis.Options{Addr: server.Addr})
}
