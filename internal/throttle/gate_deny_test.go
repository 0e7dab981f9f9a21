package throttle

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// TestGateCountsADenialFromItsQuestion shows that the deny cache forgets a full limit no later than its next slot opens,
// however long the reply took: it counts from before the question left.
func TestGateCountsADenialFromItsQuestion(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{
		Settings: Settings{Tree: newTree(t, "none", "1/1h", "")}, DenyCacheTTL: 2 * time.Hour,
	})
	gate.one(Admitted, request("first", "a"))
	gate.one(Denied, request("second", "a"))
	gate.wantFull("a", LevelCategory)
	opens := scores(t, server, "{gate}:log:a")["first"].Add(time.Hour)
	for limit, until := range gate.cache.full {
		if until.After(opens) {
			t.Errorf("%+v counts as full for %v after its next slot has opened", limit, until.Sub(opens))
		}
	}
}
