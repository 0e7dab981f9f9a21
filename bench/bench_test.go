package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// rounds is how often each contestant runs; the best counts.
const rounds = 3

// once makes a benchmark run its whole comparison one time, whatever -benchtime says.
func once(b *testing.B) bool {
	b.ReportMetric(0, "ns/op")
	return b.N == 1
}

// drained is the best of the rounds of contestants.
type drained struct {
	events int
	took   map[string]time.Duration // by contestant
	memory map[string]float64       // the most that it had, in MiB
}

func (d drained) perSecond(name string) float64 { return float64(d.events) / d.took[name].Seconds() }

// drain has contestants empty streams of so many events in turns.
func drain(b *testing.B, events int, anew bool, contestants ...contestant) drained {
	b.Helper()
	best := drained{events, make(map[string]time.Duration), make(map[string]float64)}
	for range rounds {
		for _, c := range contestants {
			b.Run(c.name, func(b *testing.B) {
				a := newArena(b)
				a.anew = anew
				took, mebibytes := a.drain(c, events)
				if best.took[c.name] == 0 || took < best.took[c.name] {
					best.took[c.name] = took
				}
				best.memory[c.name] = max(best.memory[c.name], mebibytes)
				b.ReportMetric(float64(events)/took.Seconds(), "events/s")
				once(b)
			})
		}
	}
	return best
}

// BenchmarkDrainFlood empties a stream that is almost all dropped.
func BenchmarkDrainFlood(b *testing.B) {
	d := drain(b, 200_000, false,
		bareLoop, notifier.limited(100, 10), unnoted.limited(100, 10), unsummed.limited(100, 10), plainPort.limited(100, 10))
	rate, bare, plain := d.perSecond(notifier.name), d.perSecond(bareLoop.name), d.perSecond(plainPort.name)
	conclude("flood, %d events: notifier %.0f/s, bare loop %.0f/s, plain port %.0f/s", d.events, rate, bare, plain)
	conclude("flood: notifier = %.2f of the bare loop, %.1f times the plain port, %.0f MiB at most", rate/bare, rate/plain, d.memory[notifier.name])
	conclude("flood: %.2f of the rate without a journal", rate/d.perSecond(unnoted.name))
	conclude("flood: summaries take %.2f times the time without", d.perSecond(unsummed.name)/rate)
}

// BenchmarkDrainFloodAnew empties such a stream where the consumer was made anew, so that every message may have been delivered
// before.
func BenchmarkDrainFloodAnew(b *testing.B) {
	d := drain(b, 200_000, true, bareLoop, notifier.limited(100, 10))
	rate, bare := d.perSecond(notifier.name), d.perSecond(bareLoop.name)
	conclude("flood at a consumer made anew, %d events: notifier %.0f/s, bare loop %.0f/s: %.2f of the bare loop", d.events, rate, bare, rate/bare)
}

// BenchmarkAllAdmitted delivers everything, 64 deliveries at once.
func BenchmarkAllAdmitted(b *testing.B) {
	d := drain(b, 20_000, false, notifier.unlimited(), unnoted.unlimited(), plainPort.unlimited())
	rate, plain := d.perSecond(notifier.name), d.perSecond(plainPort.name)
	conclude("all admitted, %d events: notifier %.0f/s, plain port %.0f/s: %.2f times the plain port", d.events, rate, plain, rate/plain)
	conclude("all admitted: %.2f of the rate without a journal", rate/d.perSecond(unnoted.name))
}

// BenchmarkPace measures how much of a channel's rate is used while more waits for it than the workers have in hand.
func BenchmarkPace(b *testing.B) {
	for _, test := range []struct{ workers, rate int }{{1, 1}, {1, 20}, {2, 100}, {1, 200}, {3, 200}} {
		b.Run(fmt.Sprintf("%d/s with %d workers", test.rate, test.workers), func(b *testing.B) {
			const warmUp, measured = 5 * time.Second, 10 * time.Second
			a := newArena(b)
			a.slack.timed = true
			a.fill(test.rate*int((warmUp+measured)/time.Second)*2 + 100)
			c := notifier.unlimited()
			c.rate = fmt.Sprintf("%d/s", test.rate)
			for range test.workers {
				a.start(c)
			}
			posted := func() int {
				a.slack.mu.Lock()
				defer a.slack.mu.Unlock()
				return len(a.slack.arrived)
			}
			for posted() == 0 {
				time.Sleep(time.Millisecond) // the workers start
			}
			time.Sleep(warmUp) // the burst goes out before the pace is measured
			before, start := posted(), time.Now()
			time.Sleep(measured) // what is posted meanwhile is measured
			used := float64(posted()-before) / time.Since(start).Seconds() / float64(test.rate)
			b.ReportMetric(used, "of-the-rate")
			conclude("pace: %d workers use %.2f of %d/s", test.workers, used, test.rate)
			once(b)
		})
	}
}

