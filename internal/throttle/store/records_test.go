package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
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
		server, client := startRedis(t)
		store, records := newRedis(client, "records", scriptSettings(t)), new(Records)
		key := test.key(store.keys)
		members := make([]redis.Z, test.bound)
		for i := range members {
			members[i] = redis.Z{Score: float64(i + 1), Member: fmt.Sprint("event ", i)}
		}
		testkit.NoError(t, client.ZAdd(t.Context(), key, members...).Err())
		if records.Copy(t.Context(), store) == nil {
			t.Errorf("a copy of %d members of %s: got none, want one", test.bound, key)
		}
		testkit.NoError(t, client.ConfigResetStat(t.Context()).Err())
		records = new(Records)
		testkit.NoError(t, client.ZAdd(t.Context(), key, redis.Z{Score: float64(test.bound + 1), Member: "one more"}).Err())
		if records.Copy(t.Context(), store) != nil {
			t.Errorf("a copy of %d members of %s: got one, want none", test.bound+1, key)
		}
		if stats := server.CLI("INFO", "commandstats"); strings.Contains(stats, "cmdstat_zrange:") {
			t.Errorf("commands for the longer record: got ZRANGE, want none in %s", stats)
		}
	}
}
