package throttle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// postponed is an event that a limit of 10/30m on the path a has denied; the next slot opens in 20 minutes.
func postponed(r Request) Postponement {
	return Postponement{
		Request: r, Wait: 20 * time.Minute, Longest: 4 * time.Hour, Place: "a", Limit: Limit{Count: 10, Window: 30 * time.Minute},
		Firing: r.Pair != "",
	}
}

// comeBack is the same event in the message that the server stored for it, with the ID that it has got by now.
func (p Postponement) comeBack() Postponement {
	p.HasWaited, p.Derived = true, false
	p.Message = Message{Stream: "EVENTS", Sequence: p.Message.Sequence + 1000, Stored: start.Add(time.Hour)}
	return p
}

const mostDelayed = 1000

// delay plans the return of an event, which is told to be in that time.
func (k *pairKit) delay(p Postponement, most int, want DelayVerdict) time.Duration {
	k.t.Helper()
	verdict, in, err := k.Delay(k.t.Context(), p, most)
	if err != nil {
		k.t.Fatal(err)
	}
	if verdict != want || (want == ComesBack) != (in > 0) {
		k.t.Fatalf("%q: verdict %d in %v, want %d", p.ID, verdict, in, want)
	}
	return in
}

// wantJitter checks that an event comes back at a time, or half of what lies between two events later at most.
func (k *pairKit) wantJitter(what string, got, want, apart time.Duration) {
	k.t.Helper()
	if got < want || got >= want+apart/2 {
		k.t.Errorf("%s comes back in %v, want %v and at most %v more", what, got, want, apart/2)
	}
}

func (k *pairKit) awaiting(back time.Duration, id string) string {
	return fmt.Sprintf("@%d %s", k.clock.read().Add(back).UnixMicro(), id)
}