// BenchmarkLatency measures from publishing an event to the request at Slack, at 20 events a second. The contestants take
// turns, and their median turn counts, so that a stall of the machine in one of them does not decide.
func BenchmarkLatency(b *testing.B) {
	const (
		turns  = 10
		events = 100
		gap    = 50 * time.Millisecond
	)
	turn := make(map[string]map[int][]time.Duration) // by contestant and percentile
	for range turns {
		for _, c := range []contestant{notifier.unlimited(), plainPort.unlimited()} {
			b.Run(c.name, func(b *testing.B) {
				latencies := newArena(b).latencies(c, events, gap)
				if turn[c.name] == nil {
					turn[c.name] = make(map[int][]time.Duration)
				}
				for _, p := range []int{50, 99} {
					took := percentile(latencies, p)
					b.ReportMetric(float64(took.Microseconds()), fmt.Sprintf("µs-p%d", p))
					turn[c.name][p] = append(turn[c.name][p], took)
				}
				once(b)
			})
		}
	}
	median := func(contestant string, p int) time.Duration {
		slices.Sort(turn[contestant][p])
		return percentile(turn[contestant][p], 50)
	}
	for _, p := range []int{50, 99} {
		n, plain := median("notifier", p), median("plain", p)
		conclude("publish to Slack at 20/s, p%d: notifier %v, plain port %v: %.2f times the plain port", p, n, plain, n.Seconds()/plain.Seconds())
	}
}

// BenchmarkNeighbour measures how long an event takes to its channel while 25,000 others are put off: for another channel, which
// rests, and since they resolve what nobody opened.
func BenchmarkNeighbour(b *testing.B) {
	const crowd = 25_000
	for name, body := range map[string]string{
		"a channel that rests": `{"title":"crowd %d"}`,
		"unpaired events":      `{"title":"crowd","status":"resolved","key":"unknown-%d"}`,
	} {
		b.Run(name, func(b *testing.B) {
			a := newArena(b)
			a.slack.rests = true
			c := notifier.unlimited()
			c.rate = "20/s"
			crowded := make(chan struct{})
			latencies := a.latenciesWhile(c, 200, 100*time.Millisecond, func(int) string { return subject + ".security" }, func() {
				defer close(crowded)
				for i := range crowd {
					_, _ = a.js.PublishAsync(subject+".payments", fmt.Appendf(nil, body, i))
				}
				<-a.js.PublishAsyncComplete()
			})
			<-crowded
			p50, worst := percentile(latencies, 50), percentile(latencies, 100)
			b.ReportMetric(p50.Seconds(), "s-p50")
			b.ReportMetric(worst.Seconds(), "s-worst")
			conclude("beside %d events put off (%s): p50 %v, worst %v", crowd, name, p50, worst)
			once(b)
		})
	}
}

func (a *arena) latencies(c contestant, events int, gap time.Duration) []time.Duration {
	a.b.Helper()
	return a.latenciesWhile(c, events, gap, eventSubject, func() {})
}

