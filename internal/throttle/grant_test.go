package throttle

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestGrantInDoubt releases grants, with Redis and without.
func TestGrantInDoubt(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local})
	limiter.one(store.Admitted, request("clean", "a")).Release(t.Context(), false)
	limiter.one(store.Admitted, request("uncertain", "a")).Release(t.Context(), true)
	limiter.takeOver("clean", false).Release(t.Context(), false)
	limiter.takeOver("uncertain", true).Release(t.Context(), false)

	limiter.loseAndAct()
	limiter.one(store.Admitted, request("clean without redis", "a")).Release(t.Context(), false)
	limiter.one(store.Admitted, request("uncertain without redis", "a")).Release(t.Context(), true)
	limiter.takeOver("uncertain without redis", true).Release(t.Context(), false)
	newly, owed := limiter.one(store.Admitted, request("delivered without redis", "a")).Finish(t.Context(), "")
	testkit.Equal(t, newly, true, "a delivery without Redis is new")
	testkit.Equal(t, owed == nil, true, "nothing is owed about an event that Redis does not know")
	limiter.regain()
	limiter.takeOver("clean", false).Release(t.Context(), false)
	limiter.takeOver("clean without redis", false)
	again := limiter.takeOver("uncertain", true)
	limiter.takeOver("uncertain without redis", true)
	limiter.one(store.Done, request("delivered without redis", "a"))
	for _, want := range []bool{true, false} {
		newly, _ := again.Finish(t.Context(), "")
		testkit.Equal(t, newly, want, "a delivery is new once")
	}
}

// TestGrantRefundedDuringARenewal returns the slots of a grant whose lease is being renewed. Redis knows the holder by the end of the lease.
func TestGrantRefundedDuringARenewal(t *testing.T) {
	t.Parallel()
	limiter, proxy := startLimiterBehindProxy(t, patience, LimiterOptions{Policy: Hold})
	returned := limiter.one(store.Admitted, request("returned", "a"))
	proxy.Delay(50 * time.Millisecond)
	renewed := make(chan bool)
	go func() { renewed <- returned.Extend(t.Context()) }()
	time.Sleep(10 * time.Millisecond) // the renewal is under way
	returned.Refund(t.Context())
	testkit.Equal(t, <-renewed, true, "the lease is renewed")
	testkit.Equal(t, returned.Extend(t.Context()), true, "a renewal after the end")
	proxy.Delay(0)
	limiter.wantLogged("a", 0)
	limiter.one(store.Admitted, request("returned", "a"))
}

// TestGrantOwed has grants end while Redis is unavailable. Redis knows of the events, or may know of them. The ends are owed until Redis has them,
// or cannot take them.
func TestGrantOwed(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local, Grace: time.Nanosecond})
	finished := limiter.one(store.Admitted, request("finished", "a"))
	refunded := limiter.one(store.Admitted, request("refunded", "a"))
	refused := limiter.one(store.Admitted, request("refused", "b"))
	testkit.NoError(t, limiter.options.Client.Set(t.Context(), "{limiter}:log:b", "of the wrong type", 0).Err())
	limiter.loseAndAct()
	redelivered := request("redelivered", "a")
	redelivered.Attempted = true
	owed := make(map[string]<-chan struct{})
	_, owed["finished"] = finished.Finish(t.Context(), "")
	_, owed["redelivered"] = limiter.one(store.Admitted, redelivered).Finish(t.Context(), "")
	owed["refunded"] = refunded.Refund(t.Context())
	owed["refused"] = refused.Refund(t.Context())
	isOwed := func(id string) bool {
		select {
		case <-owed[id]:
			return false
		default:
			return true
		}
	}
	for id := range owed {
		testkit.Equal(t, isOwed(id), true, "%s: the end is owed during the outage", id)
	}
	limiter.regain()
	for id := range owed {
		testkit.Eventually(t, id+" is owed no more", func() bool { return !isOwed(id) })
	}
	limiter.one(store.Done, request("finished", "a"))
	limiter.one(store.Done, request("redelivered", "a"))
	limiter.one(store.Admitted, request("refunded", "a"))
}

// TestGrantReleasedDuringReplay releases a grant while its admission is being sent to Redis. Nobody waits for the lease.
func TestGrantReleasedDuringReplay(t *testing.T) {
	t.Parallel()
	limiter, proxy := startLimiterBehindProxy(t, patience, LimiterOptions{Policy: Local})
	proxy.Refuse(true)
	limiter.until(acting)
	clean := limiter.one(store.Admitted, request("clean", "a"))
	uncertain := limiter.one(store.Admitted, request("uncertain", "a"))
	proxy.Delay(50 * time.Millisecond)
	proxy.Refuse(false)
	testkit.Eventually(t, "the admissions are being sent", func() (isEmpty bool) {
		limiter.recovery.replay.locked(func() { isEmpty = len(limiter.recovery.replay.unsynced) == 0 })
		return isEmpty
	})
	clean.Release(t.Context(), false)
	uncertain.Release(t.Context(), true)
	limiter.until(answering)
	limiter.takeOver("clean", false)
	limiter.takeOver("uncertain", true)
}

// TestGrantThatWaits has the leases of grants lapse while their holders wait, and after they have begun.
func TestGrantThatWaits(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	limiter := startDurableLimiter(t, LimiterOptions{Settings: store.Settings{Lease: lease}})
	begin := func(grant store.Grant) error {
		held, err := grant.SetWaiting(t.Context(), false)
		testkit.Equal(t, held, err == nil, "the lease is held")
		return err
	}
	wait := func(id string) store.Grant {
		grant := limiter.one(store.Admitted, request(id, "a"))
		testkit.Must(grant.SetWaiting(t.Context(), true))(t)
		testkit.Equal(t, grant.Extend(t.Context()), true, "%s: the lease is extended", id)
		return grant
	}
	wait("waits")
	lost := wait("lost")
	testkit.NoError(t, begin(wait("has begun")))
	time.Sleep(lease)
	limiter.takeOver("waits", false)
	limiter.takeOver("lost", false)
	limiter.takeOver("has begun", true)
	held, err := lost.SetWaiting(t.Context(), false)
	testkit.NoError(t, err)
	testkit.Equal(t, held, false, "a lease that another worker has taken is held")

	cut := wait("cut off")
	limiter.lose()
	testkit.Fails(t, "a delivery that begins without Redis", begin(cut), nil)
}

// TestGrantThatWaitsWithoutRedis has Redis fail while the holders of grants wait. The failure policy has their deliveries begin.
func TestGrantThatWaitsWithoutRedis(t *testing.T) {
	t.Parallel()
	limiter := startDurableLimiter(t, LimiterOptions{Policy: Local})
	cut := limiter.one(store.Admitted, request("cut off", "a"))
	testkit.Must(cut.SetWaiting(t.Context(), true))(t)
	limiter.loseAndAct()
	local := limiter.one(store.Admitted, request("without redis", "a"))
	testkit.Must(local.SetWaiting(t.Context(), true))(t)
	for _, grant := range []store.Grant{cut, local} {
		held, err := grant.SetWaiting(t.Context(), false)
		testkit.NoError(t, err)
		testkit.Equal(t, held, true, "the lease is held")
	}
}
