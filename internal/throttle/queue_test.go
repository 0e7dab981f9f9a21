package throttle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// coming is an event with the time of its delivery to a worker.
type coming struct {
	at      time.Time
	request store.Request
}

// queueWorld is a deployment with a real Redis and a simulated JetStream. JetStream delivers an event some time after it was published
// or due, and looks at schedules every quarter of a second.
type queueWorld struct {
	t        *testing.T
	runner   *script.Runner
	store    *store.Redis
	limiter  *Limiter
	clock    *testkit.Clock
	random   *rand.Rand
	coming   []coming // sorted by time
	admitted []string // IDs of the events that waited, in order
	at       []time.Time
	asked    int
}

const (
	scheduleTick = 250 * time.Millisecond
	latency      = 200 * time.Millisecond
)

// newQueueWorld makes a deployment with keys of its own and one limit for each first-level category.
func newQueueWorld(t *testing.T, client redis.UniversalClient, limit string, seed uint64) *queueWorld {
	options, clock := scripttest.WithClock(t, script.NewRunner(optionsOf(client, fmt.Sprintf("queue-%x", t.Name()))).Options())
	settings := store.Settings{Tree: newTree(t, "none", limit, ""), Lease: testLease, Retention: testRetention}
	runner := script.NewRunner(options)
	shared := store.NewRedis(runner, settings)
	limiter := newLimiterKit(t, "", LimiterOptions{Redis: shared, Settings: settings}).Limiter
	return &queueWorld{t: t, runner: runner, store: shared, limiter: limiter, clock: clock, random: rand.New(rand.NewPCG(seed, 0))}
}

func (w *queueWorld) comes(r store.Request, due time.Time) {
	next := coming{due.Add(time.Duration(w.random.Int64N(int64(latency)))), r}
	position, _ := slices.BinarySearchFunc(w.coming, next, func(a, b coming) int { return a.at.Compare(b.at) })
	w.coming = slices.Insert(w.coming, position, next)
}

// run delivers events until each is admitted.
func (w *queueWorld) run() {
	w.t.Helper()
	for len(w.coming) > 0 {
		next := w.coming[0]
		w.coming = w.coming[1:]
		now := next.at
		if read := w.clock.Read(); now.Before(read) {
			now = read
		}
		w.clock.Set(now)
		w.asked++
		answers := testkit.Must(w.limiter.asker.askInTurn(w.t.Context(), []store.Request{next.request}))(w.t)
		if answers[0].Verdict == store.Admitted {
			if next.request.HasWaited {
				w.admitted, w.at = append(w.admitted, next.request.ID), append(w.at, now)
			}
			answers[0].Grant.Finish(w.t.Context(), "")
			continue
		}
		testkit.Equal(w.t, answers[0].Verdict, store.Denied, "verdict of %q", next.request.ID)
		verdict, in, err := w.store.Queues.Delay(w.t.Context(), store.Postponement{
			Request: next.request, Wait: answers[0].Wait, Longest: time.Hour, Node: answers[0].Node, Limit: answers[0].Limit,
		}, 1000)
		testkit.Require(w.t, err == nil && verdict == store.ComesBack, "%q: verdict %d, %v", next.request.ID, verdict, err)
		next.request.HasWaited = true
		due := now.Add(in).Truncate(scheduleTick).Add(scheduleTick)
		w.comes(next.request, due)
	}
}

