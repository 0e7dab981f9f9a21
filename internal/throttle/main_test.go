package throttle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/lua"
)

func TestMain(m *testing.M) {
	servertest.MoreTestsAtOnce(4)
	redis.SetLogger(silence{}) // it tells of each connection that it cannot make
	goleak.VerifyTestMain(m)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

// start is where fake clocks begin.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newClient(t testing.TB, o redis.Options) *redis.Client {
	t.Helper()
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ContextTimeoutEnabled = true
	o.ReadTimeout = cmp.Or(o.ReadTimeout, patience) // else a slow stand-in is asked twice
	o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, 10*time.Millisecond
	client := redis.NewClient(&o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newRedis(client redis.UniversalClient, prefix string, s Settings) *Redis {
	return NewRedis(RedisOptions{Client: client, Prefix: prefix, Timeout: patience}, s)
}

// fataler is a test, or a check of rapid.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

func parseLimits(t fataler, text string) Limits {
	t.Helper()
	limits, err := ParseLimits(text)
	if err != nil {
		t.Fatal(err)
	}
	return limits
}

func newPlan(t fataler, global, category, rules string) Plan {
	t.Helper()
	plan := Plan{Global: parseLimits(t, global), Category: parseLimits(t, category)}
	if rules != "" {
		var faults []error
		if plan.Rules, faults = ParseRules(rules); len(faults) > 0 {
			t.Fatal(faults)
		}
	}
	return plan
}

func newTree(t fataler, global, category, rules string) *Tree {
	t.Helper()
	tree, err := NewTree(newPlan(t, global, category, rules))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// request asks for one slot, for an event that a producer named.
func request(id, category string) Request {
	return Request{ID: id, Category: category, Cost: 1, Message: Message{Stream: "EVENTS", Sequence: 1, Stored: start}}
}

func (r Request) withCost(cost int) Request {
	r.Cost = cost
	return r
}

// inMessage is the same event in another stored message.
func (r Request) inMessage(sequence uint64) Request {
	r.Message.Sequence = sequence
	return r
}

// derived asks for an event whose ID was made from its place in the stream.
func derived(sequence uint64, stored time.Time, category string) Request {
	message := Message{Stream: "EVENTS", Sequence: sequence, Stored: stored}
	return Request{ID: fmt.Sprintf("EVENTS:%d", sequence), Derived: true, Category: category, Cost: 1, Message: message}
}

// several are n different events of one category.
func several(n int, name, category string) []Request {
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = request(fmt.Sprintf("%s%d", name, i+1), category)
	}
	return requests
}

// fakeClock stands still until it is moved.
type fakeClock struct {
	mu    sync.Mutex
	now   time.Time
	moved func(now time.Time)
}

func newFakeClock(moved func(now time.Time)) *fakeClock {
	c := &fakeClock{moved: moved}
	c.set(start)
	return c
}

func (c *fakeClock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	if c.moved != nil {
		c.moved(now)
	}
}

func (c *fakeClock) advance(d time.Duration) { c.set(c.read().Add(d)) }

// withFakeTime makes the scripts read a clock that the test moves in the place of TIME. The clock is a hash that has
// the two parts of TIME's reply.
func withFakeTime(t testing.TB, r *Redis) *fakeClock {
	t.Helper()
	key := "{clock}:" + r.keys.prefix
	r.source = func(script lua.Script, algorithms []string) string {
		return withFakeTimeOnce(t, script, algorithms, key)
	}
	if r.library != nil {
		name := fmt.Sprintf("%s_%x", r.library.name, sha256.Sum256([]byte(key)))
		r.library = &library{name: name, source: strings.ReplaceAll(fakeTime(t, r.library.source, key), r.library.name, name)}
	}
	rules := *r.rules()
	r.inUse.Store(nil)
	r.Adopt(rules)
	return newFakeClock(func(now time.Time) {
		micros := now.UnixMicro()
		_, err := r.client.TxPipelined(context.Background(), func(p redis.Pipeliner) error {
			p.HSet(context.Background(), key, "seconds", micros/1e6, "micros", micros%1e6)
			p.Expire(context.Background(), key, time.Hour)
			return nil
		})
		if err != nil {
			t.Fatalf("set the clock of the scripts: %v", err)
		}
	})
}

// composed remembers sources: some tests make the same ones thousands of times.
var composed sync.Map

func withFakeTimeOnce(t testing.TB, script lua.Script, algorithms []string, key string) string {
	t.Helper()
	name := fmt.Sprint(script, algorithms, key)
	if source, known := composed.Load(name); known {
		return fmt.Sprint(source)
	}
	source := fakeTime(t, lua.Source(script, algorithms), key)
	composed.Store(name, source)
	return source
}

func fakeTime(t testing.TB, script, key string) string {
	t.Helper()
	const genuine = "redis.call('TIME')"
	if strings.Count(script, genuine) != 1 {
		t.Fatalf("the script has %d calls of TIME, expected one", strings.Count(script, genuine))
	}
	return strings.Replace(script, genuine, fmt.Sprintf("redis.call('HMGET', '%s', 'seconds', 'micros')", key), 1)
}

// finish records deliveries where it does not matter whether that is new.
func finish(ctx context.Context, limiter Limiter, leases ...Lease) error {
	_, err := limiter.Finish(ctx, leases)
	return err
}
