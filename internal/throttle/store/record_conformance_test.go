package store

import (
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// recordConformance has the cases of known events, and of a clock that steps.
var recordConformance = []conformanceCase{
	{name: "a redelivery sees a lease, may take over a lapsed one, and sees what is done", global: "10/1h", category: "1/1h", run: func(s *subject) {
		event := request("event", "a")
		first := s.admit(event)
		s.clock.Advance(testLease - time.Second)
		testkit.Equal(s.t, s.want(Leased, event)[0].Wait, time.Second, "leased for")
		s.want(Duplicate, event.inMessage(2))
		s.clock.Advance(time.Second)
		s.want(Duplicate, event.inMessage(2))
		second := leasesOf(s.want(Reclaimed, event))
		testkit.Equal(s.t, second[0].End, s.clock.Read().Add(testLease).UnixMicro(), "end of the lease")
		s.want(Leased, event)
		s.taken("a", 1, 1)
		s.refund(false, first...)
		s.finish(second...)
		s.lost(testLease, second...)
		s.want(Done, event, event)
		s.want(Duplicate, event.inMessage(2), event.inMessage(3))
		s.taken("a", 1, 1)
	}},
	{name: "another category does not make another event", global: "10/1h", category: "5/1h", run: func(s *subject) {
		s.admit(request("event", "a"))
		s.want(Duplicate, request("event", "b").inMessage(2))
		s.taken("b", 1, 0)
	}},
	{name: "a repeated call has the same answer", global: "4/1h", category: "3/1h", run: func(s *subject) {
		requests := []Request{
			request("1", "a"), request("2", "a").withCost(2), request("3", "a"), request("1", "a"),
			request("1", "a").inMessage(2), request("4", "b"), request("unknown", "b").withCost(0),
		}
		first := testkit.Must(s.repeat("nonce", requests))(s.t)
		for range 2 {
			s.clock.Advance(time.Second)
			again := testkit.Must(s.repeat("nonce", requests))(s.t)
			for i, d := range again.Decisions {
				want := first.Decisions[i]
				testkit.Check(s.t, d.Verdict == want.Verdict && d.Lease == want.Lease, "event %d: %+v, at first %+v", i+1, d, want)
			}
		}
		s.taken("a", 4, 3)
		testkit.AtMost(s.t, s.want(Leased, requests[0])[0].Wait, testLease-time.Microsecond, "wait of another call")
		s.finish(first.Decisions[0].Lease)
		again := testkit.Must(s.repeat("nonce", requests[:2]))(s.t)
		testkit.Check(s.t, again.Decisions[0].Verdict == Done && again.Decisions[1].Lease == first.Decisions[1].Lease,
			"after the first delivery: got %+v, want %s and the same lease", again.Decisions, Done)
	}},
	{name: "a refund frees every slot on the path, and the ID", global: "5/1h", category: "3/1h", rules: "a.b=3/1h", run: func(s *subject) {
		leases := s.admit(request("1", "a.b").withCost(2), request("2", "a.b"))
		s.taken("a.b", 3, 3, 3)
		s.clock.Advance(time.Minute)
		s.want(Denied, request("3", "a.b"))
		s.refund(true, leases[0])
		s.taken("a.b", 1, 1, 1)
		s.refund(false, leases[0])
		s.taken("a.b", 1, 1, 1)
		s.admit(request("3", "a.b"))
		s.admit(request("1", "a.b").inMessage(2))
		s.taken("a.b", 3, 3, 3)
		s.want(Duplicate, request("1", "a.b").withCost(2))
		s.finish(leases[1])
		s.refund(false, leases[1])
		s.taken("a.b", 3, 3, 3)
	}},
	{name: "only the holder of the lease may refund", global: "5/1h", run: func(s *subject) {
		event := request("event", "a")
		first := s.admit(event)[0]
		s.clock.Advance(testLease + time.Second)
		second := leasesOf(s.want(Reclaimed, event))[0]
		s.refund(false, first)
		s.refund(false, Lease{Request: event, End: 0}, Lease{Request: request("never", "a"), End: second.End})
		third := s.extend(time.Minute, second)[0]
		s.refund(false, second)
		s.taken("a", 1)
		s.refund(true, third)
		s.taken("a", 0)
	}},
	{name: "a lapsed lease that nobody took may be refunded and renewed", global: "5/1h", run: func(s *subject) {
		leases := s.admit(several(2, "e", "a")...)
		s.clock.Advance(2 * testLease)
		testkit.Equal(s.t, s.extend(testLease, leases[0])[0].End, s.clock.Read().Add(testLease).UnixMicro(), "end of the renewed lease")
		s.refund(true, leases[1])
		s.want(Leased, request("e1", "a"))
		s.taken("a", 1)
	}},
	{name: "a lease is renewed by its holder alone", global: "5/1h", run: func(s *subject) {
		event := request("event", "a")
		first := s.admit(event)
		s.clock.Advance(20 * time.Second)
		second := s.extend(testLease, first...)
		want := s.clock.Read().Add(testLease).UnixMicro()
		testkit.Require(s.t, second[0].End == want && second[0].Request == event, "renewed as %+v, want an end at %d", second[0], want)
		again := s.extend(testLease, first...) // the reply was lost
		testkit.Equal(s.t, again[0], second[0], "the second renewal")
		s.clock.Advance(20 * time.Second)
		s.want(Leased, event)
		s.lost(testLease, first...) // the lease had ended
		s.clock.Advance(10 * time.Second)
		s.want(Reclaimed, event)
		s.lost(testLease, second...) // the event was reclaimed
		s.lost(testLease, Lease{Request: request("never", "a"), End: 1})
	}},
	{name: "one call renews a lease twice", global: "5/1h", run: func(s *subject) {
		begins := s.admit(request("event", "a"))[0]
		waits := begins
		waits.Waits = true
		s.clock.Advance(testLease / 2)
		renewed := s.extend(testLease, begins, waits)
		end := s.clock.Read().Add(testLease).UnixMicro()
		testkit.Equal(s.t, [2]int64{renewed[0].End, renewed[1].End}, [2]int64{end, end}, "ends of the renewed lease")
	}},
	{name: "what is known of an event may be asked without admitting it", global: "1/1h", run: func(s *subject) {
		event := request("event", "a")
		s.want(Unknown, event.withCost(0))
		s.taken("a", 0)
		lease := s.admit(event)
		s.want(Leased, event.withCost(0))
		s.want(Duplicate, event.inMessage(2).withCost(0))
		s.want(Unknown, request("other", "a").withCost(0))
		s.clock.Advance(testLease)
		s.want(Unknown, event.withCost(0))
		s.want(Duplicate, event.inMessage(2).withCost(0))
		s.finish(lease...)
		s.want(Done, event.withCost(0))
		s.want(Duplicate, event.inMessage(2).withCost(0))
		s.taken("a", 1)
	}},
	{name: "derived IDs of a stream that was made anew come among others", global: "9/1h", category: "5/1h", run: func(s *subject) {
		later := start.Add(time.Hour)
		s.admit(derived(1, start, "a"))
		leases := s.admit(derived(2, later, "b"), derived(1, later, "a"), request("event", "a"), request("f", "b"))
		s.taken("a", 5, 3)
		s.taken("b", 5, 2)
		s.refund(true, leases[1])
		s.taken("a", 4, 2)
		s.want(Leased, derived(1, start, "a"))
	}},
	{name: "shadow mode leases what it denies, without taking slots",
		global: "2/1h", category: "1/1h", rules: "off=0/1h", forward: true, run: func(s *subject) {
			decisions := s.decide(request("1", "a"), request("2", "a"), request("3", "off"), request("2", "a"), request("4", "b"), request("5", "b"))
			for i, verdict := range []Verdict{Admitted, Denied, ExceedsCapacity, Leased, Admitted, Denied} {
				d := decisions[i]
				testkit.Equal(s.t, d.Verdict, verdict, "verdict of event %d", i+1)
				if verdict != Leased && d.Lease.End != start.Add(testLease).UnixMicro() {
					s.t.Fatalf("event %d: lease %+v", i+1, d.Lease)
				}
			}
			s.taken("a", 2, 1)
			s.refund(true, decisions[1].Lease, decisions[2].Lease)
			s.taken("a", 2, 1)
			s.clock.Advance(time.Second)
			if d := s.decide(request("2", "a"))[0]; d.Verdict != Denied || d.Lease.Request.ID != "2" || d.Wait != time.Hour-time.Second {
				s.t.Fatalf("after the refund: got %+v, want a denial with a lease", d)
			}
			s.finish(decisions[5].Lease)
			s.want(Done, request("5", "b"))
			s.want(Duplicate, request("5", "b").inMessage(2))
			s.refund(true, decisions[0].Lease)
			s.taken("a", 1, 0)
		}},
	{name: "a delivered event is forgotten after the retention, and its slots are not",
		global: "3/2h", retention: 10 * time.Minute, run: func(s *subject) {
			event := request("event", "a")
			s.clock.Advance(time.Second)
			lease := s.admit(event)
			s.clock.Advance(time.Minute)
			s.finish(lease...)
			s.clock.Advance(10*time.Minute - time.Microsecond)
			s.want(Done, event)
			s.want(Duplicate, event.inMessage(2))
			s.clock.Advance(time.Microsecond)
			s.admit(event.inMessage(2))
			s.taken("a", 2)
			s.want(Duplicate, event)
			s.clock.Advance(testLease)
			second := leasesOf(s.want(Reclaimed, event.inMessage(2)))
			s.refund(true, second...)
			s.taken("a", 1)
			s.admit(event.withCost(2))
			s.taken("a", 3)
		}},
	{name: "an event that nobody delivers is forgotten a retention after its lease",
		global: "3/2h", retention: 10 * time.Minute, run: func(s *subject) {
			s.admit(several(2, "e", "a")...)
			s.clock.Advance(testLease + 10*time.Minute - time.Microsecond)
			s.want(Reclaimed, request("e1", "a"))
			s.clock.Advance(2 * time.Microsecond)
			s.admit(request("e2", "a"))
			s.taken("a", 3)
		}},
	{name: "a name that an older event has left behind costs nobody else a slot", global: "10/2h", retention: time.Minute, run: func(s *subject) {
		leases := s.admit(request("lapsing", "a"), request("forgotten", "a"))
		s.finish(leases[1])
		s.clock.Advance(testLease + 35*time.Second)
		decisions := s.decide(request("lapsing", "a"), request("forgotten", "a").inMessage(2))
		wantVerdicts(s.t, decisions, Reclaimed, Admitted)
		s.taken("a", 3)
		s.refund(true, leasesOf(decisions)...)
		s.taken("a", 1)
	}},
	{name: "forgetting thousands leaves an event of a reused ID alone", retention: time.Minute, run: func(s *subject) {
		for batch := range 5 {
			s.finish(s.admit(several(250, fmt.Sprint("batch", batch, "-"), "a")...)...)
		}
		s.clock.Advance(time.Second)
		event := request("reused", "a")
		s.finish(s.admit(event)...)
		s.clock.Advance(2 * time.Minute)
		s.admit(event.inMessage(2))
		for i := range 3 {
			s.clock.Advance(time.Second)
			s.admit(request(fmt.Sprint("later", i), "a"))
		}
		s.want(Leased, event.inMessage(2))
		s.clock.Advance(testLease)
		s.want(Reclaimed, event.inMessage(2))
	}},
	{name: "time does not go back with a clock that steps back a little", global: "1/10m", run: func(s *subject) {
		s.clock.Advance(5 * time.Minute)
		lease := s.admit(request("event", "a"))[0]
		newest := s.clock.Read()
		s.clock.Advance(-59 * time.Second)
		result := s.result(request("x", "a"))
		late := result.At - newest.UnixMicro()
		testkit.Require(s.t, late >= 0 && late <= 10, "time of the decision: got %dµs after the newest, want 0 to 10", late)
		if d := result.Decisions[0]; d.Verdict != Denied || d.Wait+time.UnixMicro(result.At).Sub(newest) != 10*time.Minute {
			s.t.Fatalf("%+v at %d, newest %d", d, result.At, newest.UnixMicro())
		}
		s.want(Leased, request("event", "a"))
		s.taken("a", 1)
		renewed := s.extend(testLease, lease)[0]
		testkit.Require(s.t, renewed.End >= lease.End, "renewed Lease: got an end %dµs earlier, want none", lease.End-renewed.End)
		s.refund(true, renewed)
		again := s.admit(request("event", "a"))[0]
		testkit.Require(s.t, again.End != lease.End, "two holders have leases of one end")
		s.clock.Set(newest.Add(10*time.Minute - time.Second))
		s.want(Denied, request("y", "a"))
		s.clock.Advance(2 * time.Second)
		s.admit(request("y", "a"))
	}},
	{name: "a clock that was far ahead once does not block for ever", global: "2/10m", run: func(s *subject) {
		s.admit(request("before", "a"))
		s.clock.Advance(24 * time.Hour)
		s.admit(several(2, "ahead", "a")...)
		s.clock.Advance(-24*time.Hour + time.Second)
		result := s.result(several(3, "after", "a")...)
		testkit.Equal(s.t, result.At, s.clock.Read().UnixMicro(), "time of the decision")
		wantVerdicts(s.t, result.Decisions, Admitted, Admitted, Denied)
		testkit.AtMost(s.t, result.Decisions[2].Wait, 10*time.Minute, "wait after the jump")
		s.clock.Advance(10 * time.Minute)
		s.admit(several(2, "later", "a")...)
		// When the clock reaches the times ahead, the slots taken there count.
		s.clock.Set(start.Add(24*time.Hour - 30*time.Second))
		testkit.Equal(s.t, s.result().At, s.clock.Read().UnixMicro(), "time of the decision")
		s.taken("a", 2)
		s.deny(limits.LevelGlobal, 10*time.Minute+30*time.Second, request("x", "a"))
		s.clock.Advance(10*time.Minute + 30*time.Second)
		s.admit(several(2, "at last", "a")...)
	}},
	{name: "a former lease goes on after a clock that was ahead released the next one", run: func(s *subject) {
		event := request("event", "a")
		first := s.admit(event)
		s.clock.Advance(testLease + 2*tolerance)
		next := leasesOf(s.want(Reclaimed, event))[0]
		next.InDoubt = false // its holder has looked: the event is not posted
		s.extend(0, next)
		s.clock.Set(start.Add(testLease - time.Second))
		testkit.Equal(s.t, s.extend(testLease, first...)[0].End, s.clock.Read().Add(testLease).UnixMicro(), "end of the renewed lease")
		s.want(Leased, event)
	}},
	{name: "leases that a clock left far ahead have lapsed", run: func(s *subject) {
		s.clock.Advance(24 * time.Hour)
		held := s.admit(request("held", "a"))[0]
		waits := s.admit(request("waits", "a"))[0]
		waits.Waits = true
		waits = s.extend(testLease, waits)[0]
		s.clock.Set(start)
		s.want(Reclaimed, request("held", "a"), request("waits", "a"))
		s.want(Leased, request("held", "a"), request("waits", "a"))
		s.lost(testLease, held, waits)
	}},
	{name: "slots that a clock left ahead are waited for in their place", global: "3/10m", run: func(s *subject) {
		s.clock.Advance(70 * time.Second)
		s.admit(request("ahead", "a"))
		s.clock.Set(start)
		s.admit(request("first", "a"))
		s.clock.Advance(20 * time.Second)
		decisions := s.decide(request("second", "a"), request("1", "a"), request("2", "a").withCost(2), request("3", "a").withCost(3))
		for i, wait := range map[int]time.Duration{1: 10*time.Minute - 20*time.Second, 2: 10 * time.Minute, 3: 10*time.Minute + 50*time.Second} {
			testkit.Equal(s.t, decisions[i].Verdict, Denied, "event %d: verdict", i+1)
			testkit.Equal(s.t, decisions[i].Wait, wait, "event %d: wait", i+1)
		}
	}},
	{name: "large batches and costs", category: "20000/1h", run: func(s *subject) {
		requests := withCosts(100, several(MaxBatch, "e", "a"))
		leases := s.admits(200, limits.LevelCategory, requests...)
		s.taken("a", 20000)
		s.want(Leased, requests[:200]...)
		s.refund(true, leases...)
		s.taken("a", 0)
	}},
}