// TestQueueKeepsTheOrder has events wait for slots of limits of all algorithms. Waiting events are admitted in the order in which they
// were stored, and no slot stays free for long.
func TestQueueKeepsTheOrder(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	for _, test := range []struct {
		limits string
		costs  []int
		events int
		ideal  time.Duration // until slots for all events have opened
		late   time.Duration // how much later each slot may be taken
	}{
		{"4/2s", []int{4}, 10, 18 * time.Second, time.Second},
		{"4/2s", []int{1, 3, 2, 4}, 16, 28 * time.Second, time.Second},
		{"leaky:1/1s", []int{1}, 16, 15 * time.Second, time.Second},
		{"leaky:4/4s", []int{1, 2, 1}, 15, 20 * time.Second, time.Second},
		{"token:3/3s;burst=2", []int{1}, 16, 14 * time.Second, time.Second},
		{"fixed:3/3s", []int{1}, 18, 15 * time.Second, time.Second},
		{"counter:4/4s", []int{1}, 20, 20 * time.Second, time.Second},
		{"3/6s", []int{1}, 18, 30 * time.Second, time.Second},
		{"2/1s+6/10s", []int{1}, 18, 20 * time.Second, 2 * time.Second},
		{"10/1m", []int{1}, 60, 5 * time.Minute, time.Second},
		{"100/1h+8/2s", []int{1}, 32, 6 * time.Second, time.Second / 4},
	} {
		t.Run(test.limits+fmt.Sprint(test.costs), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			w := newQueueWorld(t, client, test.limits, seed)
			for i := range test.events {
				r := costing(test.costs[i%len(test.costs)], inMessage(uint64(i+1), request(fmt.Sprintf("e%02d", i), "a")))
				r.MayWait = true
				w.comes(r, start)
			}
			w.run()
			testkit.Equal(t, slices.IsSorted(w.admitted), true, "seed %d: the order %v is that of storage", seed, w.admitted)
			took := w.at[len(w.at)-1].Sub(start)
			testkit.AtMost(t, took, test.ideal+time.Duration(test.events)*test.late, "seed %d: time until the last admission", seed)
			testkit.AtMost(t, w.asked, 8*test.events, "seed %d: questions", seed)
			t.Logf("%v instead of %v, asked %d times for %d", took, test.ideal, w.asked, test.events)
			testkit.Equal(t, client.ZCard(t.Context(), w.runner.Key("line:a:a")).Val(), 0, "events stand in the queue after all")
		})
	}
}

// TestLimiterTurns denies an event that would overtake waiting events.
func TestLimiterTurns(t *testing.T) {
	t.Parallel()
	limiter := startLimiter(t, LimiterOptions{RoomMax: 100, Settings: store.Settings{Tree: newTree(t, "none", "2/1h", "b=none")}})
	ask := func(id, category string, sequence uint64, mayWait, hasWaited bool, want store.Verdict) store.Decision {
		t.Helper()
		r := inMessage(sequence, request(id, category))
		r.MayWait, r.HasWaited = mayWait, hasWaited
		return limiter.want(map[store.Verdict]int{want: 1}, r)[0]
	}
	delay := func(id string, sequence uint64, denied store.Decision) {
		t.Helper()
		verdict, _, err := limiter.Delay(t.Context(), store.Postponement{
			Request: inMessage(sequence, request(id, "a")), Wait: denied.Wait, Longest: 4 * time.Hour, Node: denied.Node, Limit: denied.Limit,
		})
		testkit.Require(t, err == nil && verdict == store.ComesBack, "%q: verdict %d, %v", id, verdict, err)
	}
	one := ask("1", "a", 1, true, false, store.Admitted)
	two := ask("2", "a", 2, true, false, store.Admitted)
	delay("4", 4, ask("4", "a", 4, true, false, store.Denied))
	one.Grant.Refund(t.Context())
	two.Grant.Refund(t.Context())
	if d := ask("5", "a.b", 5, true, false, store.Denied); d.Node.Path != "a" || d.Limit != (limits.Limit{Count: 2, Window: time.Hour}) || d.Wait < 50*time.Minute {
		t.Errorf("it waits for those before it as %+v", d)
	}
	ask("6", "b", 6, true, false, store.Admitted) // events of other queues do not wait
	ask("6", "b", 6, true, false, store.Leased)
	ask("3", "a", 3, true, false, store.Admitted)  // stored before the waiting event
	ask("7", "a", 7, false, false, store.Admitted) // an event that may not wait
	three := ask("4", "a", 4, true, true, store.Denied)
	delay("4", 4, three)

	// An unreadable queue holds no event back.
	limiter.server.CLI("SET", limiterKey("line:a:a"), "text")
	ask("8", "a", 8, true, false, store.Denied)
	limiter.server.CLI("DEL", limiterKey("line:a:a"))
	limiter.lose()
	r := request("9", "a")
	r.MayWait = true
	_, err := limiter.Decide(t.Context(), []store.Request{r})
	testkit.Fails(t, "without Redis", err, script.ErrUnavailable)
}
