package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// delayStories have the limit 10/30m for each first-level category, unless they adopt other limits.
var delayStories = []story{
	{"in order, as many as a window has slots, a little apart", func(_ *testing.T, k *pairKit) {
		opens := k.clock.Read().Add(20 * time.Minute)
		for i := range 25 {
			p := inQueue(i, "a")
			p.Wait = opens.Sub(k.clock.Read())
			k.delays([]time.Duration{p.Wait + time.Duration(i/10)*30*time.Minute + time.Duration(i%10)*time.Second}, p)
			k.clock.Advance(time.Duration(i*337) * time.Millisecond)
		}
	}},
	{"in the order in which they were stored, whoever is planned first", func(_ *testing.T, k *pairKit) {
		k.delays([]time.Duration{20 * time.Minute, 20*time.Minute + time.Second}, inQueue(4, "a"), inQueue(7, "a"))
		k.delays([]time.Duration{20*time.Minute + time.Second}, inQueue(5, "a")) // event 7 learns of event 5 when it comes back
		earlier := inQueue(9, "a")
		earlier.Message.Stored = start.Add(-time.Millisecond)
		k.delays([]time.Duration{20 * time.Minute}, earlier)
		k.clock.Advance(20 * time.Minute)
		first, second, third, last := earlier.comeBack(), inQueue(4, "a").comeBack(), inQueue(5, "a").comeBack(), inQueue(7, "a").comeBack()
		k.waits([]time.Duration{0, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond}, first, second, third, last)
		k.leaves(first)
		k.waits([]time.Duration{0, 250 * time.Millisecond}, second, last)
		second.Wait = time.Minute
		k.delays([]time.Duration{time.Minute}, second) // it was denied
		k.waits([]time.Duration{0, time.Minute, time.Minute}, second, third, last)
		third.Wait, last.Wait = time.Minute, time.Minute
		k.delays([]time.Duration{61 * time.Second, 62 * time.Second}, third, last)
	}},
	{"behind events that have slots too", func(_ *testing.T, k *pairKit) {
		for text, want := range map[string][]time.Duration{ // these limits have just replaced a full limit of another algorithm
			"token:8/40m": {
				time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second,
				5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 20 * time.Minute,
			},
			"counter:8/40m": {time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second},
		} {
			tree := newTree(k.t, "none", text, "")
			k.Adopt(limits.Ruleset{Tree: tree})
			k.deliver(request(text, "a").withCost(3))
			path := tree.Path("a")
			var all []Postponement
			for i, in := range want {
				p := inQueue(i, "a")
				p.Wait, p.Limit = time.Second, path[len(path)-1].Limits[0]
				testkit.Equal(k.t, k.delay(p, mostDelayed, ComesBack).Round(time.Millisecond), in, "%s: %s comes back in", text, p.ID)
				all = append(all, p.comeBack())
			}
			k.leaves(all...)
		}
	}},
	{"by cost", func(_ *testing.T, k *pairKit) {
		costs := func(costs ...int) (all []Postponement) {
			for i, cost := range costs {
				p := inQueue(i, "a")
				p.Cost, p.Wait, p.Limit = cost, time.Second, limits.Limit{Count: 4, Window: 2 * time.Second}
				all = append(all, p)
			}
			return all
		}
		k.delays([]time.Duration{time.Second, 3 * time.Second, 5 * time.Second, 7 * time.Second}, costs(4, 4, 4, 4)...)
		k.leaves(costs(4, 4, 4, 4)...)
		k.delays([]time.Duration{
			time.Second, 1500 * time.Millisecond, 3500 * time.Millisecond, 4 * time.Second, 5500 * time.Millisecond, 7500 * time.Millisecond,
		}, costs(1, 3, 2, 2, 1, 4)...)
	}},
	{"behind the slots that are taken now", func(_ *testing.T, k *pairKit) {
		k.Adopt(limits.Ruleset{Tree: newTree(k.t, "none", "3/1m", "")})
		for i, at := range []time.Duration{0, 10 * time.Second, 25 * time.Second} {
			k.clock.Set(start.Add(at))
			k.deliver(request(fmt.Sprint("taken", i), "a"))
		}
		k.clock.Set(start.Add(30 * time.Second))
		var all []Postponement
		for i := range 7 {
			p := inQueue(i, "a")
			p.Wait, p.Limit = 30*time.Second, limits.Limit{Count: 3, Window: time.Minute}
			all = append(all, p)
		}
		k.delays([]time.Duration{
			30 * time.Second, 40 * time.Second, 55 * time.Second, 90 * time.Second, 100 * time.Second, 115 * time.Second, 150 * time.Second,
		}, all...)
	}},
	{"behind an event that has just taken its slot, and has not left its queue", func(_ *testing.T, k *pairKit) {
		k.Adopt(limits.Ruleset{Tree: newTree(k.t, "none", "2/1m", "")})
		first, second := inQueue(0, "a"), inQueue(1, "a")
		for _, p := range []*Postponement{&first, &second} {
			p.Wait, p.Limit = time.Second, limits.Limit{Count: 2, Window: time.Minute}
		}
		k.delays([]time.Duration{time.Second, 2 * time.Second}, first, second)
		k.clock.Advance(time.Second)
		lease := k.deliver(first.comeBack().Request)
		k.delays([]time.Duration{time.Second}, second.comeBack())
		k.finish(lease, "r")
		k.delays([]time.Duration{time.Second}, second.comeBack())
	}},
	{"by algorithm", func(_ *testing.T, k *pairKit) {
		type kind struct {
			algorithm algorithm.Algorithm
			costs     []int
			want      []time.Duration
		}
		const second = time.Second
		for i, kind := range []kind{
			{algorithm.LeakyBucket, []int{1, 1, 3, 1}, []time.Duration{second, 2 * second, 3 * second, 6 * second}},
			{algorithm.TokenBucket, []int{1, 1, 3, 1}, []time.Duration{second, 2 * second, 5 * second, 6 * second}},
			{algorithm.SlidingCounter, []int{1, 2, 1, 3}, []time.Duration{second, 2 * second, 3 * second, 6 * second}},
			{algorithm.InFlight, []int{1, 2, 4, 4}, []time.Duration{second, 2 * second, 3 * second, 4 * second}},
			{algorithm.FixedWindow, []int{2, 2, 1, 4, 1, 4}, []time.Duration{second, 2 * second, 4 * second, 8 * second, 12 * second, 16 * second}},
		} {
			path := fmt.Sprint("a.", i)
			var all []Postponement
			for n, cost := range kind.costs {
				p := inQueue(n, path)
				p.Cost, p.Node.Path, p.Wait = cost, path, second
				p.ID, p.Limit = path+p.ID, limits.Limit{Count: 4, Window: 4 * second, Algorithm: kind.algorithm}
				all = append(all, p)
			}
			k.delays(kind.want, all...)
		}
	}},
	{"many ahead", func(t *testing.T, k *pairKit) {
		limit := limits.Limit{Count: 600, Window: time.Hour}
		for i := range 1300 {
			p := inQueue(i, "a")
			p.Limit = limit
			want := p.Wait + time.Duration(i/600)*time.Hour + time.Duration(i%600)*time.Second
			in := k.delay(p, 5000, ComesBack)
			testkit.Require(t, in == want, "event %d comes back in %v, want %v", i, in, want)
		}
	}},
	{"as time goes on", func(_ *testing.T, k *pairKit) {
		var all []Postponement
		for i := range 20 {
			all = append(all, inQueue(i, "a"))
			k.delay(all[i], mostDelayed, ComesBack)
		}
		k.clock.Advance(20*time.Minute + 10*time.Second) // the first ten events are back and took the slots
		k.leaves(all[:10]...)
		p := inQueue(20, "a")
		p.Wait = 30 * time.Minute
		k.delays([]time.Duration{p.Wait + 30*time.Minute - 10*time.Second}, p)
	}},
	{"many slots in a short window", func(_ *testing.T, k *pairKit) {
		for i := range 30 {
			p := inQueue(i, "a")
			p.Wait, p.Limit = time.Second, limits.Limit{Count: 10, Window: 100 * time.Millisecond}
			k.delays([]time.Duration{p.Wait + time.Duration(i/10)*100*time.Millisecond + time.Duration(i%10)*10*time.Millisecond}, p)
		}
	}},
	{"paths of their own", func(_ *testing.T, k *pairKit) {
		for _, category := range []string{"a.b", "c.d"} { // each first-level category has its own queue at the root
			for _, path := range []string{"", category[:1], category} {
				for i := range 3 {
					p := inQueue(i, category)
					p.ID += path
					p.Node.Path = path
					k.delays([]time.Duration{p.Wait + time.Duration(i)*time.Second}, p)
				}
			}
		}
	}},
	{"another path", func(_ *testing.T, k *pairKit) {
		k.Adopt(limits.Ruleset{Tree: newTree(k.t, "1/1h", "1/1h", "a.b=1/1h")})
		first, second := inQueue(0, "a.b"), inQueue(1, "a.b")
		k.delays([]time.Duration{first.Wait, first.Wait + time.Second}, first, second)
		k.clock.Advance(first.Wait)
		first = first.comeBack()
		first.Node.Path, first.Wait = "a.b", time.Hour
		k.delays([]time.Duration{time.Hour}, first)
		for path, want := range map[string]int64{"a": 1, "a.b": 1} {
			testkit.Equal(k.t, k.client.ZCard(k.t.Context(), k.d.keys.queue("a", path)).Val(), want, "events wait at %s", path)
		}
		k.waits([]time.Duration{0, time.Hour, time.Hour}, first, second, inQueue(2, "a.b")) // a new event waits too
		k.waits([]time.Duration{time.Second, 0}, inQueue(2, "a"), inQueue(2, "b"))
	}},
	{"what is known waits for nobody", func(_ *testing.T, k *pairKit) {
		known, done := inQueue(5, "a"), inQueue(6, "a")
		k.deliver(known.Request)
		k.fire(done.Request, "")
		k.delay(inQueue(0, "a"), mostDelayed, ComesBack)
		k.waits([]time.Duration{0, 0, 20 * time.Minute}, known, done, inQueue(7, "a"))
	}},
	{"who does not come back", func(_ *testing.T, k *pairKit) {
		k.Adopt(limits.Ruleset{Tree: newTree(k.t, "none", "10/30m", "b=100/1s")})
		fast := inQueue(0, "b")
		fast.Node.Path, fast.Limit = "b", limits.Limit{Count: 100, Window: time.Second}
		for _, p := range []Postponement{inQueue(0, "a"), fast} {
			in := k.delay(p, mostDelayed, ComesBack)
			next := inQueue(1, p.Category)
			k.waits([]time.Duration{in}, next)
			k.clock.Advance(in)
			if p.Category == "b" {
				k.waits([]time.Duration{0}, next) // a limit with many slots needs no order
				continue
			}
			k.clock.Advance(orderedWait - time.Microsecond)
			k.waits([]time.Duration{250 * time.Millisecond}, next)
			k.clock.Advance(time.Microsecond)
			k.waits([]time.Duration{0}, next)
		}
	}},
	{"bound of each first-level category", func(_ *testing.T, k *pairKit) {
		elsewhere := func(id, category string) Postponement {
			p := postponed(request(id, category))
			p.Node.Path = category
			return p
		}
		k.delay(postponed(request("none", "a")), 0, TooMany)
		in := k.delay(postponed(request("first", "a")), 2, ComesBack)
		k.delay(elsewhere("second", "a.b"), 2, ComesBack)
		keys := []string{k.d.keys.room("a"), k.d.keys.queue("a", "a"), k.d.keys.queue("a", "a.b"), k.d.keys.queue("a", "a.c")}
		before := k.dumps(keys...)
		k.delay(postponed(request("third", "a")), 2, TooMany)
		k.delay(elsewhere("third", "a.c"), 2, TooMany)
		testkit.Equal(k.t, k.dumps(keys...), before, "keys after calls that change nothing")
		k.delay(elsewhere("neighbour", "b"), 2, ComesBack)
		k.delay(elsewhere("neighbour too", "b"), 2, ComesBack)
		k.delay(postponed(request("first", "a")), 2, ComesBack) // it waits already
		k.delay(postponed(request("of before", "a")).comeBack(), 2, ComesBack)
		k.clock.Advance(in)
		k.delay(postponed(request("third", "a")), 1, TooMany) // events that are late still count
		k.clock.Advance(time.Hour)
		k.delay(postponed(request("third", "a")), 1, ComesBack)
	}},
	{"large ones, and what waits for something else", func(_ *testing.T, k *pairKit) {
		large := postponed(request("large", "a.b"))
		large.Weight = 3
		k.delay(large, 2, TooMany)
		in := k.delay(large, 5, ComesBack)
		k.delay(large, 5, ComesBack)
		stays := []Stay{{First: "a", Member: "one", Weight: 2, For: 2 * in}, {First: "a", Member: "two", Weight: 1, For: in}}
		testkit.EqualSlices(k.t, testkit.Must(k.Queues.EnterRoom(k.t.Context(), stays, 5))(k.t), []bool{true, false}, "may enter the room")
		k.delay(postponed(request("one more", "a")), 5, TooMany)
		k.clock.Advance(in)
		k.delay(postponed(request("one more", "a")), 5, ComesBack)
	}},
	{"large ones that leave early", func(_ *testing.T, k *pairKit) {
		large, next := postponed(request("large", "a")), postponed(request("next", "a"))
		large.Weight, next.Weight = 3, 3
		k.delay(large, 3, ComesBack)
		k.delay(next, 3, TooMany)
		k.leaves(large)
		k.delay(next, 3, ComesBack)
		next.Longest = 0 // an operator drops it
		k.delay(next.comeBack(), 3, TooLate)
		k.delay(large, 3, ComesBack)
		soon := []Stay{large.Stay(3, time.Millisecond)} // it is planned anew
		testkit.EqualSlices(k.t, testkit.Must(k.Queues.EnterRoom(k.t.Context(), soon, 3))(k.t), []bool{true}, "may stay")
		k.clock.Advance(time.Second)
		k.delay(postponed(request("after it", "a")), 1, ComesBack)
	}},
	{"too late", func(_ *testing.T, k *pairKit) {
		at := func(path string, n int, longest time.Duration) Postponement {
			p := inQueue(n, path)
			p.ID += path
			p.Node.Path, p.Longest = path, longest
			return p
		}
		in := k.delay(at("a", 1, 4*time.Hour), mostDelayed, ComesBack)
		k.delay(at("b", 1, in-time.Microsecond), mostDelayed, TooLate)
		k.delay(at("b", 2, -time.Second), mostDelayed, TooLate)
		k.delay(at("b", 3, in), mostDelayed, ComesBack)
		k.delay(at("a", 4, in), mostDelayed, TooLate) // behind another
		k.delay(at("a", 0, in), mostDelayed, ComesBack)
		k.delay(at("a", 1, in-time.Microsecond).comeBack(), mostDelayed, TooLate)
		testkit.Equal(k.t, k.client.ZCard(k.t.Context(), k.d.keys.queue("a", "a")).Val(), 1, "events in the queue")
		k.delay(at("b", 5, in+time.Second), 1, TooMany)
	}},
	{"the same call again", func(_ *testing.T, k *pairKit) {
		p := postponed(aboutDisk("e"))
		in := k.delay(p, mostDelayed, ComesBack)
		keys := []string{k.d.keys.room("a"), k.d.keys.queue("a", "a"), k.d.keys.pairs("a"), k.d.keys.pairsUntil("a")}
		before := k.dumps(keys...)
		k.clock.Advance(5 * time.Second)
		testkit.Equal(k.t, k.delay(p, mostDelayed, ComesBack), in-5*time.Second, "after 5s the event comes back in")
		testkit.Equal(k.t, k.dumps(keys...), before, "keys after calls that change nothing")
	}},
	{"another message with its ID", func(_ *testing.T, k *pairKit) {
		p := postponed(request("e", "a"))
		again := p
		again.Request = p.inMessage(9)
		in := k.delay(p, mostDelayed, ComesBack)
		k.delay(again, mostDelayed, AlreadyWaiting)
		again.Longest = 0
		k.delay(again, mostDelayed, AlreadyWaiting)
		k.clock.Advance(in)
		again.Longest = p.Longest
		k.leaves(p)
		k.delay(again, mostDelayed, ComesBack) // p came back and was not admitted
		k.delay(p, mostDelayed, AlreadyWaiting)
	}},
	{"a dead letter that is replayed asks anew", func(_ *testing.T, k *pairKit) {
		p := inQueue(1, "a")
		p.Longest = p.Wait
		in := k.delay(p, mostDelayed, ComesBack)
		k.clock.Advance(in)
		k.leaves(p.comeBack()) // p was admitted, and Slack rejected its message
		k.clock.Advance(time.Minute)
		k.delays([]time.Duration{in}, p)
		k.clock.Advance(in + 2*time.Hour)
		k.delays([]time.Duration{in}, p)
	}},
	{"derived IDs", func(_ *testing.T, k *pairKit) {
		k.delay(postponed(derived(1, start, "a")), mostDelayed, ComesBack)
		k.delay(postponed(derived(1, start, "a")), mostDelayed, ComesBack)
		k.delay(postponed(derived(1, start.Add(time.Hour), "a")), mostDelayed, ComesBack) // from another stream of that name
		testkit.Equal(k.t, k.client.ZCard(k.t.Context(), k.d.keys.queue("a", "a")).Val(), 2, "messages wait")
	}},
	{"what came back is forgotten in time", func(_ *testing.T, k *pairKit) {
		in := k.delay(inQueue(1, "a"), mostDelayed, ComesBack)
		for _, key := range []string{k.d.keys.room("a"), k.d.keys.queue("a", "a")} {
			kept := k.client.PTTL(k.t.Context(), key).Val() - scripttest.ExpiryMargin
			testkit.Between(k.t, kept, in+1, in+time.Hour+time.Millisecond, "time for which %s is kept", key)
		}
		k.clock.Advance(in + time.Hour - time.Microsecond)
		k.delay(inQueue(2, "a"), mostDelayed, ComesBack)
		k.wantDelayed([]string{"e1", "e2"}, []string{"e2"})
		k.clock.Advance(time.Microsecond)
		k.delay(inQueue(3, "a"), mostDelayed, ComesBack)
		k.wantDelayed([]string{"e2", "e3"}, []string{"e2", "e3"})
	}},

	{"a resolved event waits for what comes back", func(t *testing.T, k *pairKit) {
		p := postponed(aboutDisk("firing"))
		in := k.delay(p, mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk\n": "~" + k.awaiting(in, postponed(aboutDisk("firing")))})
		k.clock.Advance(time.Minute)
		testkit.Equal(t, k.resolve(aboutDisk("resolved"), Leased, "").Wait, in-time.Minute, "wait for the delayed event")
		k.clock.Advance(in - time.Minute)
		testkit.Equal(t, k.resolve(aboutDisk("resolved"), Leased, "").Wait, time.Second, "wait for the late event")
		firing := k.deliver(p.comeBack().Request)
		k.wantFields(map[string]string{"a\ndisk\n": "~firing"})
		testkit.Between(t, k.resolve(aboutDisk("resolved"), Leased, "").Wait, 1, testLease, "wait for a lease")
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
		k.clock.Advance(k.delay(p, mostDelayed, ComesBack))
		in := k.delay(p.comeBack(), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk\n": "~" + k.awaiting(in, postponed(aboutDisk("firing")))})
		k.clock.Advance(in)
		k.resolve(aboutDisk("resolved"), Leased, "")
		late := p.comeBack()
		late.Longest = time.Minute
		k.delay(late, mostDelayed, TooLate)
		k.wantFields(nil)
		k.resolve(aboutDisk("resolved"), Unpaired, "")
	}},
	{"waits under a derived ID", func(_ *testing.T, k *pairKit) {
		p := postponed(derived(7, start, "a").ofPair("disk"))
		k.clock.Advance(k.delay(p, mostDelayed, ComesBack))
		in := k.delay(p.comeBack(), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk\n": "~" + k.awaiting(in, p)})
		k.clock.Advance(in)
		late := p.comeBack()
		late.Longest = 0
		k.delay(late, mostDelayed, TooLate)
		k.wantFields(nil)
	}},
	{"never comes back", func(_ *testing.T, k *pairKit) {
		in := k.delay(postponed(aboutDisk("firing")), mostDelayed, ComesBack)
		k.clock.Advance(in + time.Hour - time.Microsecond)
		k.resolve(aboutDisk("resolved"), Leased, "")
		k.clock.Advance(time.Microsecond)
		k.resolve(aboutDisk("resolved"), Unpaired, "")
	}},
	{"another event of the pair waits", func(_ *testing.T, k *pairKit) {
		in := k.delay(postponed(aboutDisk("first")), mostDelayed, ComesBack)
		first := k.awaiting(in, postponed(aboutDisk("first")))
		in = k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk\n": "~" + first + "," + k.awaiting(in, postponed(aboutDisk("second")))})
		want := map[string]string{"a\ndisk\n": "~" + first}
		late := postponed(aboutDisk("second")).comeBack()
		late.Longest = 0
		k.delay(late, mostDelayed, TooLate)
		k.delay(postponed(aboutDisk("third")), 1, TooMany)
		k.wantFields(want)
	}},
	{"a reminder is delivered after its wait", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r1")
		p := postponed(aboutDisk("firing").inMessage(5))
		k.clock.Advance(k.delay(p, mostDelayed, ComesBack))
		k.resolve(aboutDisk("resolved").inMessage(9), Leased, "")
		reminder := k.deliver(p.comeBack().Reminder(1))
		k.resolve(aboutDisk("resolved").inMessage(9), Leased, "") // the reminder is being delivered
		k.finish(reminder, "r2")
		k.resolve(aboutDisk("resolved").inMessage(9), Admitted, "r1", "r2")
	}},
	{"a reminder is delivered while another message of its event waits", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r1")
		p := postponed(aboutDisk("firing").inMessage(5))
		k.clock.Advance(k.delay(p, mostDelayed, ComesBack))
		k.fire(aboutDisk("firing").inMessage(6).Reminder(1), "r2")
		k.resolve(aboutDisk("resolved").inMessage(9), Leased, "")
		ends := p.comeBack()
		ends.Longest = 0
		k.delay(ends, mostDelayed, TooLate)
		k.resolve(aboutDisk("resolved").inMessage(9), Admitted, "r1", "r2")
	}},
	{"another message with its ID waits on", func(_ *testing.T, k *pairKit) {
		first, second := postponed(aboutDisk("firing")), postponed(aboutDisk("firing"))
		second.Message.Sequence++
		k.clock.Advance(k.delay(first, mostDelayed, ComesBack))
		in := k.delay(second, mostDelayed, ComesBack) // it came before the first one was decided again
		want := map[string]string{"a\ndisk\n": "~" + k.awaiting(in, second)}
		k.wantFields(want)
		ends := first.comeBack()
		ends.Longest = 0
		k.delay(ends, mostDelayed, TooLate)
		k.wantFields(want)
		k.resolve(aboutDisk("resolved"), Leased, "")
	}},
	{"the pair is open", func(t *testing.T, k *pairKit) {
		k.fire(aboutDisk("first"), "r")
		in := k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		testkit.Equal(t, k.resolve(aboutDisk("resolved"), Leased, "").Wait, in, "wait for the event that will have a message too")
		earlier := aboutDisk("resolved before")
		earlier.Message.Stored = earlier.Message.Stored.Add(-time.Second)
		k.finish(k.resolve(earlier, Admitted, "r").Lease, "")
		k.fire(aboutDisk("third"), "r")
		late := postponed(aboutDisk("second")).comeBack()
		late.Longest = 0
		k.delay(late, mostDelayed, TooLate)
		k.resolve(aboutDisk("resolved"), Admitted, "r")
		k.wantFields(map[string]string{"\nresolved": "=r"})
	}},
	{"another event of the pair is on its way", func(_ *testing.T, k *pairKit) {
		first := k.deliver(aboutDisk("first"))
		p := postponed(aboutDisk("second"))
		k.clock.Advance(time.Second)
		in := k.delay(p, mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk\n": "~first," + k.awaiting(in, p)})
		k.finish(first, "r")
		k.resolve(aboutDisk("resolved"), Leased, "")
		k.clock.Advance(in)
		k.fire(p.comeBack().Request, "s")
		k.resolve(aboutDisk("resolved"), Admitted, "r", "s")
	}},
	{"it is folded when it comes back", func(_ *testing.T, k *pairKit) {
		p := postponed(folding("second", 1))
		in := k.delay(p, mostDelayed, ComesBack)
		k.fire(folding("first", 1), "r")
		k.clock.Advance(in)
		back := p.comeBack().Request
		back.Fold.Within = time.Hour
		k.want(Folded, back)
		k.wantFields(map[string]string{"a\ndisk": "=r"})
	}},
	{"another event of the pair was rejected", func(_ *testing.T, k *pairKit) {
		k.refund(true, k.deliver(aboutDisk("first")))
		k.clock.Advance(time.Second)
		in := k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		k.wantFields(map[string]string{"a\ndisk\n": "~first," + k.awaiting(in, postponed(aboutDisk("second")))})
		k.resolve(aboutDisk("resolved"), Leased, "")
	}},
	{"nobody delivers another event of the pair now", func(_ *testing.T, k *pairKit) {
		k.deliver(aboutDisk("first"))
		k.clock.Advance(testLease + time.Second)
		k.delay(postponed(aboutDisk("second")), mostDelayed, ComesBack)
		first := k.deliver(aboutDisk("first")) // a worker delivers it again
		k.finish(first, "r")
		k.resolve(aboutDisk("resolved"), Leased, "")
	}},
	{"it opens nothing", func(_ *testing.T, k *pairKit) {
		p := postponed(aboutDisk("neither firing nor resolved"))
		p.Resolves = true
		k.delay(p, mostDelayed, ComesBack)
		k.wantFields(nil)
	}},
}

func TestDelays(t *testing.T) {
	t.Parallel()
	tellStories(t, delayStories, newTree(t, "none", "10/30m", ""))
}

// TestDelaysOfEveryAlgorithm fills a limit of each algorithm, and plans the returns of denied events of several costs. An event that comes
// back when planned finds its slots: no event is planned too early, but for a plan that is an estimate.
func TestDelaysOfEveryAlgorithm(t *testing.T) {
	t.Parallel()
	var stories []story
	for _, a := range algorithm.All() {
		stories = append(stories, story{a.String(), func(t *testing.T, k *pairKit) {
			k.Adopt(limits.Ruleset{Tree: newTree(t, "none", a.String()+":4/4s", "")})
			underWay := []Lease{k.want(Admitted, request("filler", "a").withCost(4))[0].Lease}
			var waiting []Postponement
			var due []time.Time
			for i, cost := range []int{1, 2, 1, 3, 1, 4} {
				p := inQueue(i, "a")
				p.Cost = cost
				denial := k.want(Denied, p.Request)[0]
				p.Wait, p.Limit = denial.Wait, denial.Limit
				waiting = append(waiting, p)
				due = append(due, k.clock.Read().Add(k.delay(p, mostDelayed, ComesBack)))
				k.clock.Advance(100 * time.Millisecond)
			}
			for i, p := range waiting {
				k.clock.Set(due[i].Add(time.Millisecond)) // each call of the store takes a microsecond of this clock
				if a.Description().FollowsDelivery() {    // nobody knows when: the test ends the deliveries before the return
					for _, lease := range underWay {
						k.finish(lease, "")
					}
					underWay = nil
				}
				underWay = append(underWay, k.want(Admitted, p.comeBack().Request)[0].Lease)
				k.leaves(p)
				if a.Description().Frees == algorithm.ByEstimate {
					break
				}
			}
		}})
	}
	tellStories(t, stories, newTree(t, "none", "none", ""))
}