// latenciesWhile measures how long each event takes from being published on its subject to Slack, while something else goes on.
func (a *arena) latenciesWhile(
	c contestant, events int, gap time.Duration, subjectOf func(i int) string, meanwhile func(),
) []time.Duration {
	a.b.Helper()
	const warmUp = 20
	a.slack.timed = true
	a.start(c)
	published := make(map[string]time.Time)
	ticker := time.NewTicker(gap)
	defer ticker.Stop()
	for i := range events + warmUp {
		if i == warmUp {
			go meanwhile()
		}
		<-ticker.C
		published[strconv.Itoa(i)] = time.Now()
		testkit.Must(a.js.Publish(a.b.Context(), subjectOf(i), eventBody(i)))(a.b)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for a.left() > 0 {
		a.mayGoOn(deadline)
	}
	a.slack.mu.Lock()
	defer a.slack.mu.Unlock()
	var latencies []time.Duration
	for i := warmUp; i < warmUp+events; i++ {
		arrived, here := a.slack.arrived[strconv.Itoa(i)]
		if !here {
			a.b.Fatalf("event %d did not arrive at Slack", i)
		}
		latencies = append(latencies, arrived.Sub(published[strconv.Itoa(i)]))
	}
	slices.Sort(latencies)
	return latencies
}

func percentile(sorted []time.Duration, p int) time.Duration { return sorted[(len(sorted)-1)*p/100] }

// decisionTime is how long each measurement of decisions runs.
const decisionTime = time.Second

// askers is how many batches are under way at once, so that Redis never waits for one.
const askers = 4

// newClient starts a Redis and makes a client of it.
func newClient(b *testing.B) *redis.Client {
	b.Helper()
	return scripttest.NewClient(b, redis.Options{Addr: servertest.StartRedis(b).Addr, PoolSize: askers})
}

// BenchmarkDecisions asks one Redis, in batches and one event a call.
func BenchmarkDecisions(b *testing.B) {
	client := newClient(b)
	for _, kind := range []struct {
		name  string
		limit int
	}{{"denied", 100}, {"admitted", limits.MaxCount}} {
		pipelined := perSecond(b, client, kind.name+"/plain-pipeline-of-64", plainPipeline(client, kind.limit))
		for _, size := range []int{1, 16, 64, 256} {
			rate := perSecond(b, client, fmt.Sprintf("%s/batch-%d", kind.name, size), batches(b, client, kind.limit, 20, size))
			conclude("%s, batch of %d: %.0f/s, %.1f times one event a call over a pipeline of 64 (%.0f/s)", kind.name, size, rate, rate/pipelined, pipelined)
		}
	}
}

// BenchmarkDecisionCost compares one decision under small and under large circumstances.
func BenchmarkDecisionCost(b *testing.B) {
	client := newClient(b)
	measure := func(name string, limit, categories int) float64 {
		testkit.NoError(b, client.FlushAll(context.Background()).Err())
		fillLimit(b, client, limit, categories)
		return perSecondKept(b, name, batches(b, client, limit, categories, 1))
	}
	small := measure("limit-100", 100, 20)
	large := measure("limit-1000000", 1_000_000, 20)
	conclude("a denial with a full limit of 1,000,000 costs %.2f times one with a full limit of 100", small/large)
	few := measure("categories-20", limits.MaxCount, 20)
	many := measure("categories-100000", limits.MaxCount, 100_000)
	conclude("an admission among 100,000 categories costs %.2f times one among 20", few/many)
}

// asker makes one call and returns how many events it asked for.
type asker func(worker, round int) (int, error)

func perSecond(b *testing.B, client *redis.Client, name string, ask asker) float64 {
	b.Helper()
	testkit.NoError(b, client.FlushAll(context.Background()).Err())
	return perSecondKept(b, name, ask)
}

// perSecondKept is the best rate of several rounds.
func perSecondKept(b *testing.B, name string, ask asker) float64 {
	b.Helper()
	best := 0.0
	b.Run(name, func(b *testing.B) {
		for round := range rounds {
			best = max(best, rate(b, round, ask))
		}
		b.ReportMetric(best, "decisions/s")
		once(b)
	})
	return best
}

func rate(b *testing.B, round int, ask asker) float64 {
	b.Helper()
	var (
		working sync.WaitGroup
		mu      sync.Mutex
		total   int
	)
	start := time.Now()
	for worker := range askers {
		working.Go(func() {
			events := 0
			for i := 0; time.Since(start) < decisionTime; i++ {
				n, err := ask(worker, round*100_000_000+i)
				if err != nil {
					b.Error(err)
					return
				}
				events += n
			}
			mu.Lock()
			defer mu.Unlock()
			total += events
		})
	}
	working.Wait()
	return float64(total) / time.Since(start).Seconds()
}

// batches asks a limiter of one limit for everything and for each category, `size` events a call.
func batches(b *testing.B, client *redis.Client, limit, categories, size int) asker {
	b.Helper()
	both := fmt.Sprintf("%d/30m", limit)
	return requests(newLimiter(client, settingsOf(b, both, both, nil)), categories, size)
}

func requests(limiter *store.Redis, categories, size int) asker {
	stored := time.Now()
	return func(worker, round int) (int, error) {
		batch := make([]store.Request, size)
		for i := range batch {
			n := (round*size+i)*askers + worker
			batch[i] = store.Request{
				ID: stream + ":" + strconv.Itoa(n), Derived: true, Cost: 1,
				Message:  store.Message{Stream: stream, Sequence: uint64(n), Stored: stored},
				Category: "category" + strconv.Itoa(n%categories),
			}
		}
		_, err := limiter.Decide(context.Background(), batch)
		return size, err
	}
}

// fillLimit puts entries into the logs as admissions would: a full root log, or one event in each category.
func fillLimit(b *testing.B, client *redis.Client, limit, categories int) {
	b.Helper()
	now := time.Now().UnixMicro()
	count := min(limit, 1_000_000)
	scripttest.Plant(b, client, "{notifier}:log", "old:", count, now-int64(count))
	for from := 0; from < categories; from += 10_000 {
		pipe := client.Pipeline()
		for i := from; i < min(from+10_000, categories); i++ {
			pipe.ZAdd(context.Background(), fmt.Sprintf("{notifier}:log:category%d", i), redis.Z{Score: float64(now), Member: "old"})
		}
		testkit.Must(pipe.Exec(context.Background()))(b)
	}
}

// plainPipeline asks the plain port's script, one event a call, 64 calls in flight.
func plainPipeline(client *redis.Client, limit int) asker {
	const inFlight = 64
	ctx := context.Background()
	loaded := sync.OnceValue(func() error { return plainScript.Load(ctx, client).Err() })
	return func(worker, round int) (int, error) {
		if err := loaded(); err != nil {
			return 0, err
		}
		pipe := client.Pipeline()
		for i := range inFlight {
			n := (round*inFlight+i)*askers + worker
			plainScript.EvalSha(ctx, pipe, []string{"{plain}:log", "{plain}:log:category" + strconv.Itoa(n%20)},
				limit, limit, stream+":"+strconv.Itoa(n), (30 * time.Minute).Microseconds())
		}
		_, err := pipe.Exec(ctx)
		return inFlight, err
	}
}
