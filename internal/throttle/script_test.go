package throttle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/script/scripttest"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// scriptTree has a limit at each level of the path a.b.
const scriptPath = "a.b"

func scriptSettings(t testing.TB) Settings {
	return Settings{Tree: newTree(t, "6/1h", "5/1h", "a.b=4/1h"), Lease: testLease, Retention: testRetention, PairTTL: testPairTTL}
}

// operation is one call of each script that writes, on an event that was leased before.
type operation struct {
	name    string
	touches []string // the kinds of keys on which it depends
	writes  []string // the commands with which it writes
	call    func(ctx context.Context, r *Redis, lease Lease) error
}

var operations = []operation{
	{
		"decide", []string{"calls", "leased", "done", "message", "pauses", "log", "log:a", "log:a.b"},
		[]string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.Decide(ctx, []Request{request("new", scriptPath).withCost(2)})
			return err
		},
	},
	{
		"decide as one", []string{"calls", "leased", "done", "message", "pauses", "log", "log:a", "log:a.b"}, []string{"zadd", "pexpire", "zremrangebyrank"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.Decide(ctx, []Request{request("new", scriptPath)})
			return err
		},
	},
	{
		"finish", []string{"calls", "leased", "done", "message"}, []string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
		func(ctx context.Context, r *Redis, lease Lease) error { return finish(ctx, r, lease) },
	},
	{
		"announce", []string{"calls", "pairs:a", "pairs:until:a"}, []string{"zadd", "pexpire", "zrem", "hset", "hdel"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			return r.announce(ctx, []Decision{{Lease: Lease{Request: request("new", scriptPath).ofPair("new")}}})
		},
	},
	{
		"finish a firing", []string{"calls", "leased", "done", "message", "pairs:a", "pairs:until:a"},
		[]string{"zadd", "pexpire", "zrem", "zremrangebyrank", "hset", "hdel"},
		func(ctx context.Context, r *Redis, lease Lease) error {
			lease.Request, lease.receipt = lease.ofPair("new"), "a receipt"
			return finish(ctx, r, lease)
		},
	},
	{
		"resolve", []string{"calls", "leased", "done", "message", "pairs:a", "pairs:until:a"},
		[]string{"zadd", "pexpire", "zrem", "hset", "hdel"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.Resolve(ctx, []Request{request("new", scriptPath).ofPair("open")})
			return err
		},
	},
	{
		"finish a resolved", []string{"calls", "leased", "done", "message", "pairs:a", "pairs:until:a"},
		[]string{"zadd", "pexpire", "zrem", "zremrangebyrank", "hdel"},
		func(ctx context.Context, r *Redis, lease Lease) error {
			lease.Request, lease.slotless, lease.resolving = lease.ofPair("any"), true, true
			return finish(ctx, r, lease)
		},
	},
	{
		"restore a firing", []string{"calls", "leased", "done", "message", "pairs:a", "pairs:until:a", "log", "log:a", "log:a.b"},
		[]string{"zadd", "pexpire", "zrem", "zremrangebyrank", "hset", "hdel"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			restored := Lease{Request: request("restored", scriptPath).ofPair("new")}
			_, err := r.Restore(ctx, []admission{{lease: restored, at: time.Now(), became: wasDelivered}})
			return err
		},
	},
	{
		"extend", []string{"calls", "leased"}, []string{"zadd", "pexpire", "zrem"},
		func(ctx context.Context, r *Redis, lease Lease) error {
			_, err := r.Extend(ctx, []Lease{lease}, time.Minute)
			return err
		},
	},
	{
		"release", []string{"calls", "leased"}, []string{"zadd", "pexpire", "zrem"},
		func(ctx context.Context, r *Redis, lease Lease) error {
			_, err := r.Extend(ctx, []Lease{lease}, 0)
			return err
		},
	},
	{
		"refund", []string{"calls", "leased", "done", "message", "log", "log:a", "log:a.b"}, []string{"pexpire", "zrem", "zremrangebyrank"},
		func(ctx context.Context, r *Redis, lease Lease) error {
			_, err := r.Refund(ctx, []Lease{lease})
			return err
		},
	},
	{
		"restore", []string{"calls", "leased", "done", "message", "log", "log:a", "log:a.b"},
		[]string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			now := time.Now()
			_, err := r.Restore(ctx, []admission{
				{lease: Lease{Request: request("restored", scriptPath)}, at: now.Add(-time.Minute), became: wasDelivered},
				{lease: Lease{Request: request("restored too", scriptPath).withCost(2)}, at: now},
			})
			return err
		},
	},
	{
		"usage", []string{"calls", "log", "log:a", "log:a.b"}, nil,
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.Usage(ctx, r.settings.Tree.Path(scriptPath))
			return err
		},
	},
}

