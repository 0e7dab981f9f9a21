package store

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestForwardedGoesOn has denied events forwarded beside a full limit of deliveries in flight. They take no slot, and go on without one: after
// their leases have ended, and while they are renewed.
func TestForwardedGoesOn(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	settings := scriptSettings(t)
	settings.Forward, settings.Tree = true, newTree(t, "inflight:1/1h", "none", "")
	r := newRedis(client, "forwarded", settings)
	clock := withFakeTime(t, r)
	testkit.Must(r.Decide(t.Context(), []Request{request("one", "a"), request("two", "a")}))(t)
	clock.Advance(testLease + time.Second)
	again := testkit.Must(r.Decide(t.Context(), []Request{request("two", "a")}))(t).Decisions[0]
	testkit.Equal(t, again.Verdict, Reclaimed, "an event without a slot")
	extended := testkit.Must(r.Extend(t.Context(), []Lease{again.Lease}, testLease))(t)
	testkit.Equal(t, extended[0].End > 0, true, "its lease is renewed")
}
