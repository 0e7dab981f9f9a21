package bench

import (
	"fmt"
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