var delayStories = []struct {
	name string
	tell func(t *testing.T, k *pairKit)
}{
	{"in order, as many as a window has slots, a little apart", func(t *testing.T, k *pairKit) {
		opens, last := k.clock.read().Add(20*time.Minute), time.Time{}
		for i := range 25 {
			p := postponed(request(fmt.Sprint("e", i), "a"))
			p.Wait = opens.Sub(k.clock.read())
			in := k.delay(p, mostDelayed, ComesBack)
			k.wantJitter(p.ID, in, p.Wait+time.Duration(i/10)*30*time.Minute+time.Duration(i%10)*time.Second, time.Second)
			if at := k.clock.read().Add(in); at.After(last) {
				last = at
			} else {
				t.Errorf("%s comes back before those that were first", p.ID)
			}
			k.clock.advance(time.Duration(i*337) * time.Millisecond)
		}
	}},
	{"as time goes on", func(_ *testing.T, k *pairKit) {
		for i := range 20 {
			k.delay(postponed(request(fmt.Sprint("e", i), "a")), mostDelayed, ComesBack)
		}
		k.clock.advance(20*time.Minute + 10*time.Second) // the first ten are back, and have the slots
		p := postponed(request("new", "a"))
		p.Wait = 30 * time.Minute
		k.wantJitter("the next", k.delay(p, mostDelayed, ComesBack), p.Wait+30*time.Minute, time.Second)
	}},
	{"many slots in a short window", func(_ *testing.T, k *pairKit) {
		for i := range 30 {
			p := postponed(request(fmt.Sprint("e", i), "a"))
			p.Wait, p.Limit = time.Second, Limit{Count: 10, Window: 100 * time.Millisecond}
			want := p.Wait + time.Duration(i/10)*100*time.Millisecond + time.Duration(i%10)*10*time.Millisecond
			k.wantJitter(p.ID, k.delay(p, mostDelayed, ComesBack), want, 10*time.Millisecond)
		}
	}},
	{"places of their own", func(_ *testing.T, k *pairKit) {
		for _, place := range []string{"", "a", "a.b"} {
			for i := range 3 {
				p := postponed(request(fmt.Sprint(place, i), "a.b"))
				p.Place = place
				k.wantJitter(p.ID, k.delay(p, mostDelayed, ComesBack), p.Wait+time.Duration(i)*time.Second, time.Second)
			}
		}
	}},
	{"one that has waited goes first", func(_ *testing.T, k *pairKit) {
		first := postponed(request("first", "a"))
		k.clock.advance(k.delay(first, mostDelayed, ComesBack))
		for i := range 12 {
			k.delay(postponed(request(fmt.Sprint("e", i), "a")), mostDelayed, ComesBack)
		}
		k.wantJitter("it", k.delay(first.comeBack(), mostDelayed, ComesBack), first.Wait, time.Second)
		next := k.delay(postponed(request("new", "a")), mostDelayed, ComesBack)
		k.wantJitter("the next", next, first.Wait+30*time.Minute+3*time.Second, time.Second)
	}},
	{"bound", func(_ *testing.T, k *pairKit) {
		elsewhere := func(id string) Postponement {
			p := postponed(request(id, "b"))
			p.Place = "b"
			return p
		}
		k.delay(postponed(request("none", "a")), 0, TooMany)
		in := k.delay(postponed(request("first", "a")), 2, ComesBack)
		k.delay(elsewhere("second"), 2, ComesBack)
		keys := []string{k.keys.delayed, k.keys.meter("delayed:a"), k.keys.meter("delayed:b")}
		before := k.dumps(keys...)
		k.delay(postponed(request("third", "a")), 2, TooMany)
		k.delay(elsewhere("third"), 2, TooMany)
		if k.dumps(keys...) != before {
			k.t.Error("an event that does not wait left something")
		}
		k.delay(postponed(request("first", "a")), 2, ComesBack) // it waits already
		k.delay(postponed(request("of before", "a")).comeBack(), 2, ComesBack)
		k.clock.advance(in)
		k.delay(postponed(request("third", "a")), 1, ComesBack)
	}},
	{"too late", func(_ *testing.T, k *pairKit) {
		at := func(place, id string, longest time.Duration) Postponement {
			p := postponed(request(id, place))
			p.Place, p.Longest = place, longest
			return p
		}
		in := k.delay(at("a", "e", 4*time.Hour), mostDelayed, ComesBack)
		k.delay(at("b", "just too late", in-time.Microsecond), mostDelayed, TooLate)
		k.delay(at("b", "over", -time.Second), mostDelayed, TooLate)
		k.delay(at("b", "just in time", in), mostDelayed, ComesBack)
		k.delay(at("a", "behind another", in), mostDelayed, TooLate)
		k.delay(at("a", "came back", in-time.Microsecond).comeBack(), mostDelayed, TooLate)
		k.delay(at("b", "just too late", in+time.Second), 1, TooMany)
	}},
	{"the same call again", func(_ *testing.T, k *pairKit) {
		p := postponed(aboutDisk("e"))
		in := k.delay(p, mostDelayed, ComesBack)
		keys := []string{k.keys.delayed, k.keys.meter("delayed:a"), k.keys.pairs, k.keys.pairsUntil}
		before := k.dumps(keys...)
		k.clock.advance(5 * time.Second)
		if again := k.delay(p, mostDelayed, ComesBack); again != in-5*time.Second {
			k.t.Errorf("after 5s it comes back in %v, before in %v", again, in)
		}
		if k.dumps(keys...) != before {
			k.t.Error("something was written")
		}
	}},
	{"another message with its ID", func(_ *testing.T, k *pairKit) {
		p := postponed(request("e", "a"))
		again := p
		again.Request = p.inMessage(9)
		in := k.delay(p, mostDelayed, ComesBack)
		k.delay(again, mostDelayed, AlreadyWaiting)
		again.Longest = 0
		k.delay(again, mostDelayed, AlreadyWaiting)
		k.clock.advance(in)
		again.Longest = p.Longest
		k.delay(again, mostDelayed, ComesBack) // it came back, and was not admitted
		k.delay(p, mostDelayed, AlreadyWaiting)
	}},
	{"derived IDs", func(_ *testing.T, k *pairKit) {
		k.delay(postponed(derived(1, start, "a")), mostDelayed, ComesBack)
		k.delay(postponed(derived(1, start, "a")), mostDelayed, ComesBack)
		k.delay(postponed(derived(1, start.Add(time.Hour), "a")), mostDelayed, ComesBack) // of another stream of that name
		if n := k.client.ZCard(k.t.Context(), k.keys.meter("delayed:a")).Val(); n != 2 {
			k.t.Errorf("%d messages wait, want 2", n)
		}
	}},
	{"what came back is forgotten in time", func(_ *testing.T, k *pairKit) {
		in := k.delay(postponed(request("first", "a")), mostDelayed, ComesBack)
		for _, key := range []string{k.keys.delayed, k.keys.meter("delayed:a")} {
			if ttl := k.client.PTTL(k.t.Context(), key).Val(); ttl <= in || ttl > in+time.Hour+time.Millisecond {
				k.t.Errorf("%s is kept for %v, the event comes back in %v", key, ttl, in)
			}
		}
		k.clock.advance(in + time.Hour - time.Microsecond)
		k.delay(postponed(request("second", "a")), mostDelayed, ComesBack)
		k.wantDelayed("first", "second")
		k.clock.advance(time.Microsecond)
		k.delay(postponed(request("third", "a")), mostDelayed, ComesBack)
		k.wantDelayed("second", "third")
	}},

	{"a resolved event waits for what comes back", func(t *testing.T, k *pairKit) {
		p := postponed(aboutDisk("firing"))
		in := k.delay(p, mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk": k.awaiting(in, "firing")})
		k.clock.advance(time.Minute)
		if wait := k.resolve(aboutDisk("resolved"), Leased, "").Wait; wait != in-time.Minute {
			t.Errorf("it waits %v for what comes back in %v", wait, in-time.Minute)
		}
		k.clock.advance(in - time.Minute)
		if wait := k.resolve(aboutDisk("resolved"), Leased, "").Wait; wait != time.Second {
			t.Errorf("it waits %v for what should be back", wait)
		}
		firing := k.deliver(p.comeBack().Request)
		k.wantFields(map[string]string{"a\ndisk": "~firing"})
		if wait := k.resolve(aboutDisk("resolved"), Leased, "").Wait; wait <= 0 || wait > testLease {
			t.Errorf("it waits %v for a lease of %v", wait, testLease)
		}
		k.finish(firing, "r")
		k.resolve(aboutDisk("resolved"), Admitted, "r")
	}},
	{"recorded without being announced", func(_ *testing.T, k *pairKit) {
		p := postponed(aboutDisk("firing"))
		k.delay(p, mostDelayed, ComesBack)
		k.finish(Lease{Request: p.comeBack().Request}, "r")
		k.resolve(aboutDisk("resolved"), Admitted, "r")
	}},
	{"waits again, and then too long", func(_ *testing.T, k *pairKit) {
		p := postponed(aboutDisk("firing"))
		k.clock.advance(k.delay(p, mostDelayed, ComesBack))
		in := k.delay(p.comeBack(), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk": k.awaiting(in, "firing")})
		k.clock.advance(in)
		k.resolve(aboutDisk("resolved"), Leased, "")
		late := p.comeBack()
		late.Longest = time.Minute
		k.delay(late, mostDelayed, TooLate)
		k.wantFields(nil)
		k.resolve(aboutDisk("resolved"), Unpaired, "")
	}},
	{"waits under a derived ID, which is its own when it comes back", func(_ *testing.T, k *pairKit) {
		p := postponed(derived(7, start, "a").ofPair("disk"))
		k.clock.advance(k.delay(p, mostDelayed, ComesBack))
		in := k.delay(p.comeBack(), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk": k.awaiting(in, "EVENTS:7")})
		k.clock.advance(in)
		late := p.comeBack()
		late.Longest = 0
		k.delay(late, mostDelayed, TooLate)
		k.wantFields(nil)
	}},
	{"never comes back", func(_ *testing.T, k *pairKit) {
		in := k.delay(postponed(aboutDisk("firing")), mostDelayed, ComesBack)
		k.clock.advance(in + time.Hour - time.Microsecond)
		k.resolve(aboutDisk("resolved"), Leased, "")
		k.clock.advance(time.Microsecond)
		k.resolve(aboutDisk("resolved"), Unpaired, "")
	}},
	{"another event of the pair waits", func(_ *testing.T, k *pairKit) {
		in := k.delay(postponed(aboutDisk("first")), mostDelayed, ComesBack)
		want := map[string]string{"a\ndisk": k.awaiting(in, "first")}
		k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		k.wantFields(want)
		late := postponed(aboutDisk("second")).comeBack()
		late.Longest = 0
		k.delay(late, mostDelayed, TooLate)
		k.delay(postponed(aboutDisk("third")), 1, TooMany)
		k.wantFields(want)
	}},
	{"the pair is open", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("first"), "r")
		k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		late := postponed(aboutDisk("second")).comeBack()
		late.Longest = 0
		k.delay(late, mostDelayed, TooLate)
		k.resolve(aboutDisk("resolved"), Admitted, "r")
		k.wantFields(map[string]string{"\nresolved": "=r"})
	}},
	{"another event of the pair is on its way", func(_ *testing.T, k *pairKit) {
		first := k.deliver(aboutDisk("first"))
		k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk": "~first"})
		k.finish(first, "r")
		k.resolve(aboutDisk("resolved"), Admitted, "r")
	}},
	{"another event of the pair was rejected", func(_ *testing.T, k *pairKit) {
		k.refund(k.deliver(aboutDisk("first")))
		k.clock.advance(time.Second)
		in := k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk": k.awaiting(in, "second")})
		k.resolve(aboutDisk("resolved"), Leased, "")
	}},
	{"nobody delivers another event of the pair now", func(_ *testing.T, k *pairKit) {
		k.deliver(aboutDisk("first"))
		k.clock.advance(testLease + time.Second)
		k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		first := k.deliver(aboutDisk("first")) // somebody does again
		k.finish(first, "r")
		k.resolve(aboutDisk("resolved"), Admitted, "r")
	}},
	{"it opens nothing", func(_ *testing.T, k *pairKit) {
		p := postponed(aboutDisk("neither firing nor resolved"))
		p.Firing = false
		k.delay(p, mostDelayed, ComesBack)
		k.wantFields(nil)
	}},
}

// wantDelayed checks which events are remembered, of all and of the place.
func (k *pairKit) wantDelayed(want ...string) {
	k.t.Helper()
	for _, key := range []string{k.keys.delayed, k.keys.meter("delayed:a")} {
		members := k.client.ZRange(k.t.Context(), key, 0, -1).Val()
		for i, member := range members {
			members[i], _, _ = strings.Cut(member, "\n")
		}
		if slices.Sort(members); !slices.Equal(members, want) {
			k.t.Errorf("%s remembers %q, want %q", key, members, want)
		}
	}
}

// dumps is what keys hold.
func (k *pairKit) dumps(keys ...string) string {
	k.t.Helper()
	held := make([]string, len(keys))
	for i, key := range keys {
		var err error
		if held[i], err = k.client.Dump(k.t.Context(), key).Result(); err != nil && !errors.Is(err, redis.Nil) {
			k.t.Fatal(err)
		}
	}
	return fmt.Sprintf("%q", held)
}

func TestDelays(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, way := range []Scripting{Eval, Functions} {
		for _, story := range delayStories {
			t.Run(string(way)+"/"+story.name, func(t *testing.T) {
				t.Parallel()
				story.tell(t, newPairKit(t, client, way))
			})
		}
	}
}

// TestPlanned plans at times before now: what is asked about plans goes by the server's own clock.
func TestPlanned(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	k := newPairKit(t, newClient(t, redis.Options{Addr: server.Addr}), Eval)
	want := func(id string, planned bool, about time.Duration) {
		t.Helper()
		in, got, err := k.Planned(t.Context(), request(id, "a"))
		if err != nil || got != planned || in > about || in < about-10*time.Minute || in < 0 {
			t.Errorf("%q: %v, %v, %v, want %v, %v", id, in, got, err, about, planned)
		}
	}
	wantWaiting := func(want int) {
		t.Helper()
		if n, err := k.Delayed(t.Context()); err != nil || n != want {
			t.Errorf("%d events wait, %v, want %d", n, err, want)
		}
	}
	wantWaiting(0)
	want("unknown", false, 0)
	for i, ago := range []time.Duration{3 * time.Hour, time.Hour, 10 * time.Minute, 0} { // and back in 20 minutes
		k.clock.set(time.Now().Add(-ago))
		k.delay(postponed(request(fmt.Sprint("e", i), "a")), mostDelayed, ComesBack)
	}
	want("e0", false, 0)
	want("e1", true, 0)
	want("e2", true, 11*time.Minute)
	want("e3", true, 21*time.Minute)
	want("unknown", false, 0)
	wantWaiting(2)

	server.CLI("SET", k.keys.delayed, "text")
	if _, planned, err := k.Planned(t.Context(), request("e1", "a")); planned || !errors.Is(err, ErrRefused) {
		t.Errorf("of a key of the wrong type: %v, %v", planned, err)
	}
	if n, err := k.Delayed(t.Context()); n != 0 || !errors.Is(err, ErrRefused) {
		t.Errorf("of a key of the wrong type: %v, %v", n, err)
	}
}

func TestGateDelays(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{MostDelayed: 2})
	ask := func(id string, want DelayVerdict) {
		t.Helper()
		verdict, in, err := gate.Delay(t.Context(), postponed(request(id, "a")))
		if err != nil || verdict != want || (want == ComesBack) != (in > 0) {
			t.Errorf("%q: verdict %d in %v, %v, want %d", id, verdict, in, err, want)
		}
	}
	wantPlanned := func(id string, want bool) {
		t.Helper()
		if in, planned, err := gate.Planned(t.Context(), request(id, "a")); err != nil || planned != want || want != (in > 0) {
			t.Errorf("%q is planned: %v, %t, %v", id, in, planned, err)
		}
	}
	ask("first", ComesBack)
	ask("second", ComesBack)
	ask("third", TooMany)
	wantPlanned("first", true)
	wantPlanned("third", false)
	poll(t, "the metric of what waits", func() bool {
		gate.metrics.mu.Lock()
		defer gate.metrics.mu.Unlock()
		return gate.metrics.pending == 2
	})
	gate.lose(server)
	if verdict, _, err := gate.Delay(t.Context(), postponed(request("fourth", "a"))); verdict != 0 || !errors.Is(err, ErrUnavailable) {
		t.Errorf("without Redis: verdict %d, %v", verdict, err)
	}
	if _, planned, err := gate.Planned(t.Context(), request("first", "a")); planned || !errors.Is(err, ErrUnavailable) {
		t.Errorf("without Redis it is planned: %t, %v", planned, err)
	}
	server.Restart()
	gate.until(answering)
	wantPlanned("first", true)
	ask("first", ComesBack)
	ask("fourth", TooMany)
}

func TestGateThatDelaysNothing(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{})
	if verdict, _, err := gate.Delay(t.Context(), postponed(request("e", "a"))); verdict != TooMany || err != nil {
		t.Errorf("verdict %d, %v, want %d", verdict, err, TooMany)
	}
}
