package throttle

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestGrantInDoubt releases grants, with Redis and without.
func TestGrantInDoubt(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local})
	takeOver := func(id string, inDoubt bool) store.Grant {
		t.Helper()
		answer := limiter.want(map[store.Verdict]int{store.Reclaimed: 1}, request(id, "a"))[0]
		testkit.Equal(t, answer.InDoubt, inDoubt, "%s: in doubt", id)
		return answer.Grant
	}
	limiter.one(store.Admitted, request("clean", "a")).Release(t.Context(), false)
	limiter.one(store.Admitted, request("uncertain", "a")).Release(t.Context(), true)
	takeOver("clean", false).Release(t.Context(), false)
	takeOver("uncertain", true).Release(t.Context(), false)

	limiter.loseAndAct()
	limiter.one(store.Admitted, request("clean without redis", "a")).Release(t.Context(), false)
	limiter.one(store.Admitted, request("uncertain without redis", "a")).Release(t.Context(), true)
	takeOver("uncertain without redis", true).Release(t.Context(), false)
	if newly := limiter.one(store.Admitted, request("delivered without redis", "a")).Finish(t.Context(), ""); !newly {
		t.Error("a delivery without Redis is not new")
	}
	limiter.regain()
	takeOver("clean", false).Release(t.Context(), false)
	takeOver("clean without redis", false)
	again := takeOver("uncertain", true)
	takeOver("uncertain without redis", true)
	limiter.one(store.Done, request("delivered without redis", "a"))
	if !again.Finish(t.Context(), "") || again.Finish(t.Context(), "") {
		t.Error("a delivery is new once")
	}
}
