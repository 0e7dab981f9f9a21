package throttle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fault is a state in which a running server refuses a call wholly.
type fault struct {
	name  string
	class error  // nil where the client hides the fault
	says  string // pattern of the error's text
	start func(t *testing.T) faulty
}

// faulty is a server whose fault begins with fall and ends with mend. The server keeps its data.
type faulty struct {
	address    string
	fall, mend func()
}

var faults = []fault{
	{
		name: "READONLY, a replica", class: script.ErrUnavailable, says: "READONLY",
		start: byCommands("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
	},
	{
		name: "MASTERDOWN, a replica that has lost its primary", class: script.ErrUnavailable, says: "MASTERDOWN",
		start: byCommands("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "--replica-serve-stale-data", "no"),
	},
	{
		name: "LOADING, a server that was killed and comes back", class: script.ErrUnavailable, says: "LOADING",
		start: func(t *testing.T) faulty {
			server := servertest.StartRedis(t)
			return faulty{server.Addr, server.RestartLoading, server.Restart}
		},
	},
	{
		name: "BUSY, a script that does not end", class: script.ErrUnavailable, says: "BUSY",
		start: startBusy,
	},
	{
		name: "CLUSTERDOWN, a slot that no node has", class: script.ErrUnavailable, says: "CLUSTERDOWN",
		start: func(t *testing.T) faulty {
			cluster := servertest.StartCluster(t, 1)
			node, slot := cluster.Nodes[0], strconv.Itoa(cluster.Slot(limiterKey("")))
			return faulty{
				node.Addr,
				func() { node.CLI("CLUSTER", "DELSLOTS", slot) },
				func() { node.CLI("CLUSTER", "ADDSLOTS", slot); cluster.AwaitOK() },
			}
		},
	},
	{
		name: "MOVED, a node that has given the slot away", class: script.ErrUnavailable, says: "MOVED",
		start: func(t *testing.T) faulty {
			cluster, slot, home, other := scripttest.StartPair(t, limiterKey(""))
			move := func(to *servertest.Redis) { scripttest.MoveKeys(cluster.MoveSlot(slot, to)).End() }
			return faulty{home.Addr, func() { move(other) }, func() { move(home) }}
		},
	},
	{
		name: "ASK, a node that is giving the slot away", class: script.ErrUnavailable, says: "ASK",
		start: func(t *testing.T) faulty {
			cluster, slot, home, other := scripttest.StartPair(t, limiterKey(""))
			var move *servertest.SlotMove
			return faulty{
				home.Addr,
				func() { move = scripttest.MoveKeys(cluster.MoveSlot(slot, other)) },
				func() { move.End(); scripttest.MoveKeys(cluster.MoveSlot(slot, home)).End() },
			}
		},
	},
	{
		name:  "OOM, which the scripts get past by writing first what takes no memory",
		start: byCommands("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
	},
	{
		name:  "NOSCRIPT, scripts that were forgotten",
		start: byCommands("SCRIPT FLUSH", "PING"),
	},
	{
		name: "MISCONF, a disk that cannot be written", class: script.ErrRefused, says: "MISCONF",
		start: startUnsaved,
	},
	{
		name: "WRONGTYPE, a key that someone else has made", class: script.ErrRefused, says: "WRONGTYPE",
		start: byCommands("SET "+limiterKey("pauses")+" text", "DEL "+limiterKey("pauses")),
	},
	{
		name: "NOPERM, no right to run scripts", class: script.ErrRefused, says: "NOPERM",
		start: byCommands("ACL SETUSER default -eval -evalsha", "ACL SETUSER default +@all"),
	},
	{
		name: "no right to write", class: script.ErrRefused, says: "can't run this command|ACL failure",
		start: byCommands("ACL SETUSER default -zadd", "ACL SETUSER default +@all"),
	},
	{
		name: "NOAUTH, a password that has been set", class: script.ErrRefused, says: "NOAUTH|unauthenticated",
		start: func(t *testing.T) faulty {
			server := servertest.StartRedis(t)
			admin := newClient(t, redis.Options{Addr: server.Addr, PoolSize: 1})
			must := func(arguments ...any) {
				t.Helper()
				err := admin.Do(t.Context(), arguments...).Err()
				testkit.Require(t, err == nil, "%v: %v", arguments, err)
			}
			return faulty{
				server.Addr,
				func() { must("CONFIG", "SET", "requirepass", "secret"); must("CLIENT", "KILL", "TYPE", "normal") },
				func() { must("CONFIG", "SET", "requirepass", "") },
			}
		},
	},
}

// limiterKey returns a key of the deployment of the tests' limiters.
func limiterKey(name string) string { return "{limiter}:" + name }

// byCommands returns a fault that one command begins and another ends.
func byCommands(fall, mend string, settings ...string) func(t *testing.T) faulty {
	return func(t *testing.T) faulty {
		t.Helper()
		server := servertest.StartRedis(t, settings...)
		run := func(command string) func() { return func() { server.CLI(strings.Fields(command)...) } }
		return faulty{server.Addr, run(fall), run(mend)}
	}
}

// startBusy returns a fault in which another client runs an endless script.
func startBusy(t *testing.T) faulty {
	t.Helper()
	server := servertest.StartRedis(t, "--lua-time-limit", "10")
	client := newClient(t, redis.Options{Addr: server.Addr, MaxRetries: -1})
	ended := make(chan error, 1)
	return faulty{
		server.Addr,
		func() {
			go func() { ended <- client.Eval(t.Context(), "while true do end", nil).Err() }()
			testkit.Eventually(t, "the server to be busy", func() bool { return client.Ping(t.Context()).Err() != nil })
		},
		func() {
			server.CLI("SCRIPT", "KILL")
			testkit.Fails(t, "the script", <-ended, nil, "killed")
		},
	}
}

// startUnsaved returns a fault in which a folder in the place of dump.rdb stops the server from saving.
func startUnsaved(t *testing.T) faulty {
	t.Helper()
	server := servertest.StartRedis(t)
	file := filepath.Join(server.Dir, "dump.rdb")
	return faulty{
		server.Addr,
		func() {
			testkit.NoError(t, os.MkdirAll(filepath.Join(file, "folder"), 0o700))
			server.CLI("CONFIG", "SET", "save", "3600 1")
			server.CLI("BGSAVE")
			testkit.Eventually(t, "the server to fail to save", func() bool {
				return strings.Contains(server.CLI("INFO", "persistence"), "rdb_last_bgsave_status:err")
			})
		},
		func() {
			testkit.NoError(t, os.RemoveAll(file))
			server.CLI("SAVE")
		},
	}
}

// countCommands returns how many commands a client has made from now on.
func countCommands(client redis.UniversalClient) *atomic.Int64 {
	asked := new(atomic.Int64)
	client.AddHook(scripttest.Hook(func(redis.Cmder, error) { asked.Add(1) }))
	return asked
}

// TestFaults gives a server each fault. The error has the right class and names the fault, and the limiter holds. After the fault the
// limiter continues by itself: no event is lost or charged twice.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			testFault(t, f)
		})
	}
}