// seed leaves one event of each state, and a pause: every kind of key is there.
func seed(t *testing.T, r *Redis) (leased Lease) {
	t.Helper()
	seedPairs(t, r, "leased")
	result := testkit.Must(r.Decide(t.Context(), []Request{request("leased", scriptPath), request("delivered", scriptPath)}))(t)
	testkit.NoError(t, finish(t.Context(), r, result.Decisions[1].Lease))
	pause(t, r, "#here", time.Hour)
	return result.Decisions[0].Lease
}

func TestEveryKeyExpires(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, o := range operations {
		t.Run(o.name, func(t *testing.T) {
			// Alone, on an empty server, and after others.
			client.FlushDB(t.Context())
			r := newRedis(client, "expiry", scriptSettings(t))
			testkit.NoError(t, o.call(t.Context(), r, Lease{Request: request("never leased", scriptPath), End: 1}))
			scripttest.WantExpiries(t, client)
			lease := seed(t, r)
			testkit.NoError(t, o.call(t.Context(), r, lease))
			if keys := scripttest.WantExpiries(t, client); len(keys) < 5 {
				t.Errorf("only %q are there", keys)
			}
		})
	}
	t.Run("shadow mode", func(t *testing.T) {
		client.FlushDB(t.Context())
		settings := scriptSettings(t)
		settings.Forward = true
		r := newRedis(client, "expiry", settings)
		testkit.Must(r.Decide(t.Context(), several(10, "e", scriptPath)))(t)
		scripttest.WantExpiries(t, client)
	})
}

func TestScriptsMayBeFlushed(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	r := newRedis(client, "flush", scriptSettings(t))
	lease := seed(t, r)
	for _, o := range operations {
		server.CLI("SCRIPT", "FLUSH", "SYNC")
		if err := o.call(t.Context(), r, lease); err != nil {
			t.Errorf("%s after SCRIPT FLUSH: %v", o.name, err)
		}
	}
}

// TestRestart shows that what an append-only file keeps is enough to go on.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	client := newClient(t, redis.Options{Addr: server.Addr, MaxRetries: 20})
	r := newRedis(client, "restart", scriptSettings(t))
	lease := seed(t, r)
	server.Restart()
	result, err := r.Decide(t.Context(), append(several(3, "new", scriptPath), request("leased", scriptPath), request("delivered", scriptPath)))
	if err != nil {
		t.Fatal(err)
	}
	wantVerdicts(t, result.Decisions, Admitted, Admitted, Denied, Leased, Done)
	if returned, err := r.Refund(t.Context(), []Lease{lease}); err != nil || !returned[0] {
		t.Errorf("refund: %v, %v", returned, err)
	}
	scripttest.WantExpiries(t, client)
}

