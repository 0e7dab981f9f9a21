package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// changeConformance has the cases of limits that change.
var changeConformance = []conformanceCase{
	{name: "change: a raised or lowered count keeps what was counted", category: "3/1h", run: func(s *subject) {
		for i := range 3 {
			s.admit(request(fmt.Sprint("e", i), "a"))
			s.clock.Advance(time.Minute)
		}
		s.deny(limits.LevelCategory, 57*time.Minute, request("x", "a"))
		s.change(newPlan(s.t, "none", "5/1h", ""))
		s.taken("a", 3)
		s.admits(2, limits.LevelCategory, several(3, "more", "a")...)
		s.clock.Advance(time.Minute)
		s.change(newPlan(s.t, "none", "2/1h", ""))
		s.taken("a", 5)
		s.opens(limits.LevelCategory, 59*time.Minute, request("x", "a")) // 13:03, when all older slots have left
		s.taken("a", 1)
	}},
	{name: "change: every algorithm goes on with what it has counted",
		rules: withEach("", "2/1h"), run: func(s *subject) {
			for _, a := range algorithm.All() {
				events := several(2, a.String(), a.String())
				if a.Description().Frees == algorithm.BySpacing {
					events = events[:1]
				}
				s.admit(events...)
			}
			s.change(newPlan(s.t, "none", "none", withEach("", "3/1h")))
			s.clock.Advance(time.Second)
			for _, a := range algorithm.All() {
				if a.Description().Frees == algorithm.BySpacing { // one slot each twenty minutes
					s.deny(a.String(), 20*time.Minute-time.Second, request(a.String()+" x", a.String()))
					continue
				}
				s.admits(1, a.String(), several(2, a.String()+" more", a.String())...)
			}
			s.change(newPlan(s.t, "none", "none", withEach("", "1/1h")))
			s.clock.Advance(time.Second)
			for _, a := range algorithm.All() {
				testkit.AtLeast(s.t, s.want(Denied, request("y", a.String()))[0].Wait, 57*time.Minute, "wait for a slot of %s", a.String())
			}
		}},
	{name: "change: an emptied token bucket that got smaller is full after a window", category: "token:100/1h", run: func(s *subject) {
		s.admits(100, limits.LevelCategory, several(101, "e", "a")...)
		s.clock.Advance(time.Minute)
		s.change(newPlan(s.t, "none", "token:10/1h", ""))
		s.deny(limits.LevelCategory, 59*time.Minute, request("x", "a"))
		s.change(newPlan(s.t, "none", "token:100/1h", ""))
		s.admits(1, limits.LevelCategory, several(3, "back", "a")...) // a minute refills one token
		s.change(newPlan(s.t, "none", "token:10/1h", ""))
		s.clock.Advance(time.Second)
		s.opens(limits.LevelCategory, time.Hour-time.Second, request("x", "a"))
		s.admits(9, limits.LevelCategory, several(10, "full", "a")...)
	}},
	{name: "change: another algorithm starts with its own count", category: "3/1h", run: func(s *subject) {
		s.admit(several(3, "e", "a")...)
		s.clock.Advance(time.Second)
		s.change(newPlan(s.t, "none", "token:3/1h", ""))
		s.admits(3, limits.LevelCategory, several(4, "token", "a")...)
		s.clock.Advance(time.Second)
		s.change(newPlan(s.t, "none", "token:3/30m", "")) // another window has its own bucket
		s.admit(request("other", "a"))
		s.clock.Advance(time.Second)
		s.change(newPlan(s.t, "none", "3/1h", ""))
		s.deny(limits.LevelCategory, time.Hour-3*time.Second, request("x", "a"))
	}},
	{name: "change: a path gains a limit and loses it", global: "10/1h", run: func(s *subject) {
		plan := newPlan(s.t, "10/1h", "none", "")
		s.admit(request("before", "a.b"))
		s.clock.Advance(time.Second)
		s.change(newPlan(s.t, "10/1h", "none", "a.b=2/1h"))
		s.taken("a.b", 1, 0)
		s.admits(2, "a.b", several(3, "limited", "a.b")...)
		s.taken("a.b", 3, 2)
		s.clock.Advance(time.Second)
		s.change(plan)
		s.admit(several(3, "free", "a.b")...)
		s.taken("a.b", 6)
		s.clock.Advance(time.Second)
		s.change(newPlan(s.t, "10/1h", "none", "a.b=2/1h"))
		s.deny("a.b", time.Hour-2*time.Second, request("x", "a.b"))
		s.taken("a.b", 6, 2)
	}},
	{name: "change: slots return to the limits that an event was evaluated by", category: "fixed:2/1h+token:2/1h", run: func(s *subject) {
		old := s.admit(several(2, "old", "a")...)
		s.clock.Advance(time.Second)
		s.change(newPlan(s.t, "none", "leaky:3600/1h+inflight:2/1h+5/1h", ""))
		s.admit(request("new", "a"))
		s.clock.Advance(time.Microsecond)
		s.refund(true, old...)
		s.taken("a", 1)
		s.clock.Advance(time.Second)
		s.change(newPlan(s.t, "none", "fixed:2/1h+token:2/1h", ""))
		used := s.slots("a")
		testkit.Check(s.t, used[0][0] == 0 && used[0][1] == 0, "slots taken: got %v, want none", used)
		s.admits(2, limits.LevelCategory, several(3, "again", "a")...)
	}},
	{name: "change: a delivery that is taken over returns no slot of others", category: "token:2/1h", run: func(s *subject) {
		event := request("event", "a")
		s.admit(event)
		s.clock.Advance(testLease)
		s.change(newPlan(s.t, "none", "fixed:2/1h", ""))
		s.admit(request("other", "a"))
		s.clock.Advance(time.Microsecond)
		again := leasesOf(s.want(Reclaimed, event))
		s.refund(true, again...)
		s.taken("a", 1)
	}},
	{name: "change: slots that were left behind hide no others", category: "3/1h", run: func(s *subject) {
		event := request("event", "a")
		for range 2 {
			s.extend(0, s.admit(event)...)
			s.change(newPlan(s.t, "none", "none", ""))
			s.clock.Advance(time.Minute)
			s.refund(true, leasesOf(s.want(Reclaimed, event))...)
			s.change(newPlan(s.t, "none", "3/1h", ""))
		}
		s.admit(event) // at 12:02; the slots left behind are of 12:00 and 12:01
		s.clock.Advance(time.Hour - time.Second)
		s.taken("a", 1)
	}},
	{name: "change: a delivery that is taken over takes the slot that is new", run: func(s *subject) {
		event := request("event", "a")
		s.admit(event)
		s.change(newPlan(s.t, "none", "inflight:1/1m", ""))
		s.clock.Advance(testLease)
		lease := leasesOf(s.want(Reclaimed, event))
		s.taken("a", 1)
		s.clock.Advance(time.Second)
		s.deny(limits.LevelCategory, 59*time.Second, request("x", "a"))
		s.finish(lease...)
		s.taken("a", 0)
	}},
	{name: "change: a limit that has become too small keeps no delivery for ever", category: "inflight:3/1m", run: func(s *subject) {
		event := request("event", "a").withCost(3)
		s.extend(0, s.admit(event)...)
		s.change(newPlan(s.t, "none", "inflight:2/1m", ""))
		s.clock.Advance(time.Second)
		s.want(Reclaimed, event)
	}},
	{name: "change: guarantees stay what they are", global: "10/1h", guarantees: "security=3", run: func(s *subject) {
		security := s.admit(several(2, "s", "security")...)
		s.admits(7, limits.LevelGlobal, several(8, "o", "orders")...)
		s.clock.Advance(time.Second)
		s.change(guarded(s.t, newPlan(s.t, "12/1h", "none", ""), "security=3"))
		s.admits(2, limits.LevelGlobal, several(3, "more", "orders")...)
		s.clock.Advance(time.Second)
		s.refund(true, security[0])
		s.admits(2, limits.LevelGlobal, several(3, "s more", "security")...)
		s.clock.Advance(time.Second)
		s.change(guarded(s.t, newPlan(s.t, "5/1h", "none", ""), "security=3"))
		s.want(Denied, request("x", "security"), request("x", "orders"))
	}},
	{name: "change: a forwarded event without slots returns none",
		category: "fixed:1/1h", retention: time.Minute, forward: true, run: func(s *subject) {
			event := request("event", "a")
			s.admit(event)
			s.clock.Advance(testLease + 2*time.Minute) // the record is forgotten
			d := s.decide(event)[0]
			testkit.Require(s.t, d.Verdict == Denied && d.Lease.Request.ID != "", "got %+v, want a denial with a lease", d)
			s.refund(true, d.Lease)
			s.taken("a", 1)
		}},
}

