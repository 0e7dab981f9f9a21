package store

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// release ends leases as Grant.Release does.
func (s *subject) release(inDoubt bool, leases ...Lease) {
	s.t.Helper()
	ended := slices.Clone(leases)
	for i := range ended {
		ended[i].InDoubt = ended[i].InDoubt || inDoubt
	}
	for i, lease := range s.extend(0, ended...) {
		testkit.Require(s.t, lease.End != 0, "the lease of %q was not released", leases[i].Request.ID)
	}
}

// waits renews leases as Grant.SetWaiting does.
func (s *subject) waits(leases ...Lease) []Lease {
	s.t.Helper()
	waiting := slices.Clone(leases)
	for i := range waiting {
		waiting[i].Waits = true
	}
	waiting = s.extend(testLease, waiting...)
	for _, lease := range waiting {
		testkit.Require(s.t, lease.End != 0, "the lease of %q was lost", lease.Request.ID)
	}
	return waiting
}

// begun returns leases as Grant.SetWaiting renews them at the end of a wait.
func begun(leases []Lease) []Lease {
	begun := slices.Clone(leases)
	for i := range begun {
		begun[i].Waits = false
	}
	return begun
}

// takeOver reclaims events whose leases have ended, and compares their doubt.
func (s *subject) takeOver(inDoubt bool, requests ...Request) []Lease {
	s.t.Helper()
	decisions := s.want(Reclaimed, requests...)
	for i, d := range decisions {
		testkit.Require(s.t, d.InDoubt == inDoubt && d.Lease.InDoubt == inDoubt,
			"event %d, %q: in doubt %v and %v, want %v", i+1, requests[i].ID, d.InDoubt, d.Lease.InDoubt, inDoubt)
	}
	return leasesOf(decisions)
}

// finishes records deliveries, and compares which are new.
func (s *subject) finishes(want []bool, leases ...Lease) {
	s.t.Helper()
	testkit.EqualSlices(s.t, testkit.Must(s.Finish(s.t.Context(), leases))(s.t), want, "newly recorded")
}