func TestKeyOfTheWrongType(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, kind := range []string{"calls", "leased", "done", "message", "pauses", "log", "log:a", "log:a.b", "pairs:a", "pairs:until:a"} {
		for _, o := range operations {
			t.Run(kind+"/"+o.name, func(t *testing.T) {
				client.FlushDB(t.Context())
				r := newRedis(client, "wrong", scriptSettings(t))
				lease := seed(t, r)
				client.Set(t.Context(), "{wrong}:"+kind, "a string", 0)
				before := scripttest.Contents(t, client)
				err := o.call(t.Context(), r, lease)
				if !slices.Contains(o.touches, kind) {
					if err != nil {
						t.Fatalf("it does not need that key: %v", err)
					}
					return
				}
				if !errors.Is(err, script.ErrRefused) || errors.Is(err, script.ErrUnavailable) {
					t.Fatalf("error %v, want %v", err, script.ErrRefused)
				}
				if !strings.Contains(err.Error(), "WRONGTYPE") {
					t.Errorf("error %q does not say what is wrong", err)
				}
				scripttest.WantUnchanged(t, client, before)
			})
		}
	}
}

func TestRightsThatAreEnough(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := scripttest.SetUser(t, server, "worker", scripttest.Rights())
	r := newRedis(client, "rights", scriptSettings(t))
	if err := r.Probe(t.Context()); err != nil {
		t.Errorf("probe: %v", err)
	}
	if err := r.SelfTest(t.Context(), pacing.SelfTest); err != nil {
		t.Errorf("self-test: %v", err)
	}
	lease := seed(t, r)
	for _, o := range operations {
		if err := o.call(t.Context(), r, lease); err != nil {
			t.Errorf("%s: %v", o.name, err)
		}
	}
	admin := newClient(t, redis.Options{Addr: server.Addr})
	for _, key := range scripttest.WantExpiries(t, admin) {
		if !strings.HasPrefix(key, "{rights}:") {
			t.Errorf("key %q is not of this deployment", key)
		}
	}
	// Long sets are read in another way.
	none := newRedis(client, "rights", Settings{Tree: newTree(t, "none", "none", ""), Lease: testLease, Retention: testRetention})
	for batch := range 2 {
		if _, err := none.Decide(t.Context(), several(200, fmt.Sprint(batch, "-"), "a")); err != nil {
			t.Errorf("a long record: %v", err)
		}
	}
}

func TestMissingRightToWrite(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	admin := newClient(t, redis.Options{Addr: server.Addr})
	for _, command := range []string{"zadd", "pexpire", "zrem", "zremrangebyrank", "hset", "hdel"} {
		client := scripttest.SetUser(t, server, "without-"+command, scripttest.Without(scripttest.Rights(), command))
		for _, o := range operations {
			t.Run(command+"/"+o.name, func(t *testing.T) {
				admin.FlushDB(t.Context())
				settings := scriptSettings(t)
				lease := seed(t, newRedis(admin, "rights", settings))
				if o.name == "decide" && command == "zrem" {
					// It is used when an event is new whose ID was done so long ago that it may be forgotten.
					admin.ZAdd(t.Context(), "{rights}:done", redis.Z{Score: 1, Member: "new"})
				}
				if command == "zremrangebyrank" && slices.Contains(o.writes, command) {
					plantStale(t, admin, o.touches)
				}
				before := scripttest.Contents(t, admin)
				err := o.call(t.Context(), newRedis(client, "rights", settings), lease)
				if !slices.Contains(o.writes, command) {
					if err != nil {
						t.Fatalf("it does not need that command: %v", err)
					}
					return
				}
				if !errors.Is(err, script.ErrRefused) {
					t.Fatalf("error %v, want %v", err, script.ErrRefused)
				}
				scripttest.WantUnchanged(t, admin, before)
			})
		}
	}
}

// plantStale adds a member that counts no more to each sorted set of the kinds.
func plantStale(t *testing.T, client redis.UniversalClient, kinds []string) {
	t.Helper()
	for _, kind := range kinds {
		if key := "{rights}:" + kind; client.Type(t.Context(), key).Val() != "hash" && kind != "pairs:a" {
			client.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: "stale"})
			client.Expire(t.Context(), key, time.Hour)
		}
	}
}