// TestRefundByOtherEnvironment has workers whose environments set different limits of one path, as in a rollout. A worker that takes an
// event over and cannot deliver it returns no slot of its own limit, which other events have taken.
func TestRefundByOtherEnvironment(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	worker := func(global string) *Redis {
		return newRedis(client, "rollout", Settings{Tree: newTree(t, global, "none", ""), Lease: testLease, Retention: testRetention})
	}
	older, newer := worker("counter:10/1h"), worker("fixed:10/1h")
	decide := func(w *Redis, want Verdict, id string) Lease {
		t.Helper()
		result := testkit.Must(w.Decide(t.Context(), []Request{request(id, "a")}))(t)
		testkit.Equal(t, result.Decisions[0].Verdict, want, "verdict of %s", id)
		return result.Decisions[0].Lease
	}
	lease := decide(older, Admitted, "event")
	for n := range 10 {
		decide(newer, Admitted, fmt.Sprint("e", n))
	}
	testkit.Must(older.Extend(t.Context(), []Lease{lease}, 0))(t)
	lease = decide(newer, Reclaimed, "event")
	testkit.EqualSlices(t, testkit.Must(newer.Refund(t.Context(), []Lease{lease}))(t), []bool{true}, "refunds")
	decide(newer, Denied, "eleventh")
}

