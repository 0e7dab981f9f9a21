package throttle

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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

type fakeMetrics struct {
	decisions testkit.Counts // by verdict and source
	shadow    testkit.Counts // by verdict and level
	refunded  atomic.Int64

	used, size testkit.Counts // by level
	unread     atomic.Int64

	mu       sync.Mutex
	degraded []bool // each change
	levels   []string
}

func (m *fakeMetrics) Decision(verdict, source string, n int) {
	m.decisions.Add(verdict+" by "+source, n)
}

func (m *fakeMetrics) DecisionDuration(time.Duration) {}

func (m *fakeMetrics) Refunded(n int) { m.refunded.Add(int64(n)) }

func (m *fakeMetrics) ShadowDecision(level, verdict string, n int) {
	m.shadow.Add(verdict+" by "+level, n)
}

func (m *fakeMetrics) PolicyActs() { m.policy(true) }

func (m *fakeMetrics) PolicyInactive() { m.policy(false) }

func (m *fakeMetrics) policy(acts bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.degraded) == 0 || m.degraded[len(m.degraded)-1] != acts {
		m.degraded = append(m.degraded, acts)
	}
}

func (m *fakeMetrics) Levels(inForce, shadow []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.levels = append(slices.Clone(inForce), shadow...)
}

func (m *fakeMetrics) LimitUsed(level string, used int64) { m.used.Set(level, int(used)) }

func (m *fakeMetrics) LimitsUnread() { m.unread.Add(1) }

func (m *fakeMetrics) LimitSize(level string, size int64) { m.size.Set(level, int(size)) }

func (m *fakeMetrics) wantDegraded(t *testing.T, want ...bool) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	testkit.EqualSlices(t, m.degraded, want, "changes of degraded")
}

func (m *fakeMetrics) wantRefunded(t *testing.T, want int64) {
	t.Helper()
	testkit.Equal(t, m.refunded.Load(), want, "refunds")
}

func (m *fakeMetrics) wantDecisions(t *testing.T, want map[string]int) {
	t.Helper()
	testkit.EqualMaps(t, m.decisions.All(), want, "decisions")
}

// limiterKit is a limiter with its metrics and logs.
type limiterKit struct {
	*Limiter
	t       *testing.T
	server  *servertest.Redis
	options script.Options // of the scripts, unless the test brought the store
	metrics *fakeMetrics
	logs    *testkit.Log

	fullLogs *testkit.Log // of full limits; the lines depend on how long a test takes
}

func newLimiterKit(t *testing.T, address string, o LimiterOptions) *limiterKit {
	return newLimiterKitWithin(t, patience, address, o)
}

// newLimiterKitWithin bounds each call of a script.
func newLimiterKitWithin(t *testing.T, timeout time.Duration, address string, o LimiterOptions) *limiterKit {
	kit := &limiterKit{t: t, metrics: new(fakeMetrics), logs: testkit.NewLog(t), fullLogs: testkit.NewLog(t)}
	if o.Tree == nil {
		o.Tree = newTree(t, "100/1h", "10/1h", "")
	}
	if o.Lease == 0 {
		o.Lease = time.Hour
	}
	o.Retention = testRetention
	if o.Policy == "" {
		o.Policy = Hold
	}
	if o.Redis == nil {
		client := newClient(t, redis.Options{Addr: address, MaxRetries: 1, DialTimeout: patience, DialerRetries: 1})
		kit.options = optionsOf(client, "limiter")
		kit.options.Timeout = timeout
		o.Redis = store.NewRedis(script.NewRunner(kit.options), o.Settings)
	}
	o.Metrics, o.UsageMetrics, o.Logger = kit.metrics, kit.metrics, kit.logs.Logger()
	kit.Limiter = NewLimiter(o)
	kit.full.logger = kit.fullLogs.Logger()
	return kit
}

// startLimiter runs a limiter with its own server until the test ends, and waits until it answers.
func startLimiter(t *testing.T, o LimiterOptions) *limiterKit {
	t.Helper()
	return startLimiterAt(t, servertest.StartRedis(t), o)
}