// TestOutOfMemory shows that a server without memory refuses wholly, or does wholly what it is asked.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, o := range operations {
		t.Run(o.name, func(t *testing.T) {
			client.FlushDB(t.Context())
			r := newRedis(client, "memory", scriptSettings(t))
			lease := seed(t, r)
			before := scripttest.Contents(t, client)
			server.CLI("CONFIG", "SET", "maxmemory", "1mb")
			err := o.call(t.Context(), r, lease)
			server.CLI("CONFIG", "SET", "maxmemory", "0")
			scripttest.WantExpiries(t, client)
			if err != nil {
				if !errors.Is(err, script.ErrRefused) {
					t.Errorf("error %v, want %v", err, script.ErrRefused)
				}
				scripttest.WantUnchanged(t, client, before)
				return
			}
			if !strings.HasPrefix(o.name, "decide") {
				return
			}
			for _, log := range []string{"log", "log:a", "log:a.b"} {
				if !slices.Contains(client.ZRange(t.Context(), "{memory}:"+log, 0, -1).Val(), "new") {
					t.Errorf("the event was admitted, and %s does not have it", log)
				}
			}
		})
	}
}

// TestLostReply has the client repeat a script call whose answer was lost on the way.
func TestLostReply(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	client := newClient(t, redis.Options{Addr: proxy.Addr, MaxRetries: 3})
	r := newRedis(client, "lost", scriptSettings(t))
	lease := seed(t, r) // the scripts are loaded
	lost := func(call func() error) {
		t.Helper()
		happened := proxy.CutAfterRequest("evalsha")
		testkit.NoError(t, call())
		select {
		case <-happened:
		case <-time.After(patience):
			t.Fatal("no reply was lost")
		}
	}

	var result BatchResult
	ids := append(several(3, "new", scriptPath), request("new1", scriptPath), request("leased", scriptPath))
	lost(func() (err error) { result, err = r.Decide(t.Context(), ids); return err })
	wantVerdicts(t, result.Decisions, Admitted, Admitted, Denied, Leased, Leased)
	wantUsed(t, r, 4)
	first, second := result.Decisions[0].Lease, result.Decisions[1].Lease
	var extended []Lease
	if extended, err := r.Extend(t.Context(), []Lease{first}, testLease); err != nil || extended[0].End == 0 {
		t.Errorf("the lease of the repeated call does not hold: %+v, %v", extended, err)
	}
	lost(func() (err error) { extended, err = r.Extend(t.Context(), []Lease{lease}, testLease); return err })
	if extended[0].End == 0 {
		t.Error("a lease that was extended twice is said to be someone else's")
	}
	lost(func() error { return finish(t.Context(), r, second) })
	lost(func() error {
		_, err := r.Restore(t.Context(), []admission{{lease: Lease{Request: request("restored", "a")}, at: time.Now()}})
		return err
	})
	counts, err := r.Usage(t.Context(), r.settings.Tree.Path("a"))
	if err != nil || !reflect.DeepEqual(counts, [][]int64{{5}, {5}}) {
		t.Errorf("after all that, %v slots are taken, %v", counts, err)
	}
}

func wantUsed(t *testing.T, r *Redis, want int64) {
	t.Helper()
	counts := testkit.Must(r.Usage(t.Context(), r.settings.Tree.Path(scriptPath)))(t)
	if !reflect.DeepEqual(counts, [][]int64{{want}, {want}, {want}}) {
		t.Errorf("slots taken: %v, want %d at each node", counts, want)
	}
}