// TestOlderLimitsAreTurnedAway has instances with different revisions decide in turn.
func TestOlderLimitsAreTurnedAway(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	tree := newTree(t, "10/1h+token:10/1h", "inflight:5/1h", "")
	instance := func(generation int64, revision uint64) *Redis {
		r := newRedis(client, "stale", Settings{Tree: tree, Lease: testLease, Retention: testRetention})
		r.Adopt(limits.Ruleset{Tree: tree, Shadow: tree, Position: limits.Position{Generation: generation, Revision: revision}})
		return r
	}
	events := 0
	ask := func(r *Redis, want error) Lease {
		t.Helper()
		before := scripttest.Contents(t, client)
		events++
		result, err := r.Decide(t.Context(), []Request{request(fmt.Sprint("e", events), "a"), request("e1", "a")})
		testkit.Require(t, errors.Is(err, want), "error %v, want %v", err, want)
		if want == nil {
			return result.Decisions[0].Lease
		}
		testkit.Equal(t, len(result.Decisions), 0, "decisions by older limits")
		scripttest.WantUnchanged(t, client, before)
		return Lease{}
	}
	none, first, second := instance(0, 0), instance(7, 1), instance(7, 2)
	ask(none, nil)
	early := ask(first, nil)
	ask(none, script.ErrStale)
	ask(second, nil)
	ask(first, script.ErrStale)
	ask(second, nil)

	// Calls about admitted events work with outdated limits.
	extended := testkit.Must(first.Extend(t.Context(), []Lease{early}, testLease))(t)
	testkit.EqualSlices(t, testkit.Must(first.Refund(t.Context(), extended))(t), []bool{true}, "refunds")
	testkit.NoError(t, first.Probe(t.Context()))

	// A new bucket of live limits counts from 1 again.
	anew := instance(8, 1)
	ask(anew, nil)
	ask(second, script.ErrStale)
	ask(anew, nil)
	first.Adopt(limits.Ruleset{Tree: tree, Position: limits.Position{Generation: 8, Revision: 1}})
	ask(first, nil)
}