func testFault(t *testing.T, f fault) {
	t.Helper()
	server := f.start(t)
	limiter := newLimiterKit(t, server.address, LimiterOptions{Policy: Hold, Settings: store.Settings{Tree: newTree(t, "7/1h", "6/1h", "")}})
	limiter.start()
	redis, asked := limiter.o.Redis, countCommands(limiter.options.Client)
	limiter.one(store.Admitted, request("finished before", "a")).Finish(t.Context(), "")
	finished := limiter.one(store.Admitted, request("finished", "a"))
	returned := limiter.one(store.Admitted, request("returned", "a"))
	extended := limiter.one(store.Admitted, request("extended", "a"))
	inNeed := []store.Request{request("of store", "a"), request("of limiter", "a")}

	server.fall()
	var err error
	testkit.Eventually(t, "the client to dial again", func() bool { // for a second it may repeat an error of the time when no server listened
		_, err = redis.Decide(t.Context(), inNeed[:1])
		return !strings.Contains(fmt.Sprint(err), "connection refused")
	})
	wantFault(t, f, err)
	_, err = limiter.Decide(t.Context(), inNeed[1:])
	wantFault(t, f, err)
	finished.Finish(t.Context(), "")
	returned.Refund(t.Context())
	testkit.Equal(t, extended.Extend(t.Context()), true, "the lease is extended during the fault")
	if f.class != nil {
		// The limiter asks again and stays unavailable.
		before := asked.Load()
		testkit.Eventually(t, "the limiter to have asked twice more", func() bool {
			_, err := limiter.Decide(t.Context(), inNeed[1:])
			wantFault(t, f, err)
			wantFault(t, f, limiter.Ready())
			return asked.Load() >= before+2 || t.Failed()
		})
	}
	server.mend()

	limiter.await()
	wanted := store.Admitted
	if f.class == nil {
		wanted = store.Leased
	}
	limiter.want(map[store.Verdict]int{wanted: 2}, inNeed...)
	limiter.one(store.Done, request("finished before", "a"))
	limiter.one(store.Leased, request("extended", "a"))
	testkit.Eventually(t, "what was delivered meanwhile to be recorded", func() bool {
		return limiter.decide(request("finished", "a"))[0].Verdict == store.Done
	})
	testkit.Eventually(t, "what was returned meanwhile to be recorded", func() bool {
		uses, err := redis.Readings.Uses(t.Context(), limiter.o.Tree.Path("a"))
		return err == nil && uses[0][0].Used == 5 && uses[1][0].Used == 5
	})
	limiter.metrics.wantRefunded(t, 1)
	limiter.want(map[store.Verdict]int{store.Admitted: 1, store.Denied: 1}, several(2, "last", "a")...)
	if f.class == nil {
		limiter.logs.Want(t)
		return
	}
	limiter.logs.Want(t, "redis is unavailable", "redis answers")
	limiter.metrics.wantDegraded(t, false, true, false)
}