// TestNoReply has a call fail although it was executed. Asking again takes no second slot.
func TestNoReply(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	client := newClient(t, redis.Options{Addr: proxy.Addr, MaxRetries: -1})
	settings := scriptSettings(t)
	settings.Lease = 50 * time.Millisecond
	r := newRedis(client, "none", settings)
	seed(t, r)
	wantUsed(t, r, 2)
	proxy.DropReplies(true)
	options := r.runner.Options()
	options.Timeout = 500 * time.Millisecond
	hasty := NewRedis(script.NewRunner(options), settings)
	_, err := hasty.Decide(t.Context(), []Request{request("e", scriptPath)})
	if !errors.Is(err, script.ErrUnavailable) {
		t.Fatalf("error %v, want %v", err, script.ErrUnavailable)
	}
	proxy.DropReplies(false)
	proxy.Cut()
	testkit.Await(t, "the lease lapses", func() error {
		result, err := r.Decide(t.Context(), []Request{request("e", scriptPath)})
		if err != nil || result.Decisions[0].Verdict == Reclaimed {
			return err
		}
		if result.Decisions[0].Verdict != Leased {
			t.Fatalf("verdict %d, want %d and then %d", result.Decisions[0].Verdict, Leased, Reclaimed)
		}
		return errors.New("it is leased")
	})
	wantUsed(t, r, 3)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	bus := strconv.Itoa(servertest.ReservePort(t))
	server := servertest.StartRedis(t, "--cluster-enabled", "yes", "--cluster-port", bus)
	server.CLI("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	testkit.Eventually(t, "the cluster forms", func() bool { return strings.Contains(server.CLI("CLUSTER", "INFO"), "cluster_state:ok") })
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{server.Addr}, IsClusterMode: true, DisableIdentity: true, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = client.Close() })
	r := newRedis(client, "cluster", scriptSettings(t))
	testkit.NoError(t, errors.Join(r.Probe(t.Context()), r.SelfTest(t.Context(), pacing.SelfTest)))
	lease := seed(t, r)
	for _, o := range operations {
		if err := o.call(t.Context(), r, lease); err != nil {
			t.Errorf("%s: %v", o.name, err)
		}
	}
	result, err := r.Decide(t.Context(), []Request{request("x", scriptPath).withCost(3)})
	if err != nil || result.Decisions[0].Verdict != Denied {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestLogMembers(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	settings := scriptSettings(t)
	settings.Tree = newTree(t, "100/1h", "100/1h", "a.b=100/1h")
	r := newRedis(client, "members", settings)
	clock := withFakeTime(t, r)
	again := derived(7, start.Add(time.Hour), scriptPath).withCost(2)
	decide := func(requests ...Request) {
		t.Helper()
		result := testkit.Must(r.Decide(t.Context(), requests))(t)
		for i, d := range result.Decisions {
			if d.Verdict != Admitted {
				t.Fatalf("%q: %+v", requests[i].ID, d)
			}
		}
	}
	decide(request("one", scriptPath), request("three", scriptPath).withCost(3), derived(7, start, scriptPath).withCost(2))
	clock.Advance(time.Second)
	decide(again, request("<http://source>/id", scriptPath))

	first, second := float64(start.UnixMicro()), float64(start.Add(time.Second).UnixMicro())
	version := strconv.FormatInt(again.Message.version(), 10)
	want := map[string]float64{
		"one":   first,
		"three": first, "three\n2": first, "three\n3": first,
		"EVENTS:7": first, "EVENTS:7\n2": first,
		"EVENTS:7\n" + version: second, "EVENTS:7\n" + version + "\n2": second,
		"<http://source>/id": second,
	}
	for _, log := range []string{"log", "log:a", "log:a.b"} {
		got := make(map[string]float64)
		for _, member := range client.ZRangeWithScores(t.Context(), "{members}:"+log, 0, -1).Val() {
			got[fmt.Sprint(member.Member)] = member.Score
		}
		testkit.EqualMaps(t, got, want, "%s holds", log)
	}
}

func TestDeniedEventsLeaveNoTrace(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	settings := scriptSettings(t)
	settings.Tree = newTree(t, "3/1h", "2/1h", "off=0/1h")
	r := newRedis(client, "trace", settings)
	testkit.Must(r.Decide(t.Context(), append(several(3, "x", "off"), request("large", "a").withCost(5))))(t)
	if held := scripttest.Contents(t, client); len(held) != 0 {
		t.Fatalf("events that never fit left %v", slices.Collect(maps.Keys(held)))
	}
	testkit.Must(r.Decide(t.Context(), append(several(2, "e", "a"), request("f", "b"))))(t)
	before := scripttest.Contents(t, client)
	want := []string{"{trace}:calls", "{trace}:leased", "{trace}:log", "{trace}:log:a", "{trace}:log:b", "{trace}:message"}
	if got := slices.Sorted(maps.Keys(before)); !slices.Equal(got, want) {
		t.Fatalf("keys %q, want %q", got, want)
	}
	var flood []Request
	for i := range 2000 {
		flood = append(flood, request(fmt.Sprint("flood", i), fmt.Sprintf("a%d.b.c", i)))
	}
	for batch := range slices.Chunk(flood, MaxBatch) {
		result := testkit.Must(r.Decide(t.Context(), batch))(t)
		for _, d := range result.Decisions {
			if d.Verdict != Denied || d.Node.Level != limits.LevelGlobal {
				t.Fatalf("%+v", d)
			}
		}
	}
	scripttest.WantUnchanged(t, client, before)
}

func TestPausesAreShared(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	r := newRedis(client, "pauses", scriptSettings(t))
	clock := withFakeTime(t, r)
	steps := []struct {
		pause   string
		d, wait time.Duration
		want    map[string]time.Duration
	}{
		{"#a", time.Minute, 0, map[string]time.Duration{"#a": time.Minute}},
		{"#b\n", time.Second, 0, map[string]time.Duration{"#a": time.Minute, "#b\n": time.Second}},
		{"#a", time.Second, 0, map[string]time.Duration{"#a": time.Minute, "#b\n": time.Second}},
		{"#b\n", 2 * time.Second, time.Second, map[string]time.Duration{"#a": 59 * time.Second, "#b\n": 2 * time.Second}},
		{"#c", 1500 * time.Microsecond, 2 * time.Second, map[string]time.Duration{"#a": 57 * time.Second, "#c": 1500 * time.Microsecond}},
		{"#c", time.Hour, 57 * time.Second, map[string]time.Duration{"#c": time.Hour}},
	}
	for i, step := range steps {
		clock.Advance(step.wait)
		pause(t, r, step.pause, step.d)
		result := testkit.Must(r.Decide(t.Context(), nil))(t)
		testkit.EqualMaps(t, result.Pauses, step.want, "step %d: pauses", i)
	}
	clock.Advance(time.Hour)
	if result, err := r.Decide(t.Context(), nil); err != nil || len(result.Pauses) != 0 {
		t.Errorf("after all pauses: %v, %v", result.Pauses, err)
	}
}

// TestRestoreForgottenEvent restores an event whose ID belonged to one that may be forgotten, and has not been yet.
func TestRestoreForgottenEvent(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	r := newRedis(newClient(t, redis.Options{Addr: server.Addr}), "forgotten", scriptSettings(t))
	clock := withFakeTime(t, r)
	seed(t, r)
	clock.Advance(testRetention + testLease + time.Second)
	admissions := []admission{
		{lease: Lease{Request: request("delivered", scriptPath).inMessage(2)}, at: time.Now()},
		{lease: Lease{Request: request("leased", scriptPath).inMessage(2)}, at: time.Now()},
	}
	testkit.Must(r.Restore(t.Context(), admissions))(t)
	wantUsed(t, r, 2)
	for i := range 3 {
		result, err := r.Decide(t.Context(), []Request{
			request(fmt.Sprint("other", i), "b"), request("delivered", scriptPath).inMessage(2), request("leased", scriptPath).inMessage(2),
		})
		if err != nil || result.Decisions[1].Verdict != Leased || result.Decisions[2].Verdict != Leased {
			t.Fatalf("%+v, %v", result.Decisions, err)
		}
		clock.Advance(time.Second)
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	r := newRedis(client, "restore", scriptSettings(t))
	clock := withFakeTime(t, r)
	leases := func(requests ...Request) []Lease {
		result := testkit.Must(r.Decide(t.Context(), requests))(t)
		return leasesOf(result.Decisions)
	}
	known := leases(request("leased", scriptPath), request("done", scriptPath))
	testkit.NoError(t, finish(t.Context(), r, known[1:]...))
	clock.Advance(time.Minute)
	now := time.Now()
	admissions := []admission{
		{lease: Lease{Request: request("delivered", scriptPath)}, at: now.Add(-10 * time.Minute), became: wasDelivered},
		{lease: Lease{Request: request("under way", scriptPath).withCost(2)}, at: now.Add(-5 * time.Minute)},
		{lease: Lease{Request: request("leased", scriptPath)}, at: now.Add(-5 * time.Minute), became: wasDelivered},
		{lease: Lease{Request: request("done", scriptPath)}, at: now.Add(-5 * time.Minute)},
		{lease: Lease{Request: request("long ago", scriptPath)}, at: now.Add(-2 * time.Hour), became: wasDelivered},
	}
	for range 2 {
		end := testkit.Must(r.Restore(t.Context(), admissions))(t)
		if late := end - clock.Read().Add(testLease).UnixMicro(); late < 0 || late > 10 {
			t.Errorf("leases end at %d", end)
		}
		for _, log := range []string{"log", "log:a", "log:a.b"} {
			ages := make(map[string]time.Duration)
			for _, m := range client.ZRangeWithScores(t.Context(), "{restore}:"+log, 0, -1).Val() {
				ages[fmt.Sprint(m.Member)] = clock.Read().Sub(time.UnixMicro(int64(m.Score))).Round(time.Minute)
			}
			want := map[string]time.Duration{
				"leased": time.Minute, "done": time.Minute, "delivered": 10 * time.Minute,
				"under way": 5 * time.Minute, "under way\n2": 5 * time.Minute,
			}
			testkit.EqualMaps(t, ages, want, "%s: ages", log)
		}
		clock.Advance(time.Second)
	}
	result := testkit.Must(r.Decide(t.Context(), []Request{
		request("delivered", scriptPath), request("under way", scriptPath), request("leased", scriptPath), request("done", scriptPath),
		request("long ago", scriptPath), request("delivered", scriptPath).inMessage(2), request("under way", scriptPath).inMessage(2),
	}))(t)
	wantVerdicts(t, result.Decisions, Done, Leased, Done, Done, Done, Duplicate, Duplicate)
	scripttest.WantExpiries(t, client)
}

func TestALogForgetsWhatHasLeftItsWindows(t *testing.T) {
	t.Parallel()
	client := newClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for cost, name := range map[int]string{1: "as one", 2: "one by one"} {
		r := newRedis(client, name, Settings{Tree: newTree(t, "1000/1m", "1000/2m", ""), Lease: testLease, Retention: testRetention})
		clock := withFakeTime(t, r)
		for round := range 4 {
			clock.Advance(time.Minute)
			testkit.Must(r.Decide(t.Context(), []Request{request(fmt.Sprint(round), "a").withCost(cost)}))(t)
			for log, rounds := range map[string]int{"log": 1, "log:a": min(2, round+1)} {
				if size := client.ZCard(t.Context(), "{"+name+"}:"+log).Val(); size != int64(cost*rounds) {
					t.Errorf("%s, round %d: %s holds %d slots, want %d", name, round, log, size, cost*rounds)
				}
			}
		}
	}
}
