package throttle

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// TestGuaranteeAfterTheLimitWasLowered shows that nobody goes above a global limit that was lowered below what is taken, not
// even a path that has not used its guarantee.
func TestGuaranteeAfterTheLimitWasLowered(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	lowered := conformanceCase{global: "10/1h", category: "none", guarantees: "security=3"}
	for name, newSubject := range map[string]func(t *testing.T, s Settings) *subject{
		"memory": newMemorySubject,
		"redis":  func(t *testing.T, s Settings) *subject { return newRedisSubject(t, client, s) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSubject(t, lowered.settings(t))
			s.admits(7, limits.LevelGlobal, several(8, "o", "orders")...)
			s.clock.Advance(time.Minute)
			s.change(guarded(t, newPlan(t, "5/1h", "none", ""), lowered.guarantees))
			s.opens(limits.LevelGlobal, 59*time.Minute, request("s", "security"))
			s.taken("security", 1)
		})
	}
}
