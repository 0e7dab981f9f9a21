package throttle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestLongRecordsAreOnlyCounted fills the delivery record up to the bound of a copy, and above it. Of the longer record Redis sends no
// member.
func TestLongRecordsAreOnlyCounted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		key   func(keys) string
		bound int
	}{
		{func(k keys) string { return k.done }, mostDoneCopied},
		{func(k keys) string { return k.leased }, mostLeasedCopied},
	} {
		limiter := startLimiter(t, LimiterOptions{})
		key := test.key(limiter.o.Redis.keys)
		client := limiter.o.Redis.runner.Options().Client
		members := make([]redis.Z, test.bound)
		for i := range members {
			members[i] = redis.Z{Score: float64(i + 1), Member: fmt.Sprint("event ", i)}
		}
		testkit.NoError(t, client.ZAdd(t.Context(), key, members...).Err())
		if limiter.Records(t.Context()) == nil {
			t.Errorf("a copy of %d members of %s: got none, want one", test.bound, key)
		}
		testkit.NoError(t, client.ConfigResetStat(t.Context()).Err())
		limiter.records.done, limiter.records.newest = nil, 0
		testkit.NoError(t, client.ZAdd(t.Context(), key, redis.Z{Score: float64(test.bound + 1), Member: "one more"}).Err())
		if limiter.Records(t.Context()) != nil {
			t.Errorf("a copy of %d members of %s: got one, want none", test.bound+1, key)
		}
		if stats := limiter.server.CLI("INFO", "commandstats"); strings.Contains(stats, "cmdstat_zrange:") {
			t.Errorf("commands for the longer record: got ZRANGE, want none in %s", stats)
		}
	}
}