// TestNewerLimitsAreKnownFromADenial makes the first call with newer limits one that admits nothing.
func TestNewerLimitsAreKnownFromADenial(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	settings := Settings{Tree: newTree(t, "1/1h", "none", ""), Lease: testLease, Retention: testRetention}
	older, newer := newRedis(client, "stale", settings), newRedis(client, "stale", settings)
	older.Adopt(limits.Ruleset{Tree: settings.Tree, Position: limits.Position{Generation: 1, Revision: 1}})
	newer.Adopt(limits.Ruleset{Tree: newTree(t, "0/1h", "none", ""), Position: limits.Position{Generation: 1, Revision: 2}})
	wantVerdicts(t, decisionsOf(t, newer, request("event", "a")), ExceedsCapacity)
	_, err := older.Decide(t.Context(), []Request{request("event", "a")})
	testkit.Fails(t, "error", err, script.ErrStale)
	scripttest.WantExpiries(t, client)
}

// TestLimitsArePutInForce puts older limits in force, as an operator does.
func TestLimitsArePutInForce(t *testing.T) {
	t.Parallel()
	server, client := startRedis(t)
	settings := Settings{Tree: newTree(t, "2/1h", "none", ""), Lease: testLease, Retention: testRetention}
	instance := func(p limits.Position) *Redis {
		r := newRedis(client, "put", settings)
		r.Adopt(limits.Ruleset{Tree: settings.Tree, Position: p})
		return r
	}
	// Lua does not print such large numbers exactly by default.
	older, newer := limits.Position{Generation: 1_766_000_000_123, Revision: 2}, limits.Position{Generation: 1_766_000_000_456, Revision: 1}
	first, second := instance(older), instance(newer)
	wantInForce := func(want limits.Position, known bool) {
		t.Helper()
		got, since, err := first.Positions.InForce(t.Context())
		if err != nil || got != want || known == since.IsZero() || known && time.Since(since).Abs() > patience {
			t.Errorf("in force is %v since %v, %v; want %v", got, since, err, want)
		}
	}
	put := func(want bool, seen, next limits.Position) {
		t.Helper()
		testkit.Equal(t, testkit.Must(first.Positions.PutInForce(t.Context(), seen, next))(t), want, "put in force instead of %v", seen)
	}
	wantInForce(limits.Position{}, false)
	testkit.NoError(t, second.Compare(t.Context()))
	wantInForce(limits.Position{}, false) // a comparison puts nothing in force
	wantAdmitted(t, second, request("a", "a"))
	wantInForce(newer, true)
	if err := first.Compare(t.Context()); !errors.Is(err, script.ErrStale) || NewerThan(err) != newer {
		t.Fatalf("compared: %v, which names %v; want %v", err, NewerThan(err), newer)
	}
	put(false, older, older)
	put(false, limits.Position{}, older)
	wantInForce(newer, true)
	put(true, newer, older)
	wantInForce(older, true)
	scripttest.WantExpiries(t, client)
	wantVerdicts(t, decisionsOf(t, first, request("b", "a"), request("c", "a")), Admitted, Denied)
	testkit.Fails(t, "a state before the one in force", instance(limits.Position{Generation: older.Generation, Revision: 1}).Compare(t.Context()), script.ErrStale)

	server.CLI("del", "{put}:limits")
	put(false, newer, older)
	put(true, limits.Position{}, older)
}

// TestLimitsInForceThatCannotBeRead reads a key of a wrong type, and then asks a killed server.
func TestLimitsInForceThatCannotBeRead(t *testing.T) {
	t.Parallel()
	server, client := startRedis(t)
	first := newRedis(client, "put", Settings{Tree: newTree(t, "2/1h", "none", "")})
	server.CLI("lpush", "{put}:limits", "x")
	_, err := first.Positions.PutInForce(t.Context(), limits.Position{}, limits.Position{Generation: 1, Revision: 1})
	testkit.Fails(t, "put in force instead of a list", err, script.ErrRefused)
	_, _, err = first.Positions.InForce(t.Context())
	testkit.Fails(t, "asked for what a list says", err, script.ErrRefused)
	server.Kill()
	_, _, err = first.Positions.InForce(t.Context())
	testkit.Fails(t, "asked without a server", err, script.ErrUnavailable)
}
