package throttle

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// TestLimiterCountsADenialFromItsQuestion shows that the deny cache forgets a full limit no later than its next slot opens,
// however long the reply took: it counts from before the question left.
func TestLimiterCountsADenialFromItsQuestion(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	limiter := startLimiter(t, server.Addr, LimiterOptions{
		Settings: Settings{Tree: newTree(t, "none", "1/1h", "")}, DenyCacheTTL: 2 * time.Hour,
	})
	limiter.one(Admitted, request("first", "a"))
	limiter.one(Denied, request("second", "a"))
	limiter.wantFull("a", limits.LevelCategory)
	opens := scores(t, server, "{limiter}:log:a")["first"].Add(time.Hour)
	for limit, until := range limiter.cache.full {
		if until.After(opens) {
			t.Errorf("%+v counts as full for %v after its next slot has opened", limit, until.Sub(opens))
		}
	}
}