// startDurableLimiter uses a server that keeps its data when killed.
func startDurableLimiter(t *testing.T, o LimiterOptions) *limiterKit {
	t.Helper()
	return startLimiterAt(t, servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always"), o)
}

func startLimiterAt(t *testing.T, server *servertest.Redis, o LimiterOptions) *limiterKit {
	t.Helper()
	kit := newLimiterKit(t, server.Addr, o)
	kit.server = server
	kit.start()
	return kit
}

func (k *limiterKit) start() {
	k.t.Helper()
	k.run()
	k.await()
}

func (k *limiterKit) run() { testkit.Run(k.t, k.Run) }

func (k *limiterKit) await() {
	k.t.Helper()
	testkit.NoError(k.t, k.Await(testkit.Context(k.t)))
}

func (k *limiterKit) until(wanted outageState) {
	k.t.Helper()
	testkit.Await(k.t, fmt.Sprint("state ", wanted, " of the limiter"), func() error {
		if state, _ := k.outage.current(); state != wanted {
			return fmt.Errorf("it is in state %d", state)
		}
		return nil
	})
}

func (k *limiterKit) decide(requests ...store.Request) []store.Decision {
	k.t.Helper()
	answers := testkit.Must(k.Decide(k.t.Context(), requests))(k.t)
	testkit.Require(k.t, len(answers) == len(requests), "%d answers for %d requests", len(answers), len(requests))
	return answers
}

// want decides, and compares the number of answers with each verdict.
func (k *limiterKit) want(verdicts map[store.Verdict]int, requests ...store.Request) []store.Decision {
	k.t.Helper()
	answers, got := k.decide(requests...), make(map[store.Verdict]int)
	for _, answer := range answers {
		got[answer.Verdict]++
		testkit.NoError(k.t, answer.Err)
	}
	testkit.Require(k.t, maps.Equal(got, verdicts), "verdicts %v, want %v", got, verdicts)
	return answers
}

func (k *limiterKit) one(verdict store.Verdict, r store.Request) store.Grant {
	k.t.Helper()
	return k.want(map[store.Verdict]int{verdict: 1}, r)[0].Grant
}

// takeOver decides about an event whose lease has ended, and compares its doubt.
func (k *limiterKit) takeOver(id string, inDoubt bool) store.Grant {
	k.t.Helper()
	answer := k.want(map[store.Verdict]int{store.Reclaimed: 1}, request(id, "a"))[0]
	testkit.Equal(k.t, answer.InDoubt, inDoubt, "%s: in doubt", id)
	return answer.Grant
}

// startLimiterBehindProxy starts a limiter whose calls wait as long as timeout for a reply, which the proxy may drop.
func startLimiterBehindProxy(t *testing.T, timeout time.Duration, o LimiterOptions) (*limiterKit, *servertest.Proxy) {
	t.Helper()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	limiter := newLimiterKitWithin(t, timeout, proxy.Addr, o)
	limiter.server = server
	limiter.start()
	return limiter, proxy
}

// lose kills the server and has the limiter notice.
func (k *limiterKit) lose() {
	k.t.Helper()
	k.server.Kill()
	_, err := k.Decide(k.t.Context(), []store.Request{request("lost", "a")})
	if state, _ := k.outage.current(); state != acting && !errors.Is(err, script.ErrUnavailable) {
		k.t.Fatalf("error %v without a server, want %v", err, script.ErrUnavailable)
	}
}

// loseAndAct kills the server, and waits until the failure policy acts.
func (k *limiterKit) loseAndAct() {
	k.t.Helper()
	k.lose()
	k.until(acting)
}

// regain restarts the server, and waits until the limiter answers by Redis.
func (k *limiterKit) regain() {
	k.t.Helper()
	k.server.Restart()
	k.until(answering)
}

func (k *limiterKit) wantReady(class error) {
	k.t.Helper()
	err := k.Ready()
	testkit.Check(k.t, errors.Is(err, class), "ready: got error %v, want %v", err, class)
}

// wantLogged compares the number of slots in the log of a first-level category.
func (k *limiterKit) wantLogged(category string, slots int) {
	k.t.Helper()
	log := scores(k.t, k.server, limiterKey("log:"+category))
	testkit.Equal(k.t, len(log), slots, "slots in the log of %s, which holds %v", category, log)
}

// scores returns when the members of a log were taken.
func scores(t *testing.T, server *servertest.Redis, key string) map[string]time.Time {
	t.Helper()
	found := make(map[string]time.Time)
	client := newClient(t, redis.Options{Addr: server.Addr})
	members := testkit.Must(client.ZRangeWithScores(t.Context(), key, 0, -1).Result())(t)
	for _, member := range members {
		found[fmt.Sprint(member.Member)] = time.UnixMicro(int64(member.Score))
	}
	return found
}

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