func wantFault(t *testing.T, f fault, err error) {
	t.Helper()
	if f.class == nil {
		testkit.Check(t, err == nil, "error %v, want none", err)
		return
	}
	testkit.Check(t, errors.Is(err, f.class) && regexp.MustCompile(f.says).MatchString(err.Error()),
		"error %v, want %v that says %q", err, f.class, f.says)
}

func TestRefusalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logs := testkit.NewLog(t)
		r := logOnce{logger: logs.Logger(), tooLarge: make(map[string]bool)}
		tooLarge := store.Decision{Verdict: store.ExceedsCapacity, Limit: limits.Limit{Count: 3, Window: time.Hour}}
		for range 3 {
			for i := range maxNoted + 10 {
				r.exceedsCapacity(request("e", fmt.Sprint("c", i)), tooLarge)
			}
			r.exceedsCapacity(request("e", "off"), store.Decision{Verdict: store.ExceedsCapacity, Limit: limits.Limit{Count: 0, Window: time.Hour}})
		}
		logs.WantCount(t, maxNoted, "")

		logs = testkit.NewLog(t)
		r.logger = logs.Logger()
		for range 10 {
			r.report("a", errors.New("wrong type"))
			time.Sleep(oplog.Every / 5)
		}
		logs.Want(t, "event cannot be evaluated", "event cannot be evaluated")
	})
}

func scriptCalls(t *testing.T, server *servertest.Redis) int {
	t.Helper()
	found := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindStringSubmatch(server.CLI("INFO", "commandstats"))
	if found == nil {
		return 0
	}
	return testkit.Must(strconv.Atoi(found[1]))(t)
}

// TestLimiterAsksOnceAboutWhatIsBroken decides batches with a category whose log Redis refuses.
func TestLimiterAsksOnceAboutWhatIsBroken(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{Settings: store.Settings{Tree: newTree(t, "none", "100000/1h", "")}})
	limiter.server.CLI("SET", "{limiter}:log:bad", "a string")
	const rounds = 40
	ask := func(round int) {
		t.Helper()
		batch := append(several(store.MaxBatch-6, fmt.Sprint("bad", round, "-"), "bad"), several(6, fmt.Sprint("good", round, "-"), "good")...)
		for i, answer := range limiter.decide(batch...) {
			if bad := batch[i].Category == "bad"; bad != errors.Is(answer.Err, script.ErrRefused) || bad == (answer.Verdict == store.Admitted) {
				t.Fatalf("round %d: %q: got %+v, want it refused: %t", round, batch[i].ID, answer, bad)
			}
		}
	}
	ask(0)
	asked := time.Now()
	before := scriptCalls(t, limiter.server)
	for round := range rounds {
		ask(1 + round)
	}
	// A new attempt asks for the whole batch, and then for each category.
	most := 2*rounds + int(time.Since(asked)/refusedFor+1)*80
	testkit.AtMost(t, scriptCalls(t, limiter.server)-before, most, "script calls for %d batches", rounds)
	limiter.server.CLI("DEL", "{limiter}:log:bad")
	testkit.Eventually(t, "the category to be asked about again", func() bool {
		return limiter.decide(request("mended", "bad"))[0].Err == nil
	})
}