// doubtConformance has the cases of doubtful and of repeated deliveries.
var doubtConformance = []conformanceCase{
	{name: "doubt: a lease that lapsed", global: "10/1h", run: func(s *subject) {
		events := []Request{request("event", "a"), derived(7, start, "a")}
		s.admit(events...)
		s.clock.Advance(testLease - time.Microsecond)
		s.want(Leased, events...)
		s.clock.Advance(time.Microsecond)
		s.takeOver(true, events...)
		s.clock.Advance(testLease + time.Microsecond)
		s.takeOver(true, events...)
		s.taken("a", 2)
	}},
	{name: "doubt: none after a lease that was released", global: "10/2h", run: func(s *subject) {
		events := []Request{request("event", "a"), derived(7, start, "a")}
		s.release(false, s.admit(events...)...)
		s.release(false, s.takeOver(false, events...)...)
		s.clock.Advance(testRetention - time.Second)
		lease := s.takeOver(false, events...)
		s.release(false, s.extend(testLease, lease...)...)
		s.takeOver(false, events...)
		s.clock.Advance(testLease + time.Second)
		s.takeOver(true, events...)
		s.taken("a", 2)
	}},
	{name: "doubt: a release in doubt", global: "10/1h", run: func(s *subject) {
		s.release(true, s.admit(request("event", "a"))...)
		s.takeOver(true, request("event", "a"))
	}},
	{name: "doubt: kept by a release after the end of the lease", global: "10/1h", run: func(s *subject) {
		event := request("event", "a")
		s.admit(event)
		s.clock.Advance(testLease)
		lease := s.takeOver(true, event)
		s.clock.Advance(2 * testLease)
		lease[0].InDoubt = false // the releasing worker knows of no doubt
		s.release(false, lease...)
		s.takeOver(true, event)
	}},
	{name: "doubt: kept as long as the delivery is renewed", global: "100/1h", retention: time.Minute, run: func(s *subject) {
		event := request("event", "a")
		s.admit(event)
		s.clock.Advance(testLease)
		lease := s.takeOver(true, event)
		for range 20 {
			s.clock.Advance(10 * time.Second)
			lease = s.extend(testLease, lease...)
			s.finish(s.admit(request("other"+s.clock.Read().String(), "b"))...) // each call forgets old records
		}
		lease[0].InDoubt = false // the releasing worker knows of no doubt
		s.release(false, lease...)
		s.takeOver(true, event)
	}},
	{name: "doubt: none after a lease that lapsed while its holder waited", global: "10/2h", run: func(s *subject) {
		events := []Request{request("event", "a"), derived(7, start, "a")}
		leases := s.admit(events...)
		for range 3 {
			s.waits(s.waits(leases...)...)
			s.clock.Advance(2 * testLease)
			leases = s.takeOver(false, events...)
		}
		s.taken("a", 2)
	}},
	{name: "doubt: a lease that lapsed after its holder had waited", global: "10/1h", run: func(s *subject) {
		s.extend(testLease, begun(s.waits(s.admit(request("event", "a"))...))...)
		s.clock.Advance(2 * testLease)
		s.takeOver(true, request("event", "a"))
	}},
	{name: "doubt: kept by a holder that renews a lease it has released in doubt", global: "10/1h", run: func(s *subject) {
		leases := s.admit(request("event", "a"))
		leases[0].InDoubt = true
		s.waits(s.extend(0, leases...)...)
		s.clock.Advance(2 * testLease)
		s.takeOver(true, request("event", "a"))
	}},
	{name: "doubt: a wait that is recorded too late", global: "10/1h", run: func(s *subject) {
		event := request("event", "a")
		lease := s.admit(event)
		s.clock.Advance(time.Second)
		waiting := s.waits(lease...)
		s.clock.Advance(time.Second)
		s.waits(lease...) // the first call again
		s.clock.Advance(time.Second)
		s.extend(testLease, begun(waiting)...)
		for _, late := range [][]Lease{lease, waiting} {
			late[0].Waits = true
			s.lost(testLease, late...)
		}
		s.clock.Advance(2 * testLease)
		s.takeOver(true, event)
	}},
	{name: "doubt: a call that is repeated", global: "10/1h", run: func(s *subject) {
		lapsed, released := request("lapsed", "a"), request("released", "a")
		leases := s.admit(lapsed, released)
		s.release(false, leases[1])
		s.clock.Advance(testLease)
		var before BatchResult
		for i := range 2 {
			result := testkit.Must(s.repeat("nonce", []Request{lapsed, released}))(s.t)
			if d := result.Decisions[0]; d.Verdict != Reclaimed || !d.InDoubt || !d.Lease.InDoubt {
				s.t.Errorf("call %d: %+v", i+1, d)
			}
			if d := result.Decisions[1]; d.InDoubt || d.Lease.End == 0 {
				s.t.Errorf("call %d: %+v", i+1, d)
			}
			if i > 0 {
				testkit.Equal(s.t, result.Decisions[0].Lease.End, before.Decisions[0].Lease.End, "end of the lease in the repeated call")
			}
			before = result
			s.clock.Advance(time.Second)
		}
	}},
	{name: "doubt: nobody holds a released lease", global: "10/1h", run: func(s *subject) {
		lease := s.admit(request("event", "a"))
		s.release(false, lease...)
		s.refund(false, lease...)
		s.lost(testLease, lease...)
		s.taken("a", 1)
	}},
	{name: "newly: one of those who finish an event", global: "10/1h", run: func(s *subject) {
		event, other := request("event", "a"), derived(7, start, "a")
		first := s.admit(event, other)
		s.clock.Advance(testLease)
		second := s.takeOver(true, event, other)
		s.finishes([]bool{true, true}, second...)
		s.finishes([]bool{false, false}, first...)
		s.clock.Advance(time.Minute)
		s.finishes([]bool{false, false}, second...)
		s.clock.Advance(testRetention)
		s.finishes([]bool{true}, first[0])
	}},
	{name: "newly: in one batch", global: "10/1h", run: func(s *subject) {
		leases := s.admit(several(3, "e", "a")...)
		s.finishes([]bool{true}, leases[1])
		s.finishes([]bool{true, false, false, true}, leases[0], leases[1], leases[0], leases[2])
	}},
	{name: "newly: remembered from the first time on", global: "10/1h", run: func(s *subject) {
		event := request("event", "a")
		lease := s.admit(event)
		s.clock.Advance(time.Second)
		s.finish(lease...)
		s.clock.Advance(testRetention / 2)
		s.finish(lease...)
		s.clock.Advance(testRetention/2 - time.Microsecond)
		s.want(Done, event)
		s.clock.Advance(time.Microsecond)
		s.want(Admitted, event)
	}},
}

