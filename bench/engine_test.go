package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// categoriesAsked is how many categories the events of a benchmark have.
const categoriesAsked = 20

// settingsOf are limits for a benchmark: of everything, and of each category.
func settingsOf(b *testing.B, global, category string, guarantees []limits.Guarantee) store.Settings {
	b.Helper()
	tree := testkit.Must(limits.NewTree(limits.Plan{
		Global: testkit.Must(limits.Parse(global))(b), Category: testkit.Must(limits.Parse(category))(b), Guarantees: guarantees,
	}))(b)
	return store.Settings{Tree: tree, Lease: 30 * time.Second, Retention: time.Hour}
}

func newLimiter(client *redis.Client, s store.Settings) *store.Redis {
	return store.NewRedis(script.NewRunner(script.Options{Client: client, Prefix: "notifier", Timeout: 10 * time.Second}), s)
}

// events asks a limiter, `size` events a call.
func events(client *redis.Client, s store.Settings, size int) asker {
	return requests(newLimiter(client, s), categoriesAsked, size)
}

// plenty is a count that no benchmark uses up. A token bucket of 30m counts exactly up to 5,003,999.
const plenty = 5_000_000

// BenchmarkAlgorithms asks limits of each algorithm: one full, one that never is.
func BenchmarkAlgorithms(b *testing.B) {
	client := newClient(b)
	for _, kind := range []struct {
		name  string
		count int
	}{{"denied", 100}, {"admitted", plenty}} {
		ofLog := make(map[int]float64)
		for _, a := range algorithm.All() {
			window := "30m"
			if a.Description().Frees == algorithm.BySpacing && kind.name == "admitted" {
				window = "1ms" // the spacing of five million a millisecond is less than its clock's step
			}
			limit := fmt.Sprintf("%s:%d/%s", a, kind.count, window)
			for _, size := range []int{1, 64, 256} {
				rate := perSecond(b, client, fmt.Sprintf("%s/%s/batch-%d", kind.name, a, size),
					events(client, settingsOf(b, limit, limit, nil), size))
				if a == algorithm.SlidingLog {
					ofLog[size] = rate
				}
				conclude("%s by %s, batch of %d: %.0f/s, %.2f times log", kind.name, a, size, rate, rate/ofLog[size])
			}
		}
	}
}

// BenchmarkEngineOptions measures what guarantees and shadow limits cost.
func BenchmarkEngineOptions(b *testing.B) {
	client := newClient(b)
	const size = 64
	for _, kind := range []struct{ name, limit string }{{"denied", "100/30m"}, {"admitted", "10000000/30m"}} {
		plain := settingsOf(b, kind.limit, kind.limit, nil)
		guaranteed := settingsOf(b, kind.limit, kind.limit, []limits.Guarantee{
			{Path: "category1", Slots: 20}, {Path: "category2", Slots: 5},
		})
		shadowed := plain
		shadowed.Shadow = plain.Tree
		off := perSecond(b, client, kind.name+"/plain", events(client, plain, size))
		on := perSecond(b, client, kind.name+"/guarantees", events(client, guaranteed, size))
		conclude("%s, batch of %d: with guarantees %.2f times the cost", kind.name, size, off/on)
		on = perSecond(b, client, kind.name+"/shadow", events(client, shadowed, size))
		conclude("%s, batch of %d: with shadow limits %.2f times the cost", kind.name, size, off/on)
	}
}

// cellRateScript is the generic cell rate algorithm (ATM Forum, Traffic Management 4.0, 1996): a limit is one time, at which
// it would be empty again. So do the limiters for Redis that are most in use.
var cellRateScript = redis.NewScript(`
local time = redis.call('TIME')
local now, period, burst = time[1] * 1000000 + time[2], tonumber(ARGV[1]), tonumber(ARGV[2])
local spacing = period / burst
local empty_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + spacing
if empty_at - now > period then
  return 0
end
redis.call('SET', KEYS[1], string.format('%.0f', empty_at), 'PX', math.ceil((empty_at - now) / 1000))
return 1`)

// BenchmarkBesideCellRate asks two levels, one event after the other, as an application does that has no batches: this
// limiter in one call, all or nothing; one by the cell rate in two calls, where an event that the second denies has used up
// the first.
func BenchmarkBesideCellRate(b *testing.B) {
	client := newClient(b)
	for _, kind := range []struct {
		name  string
		count int
	}{{"denied", 100}, {"admitted", plenty}} {
		admits := func(place string) (bool, error) {
			return cellRateScript.Run(context.Background(), client, []string{place}, (30 * time.Minute).Microseconds(), kind.count).Bool()
		}
		theirs := perSecond(b, client, kind.name+"/cell-rate", func(worker, round int) (int, error) {
			admitted, err := admits("global")
			if err != nil || !admitted {
				return 1, err
			}
			_, err = admits("category" + strconv.Itoa((round*askers+worker)%categoriesAsked))
			return 1, err
		})
		for _, algorithm := range []string{"token", "log"} {
			text := fmt.Sprintf("%s:%d/30m", algorithm, kind.count)
			for _, size := range []int{1, 64} {
				rate := perSecond(b, client, fmt.Sprintf("%s/%s/batch-%d", kind.name, algorithm, size),
					events(client, settingsOf(b, text, text, nil), size))
				conclude("%s by %s, batch of %d: %.0f/s, %.1f times one by cell rate (%.0f/s)", kind.name, algorithm, size, rate, rate/theirs, theirs)
			}
		}
	}
}

// BenchmarkMemory measures what Redis keeps for an admitted event, and for a limit.
func BenchmarkMemory(b *testing.B) {
	client := newClient(b)
	ctx := context.Background()
	const admitted = 20_000
	for _, a := range algorithm.All() {
		if a.Description().Frees == algorithm.BySpacing {
			continue // it would deny nearly everything
		}
		b.Run(a.String(), func(b *testing.B) {
			testkit.NoError(b, client.FlushAll(ctx).Err())
			limit := fmt.Sprintf("%s:%d/30m", a, plenty)
			ask := events(client, settingsOf(b, limit, "none", nil), 100)
			for round := range admitted / 100 {
				testkit.Must(ask(0, round))(b)
			}
			total, ofLimit := int64(0), int64(0)
			for _, key := range testkit.Must(client.Keys(ctx, "*").Result())(b) {
				bytes := testkit.Must(client.MemoryUsage(ctx, key, 0).Result())(b)
				total += bytes
				if strings.HasPrefix(key, "{notifier}:"+a.String()) {
					ofLimit += bytes
				}
			}
			b.ReportMetric(float64(total)/admitted, "bytes/event")
			conclude("memory, %d events admitted by one %s limit: %.0f bytes an event in all, %d bytes the limit itself (%.1f an event)",
				admitted, a, float64(total)/admitted, ofLimit, float64(ofLimit)/admitted)
			once(b)
		})
	}
}