// TestLimiterDisclaims fails while a refused batch is asked in parts. The admitted part is reclaimed later, without doubt.
func TestLimiterDisclaims(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := newLimiterKit(t, server.Addr, LimiterOptions{})
	limiter.recovery.reach(t.Context())
	requests := []store.Request{request("e", "a"), request("f", "b")}
	calls := 0
	_, err := limiter.asker.askEach(t.Context(), requests, logsOf, func(ctx context.Context, nonce string, group []store.Request) ([]store.Decision, error) {
		if calls++; calls == 2 {
			return nil, errors.New("no answer")
		}
		return limiter.asker.askOnce(ctx, nonce, group)
	}, script.ErrRefused)
	testkit.Fails(t, "error", err, script.ErrUnavailable)
	limiter.recovery.reach(t.Context())
	limiter.takeOver("e", false)
}

func TestUnpaired(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	u := newUnpaired(time.Hour, clock.Read)
	l := &Limiter{unpaired: u}
	want := func(pair string, want bool) {
		t.Helper()
		testkit.Equal(t, l.KnownUnpaired(pair, before), want, "%q is known not to be open", pair)
	}
	firing := ofPair("fires", request("firing", "a"))
	want(firing.Pair, false)
	l.LearnUnpaired(firing.Pair, after)
	l.LearnUnpaired("other", after)
	l.LearnUnpaired("", after)
	want("", false)
	clock.Advance(unpairedFor - time.Nanosecond)
	want(firing.Pair, true)
	want("other", true)
	u.see([]store.Request{costing(0, firing), request("no pair", "a")})
	want(firing.Pair, true) // a look is no firing event
	u.see([]store.Request{firing})
	want(firing.Pair, false)
	want("other", true)
	l.LearnUnpaired(firing.Pair, after) // found before the firing event
	want(firing.Pair, false)
	clock.Advance(time.Nanosecond)
	want("other", false)
	clock.Advance(unpairedFor)
	l.LearnUnpaired(firing.Pair, after)
	want(firing.Pair, true)
	u.pairs.Clear()
	want(firing.Pair, false)

	for i := range 2 * maxUnpaired {
		l.LearnUnpaired(fmt.Sprint(i), after)
	}
	testkit.Equal(t, u.pairs.Len(), maxUnpaired, "pairs that are remembered")

	short, off := &Limiter{unpaired: newUnpaired(time.Millisecond, clock.Read)}, &Limiter{unpaired: newUnpaired(0, clock.Read)}
	short.LearnUnpaired("pair", after)
	off.LearnUnpaired("pair", after)
	testkit.Equal(t, short.KnownUnpaired("pair", before), true, "it is known during the life of the deny cache")
	testkit.Equal(t, off.KnownUnpaired("pair", before), false, "it is known without a deny cache")
	clock.Advance(time.Millisecond)
	testkit.Equal(t, short.KnownUnpaired("pair", before), false, "it outlives the deny cache")
}

// A resolved event may be stored before the pair was found not to be open, or after.
var before, after = time.Unix(1000, 0), time.Unix(1001, 0)

// TestLimiterUnpaired forgets unpaired events after a firing event, and in an outage.
func TestLimiterUnpaired(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{DenyCacheTTL: time.Hour, Settings: store.Settings{PairTTL: testPairTTL}})
	pair := aboutDisk("any").Pair
	known := func() bool {
		limiter.LearnUnpaired(pair, after)
		return limiter.KnownUnpaired(pair, before)
	}
	testkit.Equal(t, known(), true, "it is known after it was learned")
	testkit.Equal(t, limiter.KnownUnpaired(pair, after), false, "an event is answered that was stored after the pair was asked about")
	limiter.resolve(store.Unpaired, "", aboutDisk("resolved"))
	testkit.Equal(t, known(), true, "it is known after a resolved event")
	limiter.one(store.Admitted, aboutDisk("firing"))
	testkit.Equal(t, limiter.KnownUnpaired(pair, before) || known(), false, "it is known right after a firing event was seen")
	limiter.LearnUnpaired("another", after)
	limiter.lose()
	testkit.Equal(t, limiter.KnownUnpaired("another", before), false, "it is known without Redis")
}