// TestFinishRepeatedCall repeats calls, as after a lost reply.
func TestFinishRepeatedCall(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	want := func(nonce string, want []bool, leases ...Lease) {
		t.Helper()
		testkit.EqualSlices(t, testkit.Must(k.finishBatch(t.Context(), nonce, leases))(t), want, "call %s: newly recorded", nonce)
	}
	first, second := k.deliver(request("first", "a")), k.deliver(request("second", "a"))
	want("one", []bool{true}, first)
	k.clock.Advance(time.Millisecond)
	want("two", []bool{false, true}, first, second)
	k.clock.Advance(nonceKept - 2*time.Millisecond)
	want("one", []bool{true}, first)
	want("two", []bool{false, true}, first, second)
	want("three", []bool{false, false}, first, second)
	k.clock.Advance(2 * time.Millisecond)
	want("two", []bool{false, false}, first, second)
	kept := k.client.PTTL(t.Context(), k.d.keys.done).Val() - scripttest.ExpiryMargin
	testkit.Between(t, kept, 1, testRetention, "time for which deliveries are kept")
}

// TestResolvedInDoubt reclaims resolved events.
func TestResolvedInDoubt(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	want := func(inDoubt bool) Lease {
		t.Helper()
		got := k.resolve(aboutDisk("resolved"), Reclaimed, "r")
		testkit.Equal(t, got.InDoubt, inDoubt, "in doubt")
		testkit.Equal(t, got.Lease.InDoubt, inDoubt, "the lease is in doubt")
		return got.Lease
	}
	k.fire(aboutDisk("firing"), "r")
	k.release(false, k.resolve(aboutDisk("resolved"), Admitted, "r").Lease)
	k.release(false, want(false))
	want(false)
	k.clock.Advance(testLease + time.Second)
	k.release(false, want(true))
	nonce := NewNonce()
	for range 2 {
		resolutions, err := k.Pairs.ResolveOnce(t.Context(), nonce, []Request{aboutDisk("resolved")})
		testkit.Check(t, err == nil && resolutions[0].Verdict == Reclaimed && resolutions[0].InDoubt, "a repeated call: %+v, %v", resolutions, err)
	}
	k.clock.Advance(testLease + time.Second)
	k.refund(true, want(true))
	want(false) // as a replayed dead letter
}

// TestMarkOfDoubtEnds ends events that were reclaimed in doubt. Nothing of their leases stays in Redis.
func TestMarkOfDoubtEnds(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	for name, end := range map[string]func(Lease){
		"finished": func(l Lease) { k.finish(l, "receipt") },
		"refunded": func(l Lease) { k.refund(true, l) },
		"restored": func(l Lease) { k.restore(Admission{Lease: l, At: time.Now(), Became: WasDelivered}) },
	} {
		r := request(name, "a")
		k.deliver(r)
		k.clock.Advance(testLease + time.Second)
		reclaimed := k.want(Reclaimed, r)[0].Lease
		testkit.Equal(t, k.client.ZCard(t.Context(), k.d.keys.leased).Val(), 2, "%s: the lease and its mark before", name)
		end(reclaimed)
		testkit.Equal(t, k.client.ZCard(t.Context(), k.d.keys.leased).Val(), 0, "%s: leases and marks", name)
	}
}

// TestRestoreInDoubt restores local admissions of events in each state in Redis.
func TestRestoreInDoubt(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	for _, test := range []struct {
		name   string
		before func(r Request)
		Became Became
		doubts bool // of the local delivery
		want   bool
		leased bool
	}{
		{"unknown", func(Request) {}, GoesOn, false, true, true}, // the holder lets the lease lapse
		{"unknown, released", func(Request) {}, WasReleased, false, false, false},
		{"unknown, released in doubt", func(Request) {}, WasReleased, true, true, false},
		{"lapsed", func(r Request) { k.deliver(r); k.clock.Advance(testLease + time.Second) }, WasReleased, false, true, false},
		{"released", func(r Request) { k.release(false, k.deliver(r)) }, WasReleased, false, false, false},
		{"somebody's", func(r Request) { k.deliver(r) }, WasReleased, false, true, true},
	} {
		r := request(test.name, "a")
		test.before(r)
		lease := Lease{Request: r, InDoubt: test.doubts}
		for range 2 {
			k.restore(Admission{Lease: lease, At: time.Now(), Became: test.Became})
		}
		if test.leased {
			wantVerdicts(t, decisionsOf(t, k, r), Leased)
			k.clock.Advance(testLease + time.Second)
		}
		d := decisionsOf(t, k, r)[0]
		testkit.Check(t, d.Verdict == Reclaimed && d.InDoubt == test.want, "%s: got %+v, want it in doubt: %t", test.name, d, test.want)
	}
}
