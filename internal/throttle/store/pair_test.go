package store

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pairStories are orders of the events of a pair.
var pairStories = []story{
	{"resolved", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "#ops 1.1")
		k.wantFields(map[string]string{"a\ndisk": "=#ops 1.1"})
		resolved := k.resolve(aboutDisk("resolved"), Admitted, "#ops 1.1")
		k.wantFields(map[string]string{"\nresolved": "=#ops 1.1"})
		k.finish(resolved.Lease, "#ops 2.2")
		k.wantFields(nil)
		k.resolve(aboutDisk("resolved"), Done, "")
	}},
	{"kept by a resolved event", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r1")
		k.fire(aboutDisk("firing too"), "r2")
		d := k.resolve(aboutDisk("resolved"), Admitted, "r1", "r2")
		d.Lease.Unshown = true
		k.finish(d.Lease, "")
		k.resolve(aboutDisk("resolved"), Done, "r1", "r2")
		k.resolve(aboutDisk("resolved too"), Unpaired, "")
	}},
	{"firing twice", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r1")
		k.fire(aboutDisk("firing again"), "r2")
		k.resolve(aboutDisk("resolved"), Admitted, "r1", "r2")
		k.resolve(aboutDisk("resolved too"), Unpaired, "")
	}},
	{"resolved after another lease of it has expired", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r")
		k.clock.Advance(testRetention + time.Second)
		k.deliver(aboutDisk("firing"))
		k.clock.Advance(testLease + testRetention + time.Second)
		k.finish(k.resolve(aboutDisk("resolved"), Admitted, "r").Lease, "")
		k.want(Done, aboutDisk("firing"))
	}},
	{"resolved while it is on its way", func(t *testing.T, k *pairKit) {
		firing := k.deliver(aboutDisk("firing"))
		testkit.Between(t, k.resolve(aboutDisk("resolved"), Leased, "").Wait, 1, testLease, "wait for a lease")
		k.clock.Advance(testLease + time.Second) // the message may be out
		testkit.Equal(t, k.resolve(aboutDisk("resolved"), Leased, "").Wait, time.Second, "wait for a lapsed delivery")
		k.finish(firing, "late")
		k.resolve(aboutDisk("resolved"), Admitted, "late")
	}},
	{"resolved while its slots are returned", func(_ *testing.T, k *pairKit) {
		firing := k.deliver(aboutDisk("firing"))
		k.resolve(aboutDisk("resolved"), Leased, "")
		k.refund(true, firing)
		k.resolve(aboutDisk("resolved"), Unpaired, "")
	}},
	{"resolved when nobody asks for the firing any more", func(_ *testing.T, k *pairKit) {
		k.deliver(aboutDisk("firing"))
		k.clock.Advance(testLease + testRetention - time.Second)
		k.resolve(aboutDisk("resolved"), Leased, "")
		k.clock.Advance(time.Second)
		k.resolve(aboutDisk("resolved"), Unpaired, "")
	}},
	{"open while another firing is on its way", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r1")
		again := k.deliver(aboutDisk("firing again"))
		k.resolve(aboutDisk("resolved"), Leased, "")
		k.finish(again, "r2")
		k.resolve(aboutDisk("resolved"), Admitted, "r1", "r2")
		k.wantFields(map[string]string{"\nresolved": "=r1,r2"})
	}},
	{"open for events that were stored much later", func(t *testing.T, k *pairKit) {
		stored := func(id string, after time.Duration) Request {
			r := aboutDisk(id)
			r.Message.Stored = testOrigin.Add(after)
			return r
		}
		k.fire(stored("later", 2001*time.Millisecond), "r1")
		testkit.Equal(t, k.resolve(stored("ended", 0), Unpaired, "").Awaits, true, "the pair is open for others")
		k.fire(stored("soon", 1999*time.Millisecond), "r2")
		k.finish(k.resolve(stored("ended", 0), Admitted, "r2").Lease, "")
		testkit.Equal(t, k.resolve(stored("ended again", 0), Unpaired, "").Awaits, true, "the pair is open for others")
		k.resolve(stored("ended later", 3*time.Second), Admitted, "r1")
	}},
	{"open while a later firing is on its way", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r1")
		later := k.deliver(aboutDisk("firing again").inMessage(20))
		k.resolve(aboutDisk("resolved").inMessage(10), Admitted, "r1")
		k.finish(later, "r2")
		k.resolve(aboutDisk("resolved again").inMessage(30), Admitted, "r2")
	}},
	{"stored between two firings", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("third").inMessage(30), "r3")
		k.fire(aboutDisk("first").inMessage(10), "r1")
		k.fire(aboutDisk("second").inMessage(15), "r2")
		k.resolve(aboutDisk("resolved").inMessage(20), Admitted, "r1", "r2")
		k.wantFields(map[string]string{"a\ndisk": "=r3", "\nresolved": "=r1,r2"})
		k.resolve(aboutDisk("resolved before all").inMessage(2), Admitted, "r3")
	}},
	{"more messages than are remembered", func(_ *testing.T, k *pairKit) {
		receipts := make([]string, mostPairMessages+3)
		for i := range receipts {
			receipts[i] = fmt.Sprint("r", i)
			k.fire(aboutDisk(fmt.Sprint("firing", i)), receipts[i])
		}
		k.resolve(aboutDisk("resolved"), Admitted, "r0", receipts[4:]...)
	}},
	{"repeated", func(t *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r")
		again := aboutDisk("firing").inMessage(9)
		for range 4 { // the repetitions keep the record and the pair beyond their times
			k.clock.Advance(testRetention - time.Minute)
			k.repeat(again, NotDue)
			k.want(Duplicate, again)
		}
		k.clock.Advance(testPairTTL - testRetention)
		k.repeat(again, NotDue)
		k.clock.Advance(testPairTTL - time.Hour)
		k.repeat(again, NotDue) // the record ended meanwhile, the pair is open
		k.want(Duplicate, again)
		k.clock.Advance(testRetention + time.Hour)
		k.resolve(aboutDisk("resolved"), Admitted, "r")
		k.want(Duplicate, again) // the resolved event keeps the record too
		k.repeat(again, NotDue)
		k.repeat(request("other", "a").ofPair("disk"), NotDue)
	}},
	{"reminder", func(_ *testing.T, k *pairKit) {
		k.d.settings.Remind = 4 * time.Hour
		firing := aboutDisk("a firing")
		k.fire(firing, "r1")
		k.fire(aboutDisk("a other"), "o")
		k.clock.Advance(k.d.settings.Remind - time.Second)
		k.repeat(firing.inMessage(5), NotDue)
		k.repeat(firing, Posted)
		k.clock.Advance(2 * time.Second)
		k.repeat(firing, Posted)
		k.repeat(firing.inMessage(6), 1)
		reminder := firing.inMessage(6).Reminder(1)
		lease := k.deliver(reminder)
		k.want(Duplicate, firing.inMessage(7).Reminder(1)) // another worker has another repetition
		k.repeat(firing.inMessage(6), 1)
		k.resolve(aboutDisk("resolved").inMessage(5), Leased, "") // stored before the repetition: the reminder goes with its event
		k.finish(lease, "r2")
		k.repeat(firing.inMessage(6), Posted)
		k.repeat(firing.inMessage(7), NotDue)
		k.clock.Advance(k.d.settings.Remind + time.Second)
		k.repeat(firing.inMessage(8), 2)
		k.fire(firing.inMessage(8).Reminder(2), "r3")
		k.resolve(aboutDisk("resolved").inMessage(5), Admitted, "r1", "o", "r2", "r3")
		k.clock.Advance(k.d.settings.Remind)
		k.repeat(firing.inMessage(9), NotDue)
	}},
	{"as many reminders as are remembered", func(_ *testing.T, k *pairKit) {
		k.d.settings.Remind = time.Hour
		firing := aboutDisk("a firing")
		k.fire(firing, "r")
		for n := int64(1); n < mostPairMessages; n++ {
			k.clock.Advance(time.Hour + time.Second)
			k.repeat(firing.inMessage(2), n)
			k.fire(firing.inMessage(uint64(2+n)).Reminder(n), "r")
		}
		k.clock.Advance(2 * time.Hour)
		k.repeat(firing.inMessage(2), NotDue)
	}},
	{"redelivered", func(t *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r")
		lost := k.resolve(aboutDisk("resolved"), Admitted, "r").Lease
		testkit.Between(t, k.resolve(aboutDisk("resolved"), Leased, "").Wait, 1, testLease, "wait for a lease")
		k.resolve(aboutDisk("resolved").inMessage(9), Duplicate, "")
		k.clock.Advance(testLease + time.Second)
		k.resolve(aboutDisk("other"), Unpaired, "")
		taken := k.resolve(aboutDisk("resolved"), Reclaimed, "r").Lease
		testkit.Equal(t, testkit.Must(k.Extend(t.Context(), []Lease{lost}, testLease))(t)[0].End, 0, "end of a lease that was taken over")
		extended, err := k.Extend(t.Context(), []Lease{taken}, testLease)
		testkit.Check(t, err == nil && extended[0].End > taken.End, "extended: got %+v, error %v, want an end after %d", extended, err, taken.End)
		k.release(false, extended[0])
		last := k.resolve(aboutDisk("resolved"), Reclaimed, "r").Lease
		k.finish(last, "")
		k.resolve(aboutDisk("resolved"), Done, "")
		k.resolve(aboutDisk("resolved").inMessage(9), Duplicate, "")
		k.wantFields(nil)
	}},
	{"rejected", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r")
		k.refund(true, k.resolve(aboutDisk("resolved"), Admitted, "r").Lease)
		k.resolve(aboutDisk("other"), Unpaired, "")
		k.clock.Advance(2 * testRetention)
		replayed := k.resolve(aboutDisk("resolved").inMessage(9), Reclaimed, "r") // as a replayed dead letter
		k.finish(replayed.Lease, "")
		k.wantFields(nil)
	}},
	{"recorded twice", func(_ *testing.T, k *pairKit) {
		firing := k.deliver(aboutDisk("firing"))
		k.finish(firing, "r")
		resolved := k.resolve(aboutDisk("resolved"), Admitted, "r").Lease
		k.finish(firing, "r")
		k.restore(Admission{Lease: firing, At: time.Now(), Became: WasDelivered})
		k.finish(resolved, "")
		k.finish(resolved, "")
		k.wantFields(nil)
		k.resolve(aboutDisk("other"), Unpaired, "")
	}},
	{"posted once more without Redis", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r1")
		again := Lease{Request: aboutDisk("firing").inMessage(7), Receipt: "r2"}
		for range 2 {
			k.restore(Admission{Lease: again, At: time.Now(), Became: WasDelivered})
		}
		k.finish(k.resolve(aboutDisk("resolved").inMessage(5), Admitted, "r1", "r2").Lease, "")
		k.fire(aboutDisk("firing again"), "r3")
		k.restore(Admission{Lease: again, At: time.Now(), Became: WasDelivered}) // its message is resolved already
		k.wantFields(map[string]string{"a\ndisk": "=r3"})
	}},
	{"expired", func(_ *testing.T, k *pairKit) {
		k.fire(aboutDisk("firing"), "r")
		k.fire(request("firing too", "a").ofPair("memory"), "m")
		k.clock.Advance(time.Hour)
		k.fire(request("later", "a").ofPair("net"), "n")
		k.clock.Advance(testPairTTL - time.Hour - time.Microsecond)
		k.resolve(aboutDisk("resolved"), Admitted, "r")
		k.clock.Advance(time.Second)
		k.resolve(request("resolved too", "a").ofPair("memory"), Unpaired, "")
		k.clock.Advance(testLease + time.Second)
		k.resolve(aboutDisk("resolved"), Reclaimed, "") // the receipt expired during the delivery
		k.fire(request("firing again", "a").ofPair("memory"), "m2")
		k.wantFields(map[string]string{"a\nmemory": "=m2", "a\nnet": "=n"})
	}},
	{"any receipt", func(_ *testing.T, k *pairKit) {
		receipt := "~\n=\x00\xff{\"channel\":\"C1\"}" + strings.Repeat("x", 2000)
		k.fire(aboutDisk("firing"), receipt)
		k.resolve(aboutDisk("resolved"), Admitted, receipt)
	}},
	{"a state to come", func(t *testing.T, k *pairKit) {
		expires := float64(k.clock.Read().Add(time.Hour).UnixMicro())
		k.client.HSet(t.Context(), k.d.keys.pairs("a"), "a\ndisk", "!waits")
		k.client.ZAdd(t.Context(), k.d.keys.pairsUntil("a"), redis.Z{Score: expires, Member: "a\ndisk"})
		k.resolve(aboutDisk("resolved"), Unpaired, "")
		k.fire(aboutDisk("firing"), "r")
		k.resolve(aboutDisk("resolved"), Admitted, "r")
	}},
	{"restored", func(_ *testing.T, k *pairKit) {
		now := time.Now()
		delivered := Lease{Request: aboutDisk("delivered"), Receipt: "r1"}
		again := Lease{Request: aboutDisk("delivered again"), Receipt: "r2"}
		underWay := Lease{Request: request("under way", "a").ofPair("memory")}
		k.restore(Admission{Lease: delivered, At: now, Became: WasDelivered}, Admission{Lease: again, At: now, Became: WasDelivered},
			Admission{Lease: underWay, At: now})
		k.resolve(request("later", "a").ofPair("memory"), Leased, "")
		resolved := k.resolve(aboutDisk("resolved"), Admitted, "r1", "r2")
		k.restore(Admission{Lease: resolved.Lease, At: now, Became: WasDelivered})
		k.resolve(aboutDisk("resolved"), Done, "")
		k.wantFields(map[string]string{"a\nmemory\n": "~under way"})
	}},
}

func TestPairs(t *testing.T) {
	t.Parallel()
	tellStories(t, pairStories, newTree(t, "none", "none", ""))
}

// TestUnpairedBatchIsCheap resolves a batch of pairs that nobody opened. Redis looks for all of them at once, not for one after the other.
func TestUnpairedBatchIsCheap(t *testing.T) {
	t.Parallel()
	server, client := startRedis(t)
	r := newRedis(client, "cheap", pairSettings(t))
	batch := several(MaxBatch, "r", "a")
	for i := range batch {
		batch[i] = batch[i].ofPair(batch[i].ID)
		batch[i].Resolves = true
	}
	for _, d := range testkit.Must(r.Pairs.Resolve(t.Context(), batch))(t) {
		testkit.Equal(t, d.Verdict, Unpaired, "verdict")
	}
	commands := 0
	for _, found := range regexp.MustCompile(`cmdstat_(?:hget|zscore|zmscore):calls=(\d+)`).FindAllStringSubmatch(server.CLI("INFO", "commandstats"), -1) {
		commands += testkit.Must(strconv.Atoi(found[1]))(t)
	}
	testkit.AtMost(t, commands, 20, "commands that look for something")
}

// TestResolvedEventsTakeNoSlots resolves pairs while a log and an in-flight limit are full.
func TestResolvedEventsTakeNoSlots(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	settings := pairSettings(t)
	settings.Tree = newTree(t, "2/1h+inflight:1/1h", "none", "")
	settings.Shadow = newTree(t, "2/1h+inflight:1/1h", "none", "")
	r := newRedis(client, "slots", settings)
	k := &pairKit{Redis: r, subject: subjectOf(t, r, settings), client: client}
	k.fire(aboutDisk("firing"), "r")
	k.fire(request("other", "a"), "")
	testkit.EqualDeeply(t, k.slots(""), [][]int64{{2, 0}}, "slots taken")
	logs := func() string { return k.dumps("{slots}:log", "{slots}:shadow:log", "{slots}:taken") }
	logged := logs()
	lease := k.resolve(aboutDisk("resolved"), Admitted, "r").Lease
	extended, err := k.Extend(t.Context(), []Lease{lease}, testLease)
	testkit.Require(t, err == nil && extended[0].End != 0, "extended: got %+v, error %v, want a lease", extended, err)
	k.clock.Advance(testLease + time.Second)
	lease = k.resolve(aboutDisk("resolved"), Reclaimed, "r").Lease
	k.refund(true, lease)
	lease = k.resolve(aboutDisk("resolved"), Reclaimed, "r").Lease
	k.restore(Admission{Lease: lease, At: time.Now(), Became: WasDelivered})
	client.Del(t.Context(), "{slots}:done", "{slots}:leased", "{slots}:message")
	k.restore(Admission{Lease: lease, At: time.Now(), Became: WasDelivered})
	testkit.EqualDeeply(t, k.slots(""), [][]int64{{2, 0}}, "slots taken at the end")
	testkit.Equal(t, logs(), logged, "logs at the end")
}

// TestResolveRepeatedCall repeats a call, as after a lost reply.
func TestResolveRepeatedCall(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	k.fire(aboutDisk("firing"), "r")
	events := []Request{aboutDisk("first"), aboutDisk("second"), aboutDisk("first")}
	nonce := NewNonce()
	var ends []int64
	for range 2 {
		resolutions := testkit.Must(k.Pairs.ResolveOnce(t.Context(), nonce, events))(t)
		wantVerdicts(t, resolutions, Admitted, Unpaired, Leased)
		testkit.Equal(t, resolutions[0].Opened(), "r", "receipt")
		ends = append(ends, resolutions[0].Lease.End)
		k.clock.Advance(time.Second)
	}
	testkit.Check(t, ends[0] != 0 && ends[0] == ends[1], "the leases end at %d, want one end", ends)
	k.resolve(aboutDisk("first"), Leased, "")
	k.clock.Advance(nonceKept)
	wantVerdicts(t, testkit.Must(k.Pairs.ResolveOnce(t.Context(), nonce, events[:1]))(t), Leased)
}

// TestPairsAreBounded exceeds the most pairs of a category. The pairs that expire first make room, and no pair of another category.
func TestPairsAreBounded(t *testing.T) {
	t.Parallel()
	k := startPairKit(t)
	const most, beyond, atOnce = 50_000, 1500, 1000
	_, err := k.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range most + beyond {
			field := fmt.Sprint("a\n", i)
			p.HSet(t.Context(), k.d.keys.pairs("a"), field, "=1 1 1 0 0 0 0 0 0 1 1 kr")
			p.ZAdd(t.Context(), k.d.keys.pairsUntil("a"), redis.Z{Score: float64(k.clock.Read().Add(time.Hour).UnixMicro() + int64(i)), Member: field})
		}
		return nil
	})
	testkit.NoError(t, err)
	k.fire(request("firing elsewhere", "b").ofPair("neighbour"), "n")
	k.client.ZAdd(t.Context(), k.d.keys.pairsUntil("b"), redis.Z{ // expires before all pairs of a
		Score: float64(k.clock.Read().Add(30 * time.Minute).UnixMicro()), Member: "b\nneighbour",
	})
	k.clock.Advance(time.Second)
	for i, want := range []int64{most + beyond + 1 - atOnce, most, most} {
		k.fire(request(fmt.Sprint("firing", i), "a").ofPair(fmt.Sprint("new", i)), "r")
		count, expiring := k.client.HLen(t.Context(), k.d.keys.pairs("a")).Val(), k.client.ZCard(t.Context(), k.d.keys.pairsUntil("a")).Val()
		// One call announces the firing event, another opens its pair. Each makes room.
		if want = min(want, most); count != want || expiring != want {
			t.Errorf("after %d: %d pairs, of which %d expire, want %d", i+1, count, expiring, want)
		}
	}
	k.resolve(request("resolved elsewhere", "b").ofPair("neighbour"), Admitted, "n")
	k.resolve(request("resolved", "a").ofPair(fmt.Sprint(beyond)), Unpaired, "")
	k.resolve(request("resolved", "a").ofPair(fmt.Sprint(most)), Admitted, "r")
	k.resolve(request("resolved too", "a").ofPair("new0"), Admitted, "r")
}

// TestDeliveriesOfAPairAreBounded announces and resolves many events of one key. No call looks at all of them for each event, and both stores
// remember the newest ones.
func TestDeliveriesOfAPairAreBounded(t *testing.T) {
	t.Parallel()
	const events = 6 * MaxBatch
	server, client := startRedis(t)
	settings := pairSettings(t)
	r, m := newRedis(client, "bounded", settings), newMemory(settings, time.Now, nil)
	m.KeepPairs()
	for batch := range events / MaxBatch {
		var requests, resolving []Request
		for i := range MaxBatch {
			number := batch*MaxBatch + i
			fires := aboutDisk(fmt.Sprintf("e%05d", number))
			fires.Fold.Counts, fires.Message.Stored = true, start.Add(time.Duration(number)*time.Millisecond)
			ends := aboutDisk(fmt.Sprintf("r%05d", number))
			ends.Resolves, ends.Message.Stored = true, start
			requests, resolving = append(requests, fires), append(resolving, ends)
		}
		decided := testkit.Must(r.Decide(t.Context(), requests))(t)
		testkit.NoError(t, r.Pairs.Announce(t.Context(), decided.Decisions))
		testkit.Must(r.Pairs.Resolve(t.Context(), resolving))(t)
		testkit.Must(m.Decide(t.Context(), requests))(t)
	}
	looked := regexp.MustCompile(`cmdstat_zscore:calls=(\d+)`).FindStringSubmatch(server.CLI("INFO", "commandstats"))
	testkit.AtMost(t, testkit.Must(strconv.Atoi(looked[1]))(t), 10*events, "looks for leases")
	kept := client.HGet(t.Context(), r.d.keys.pairs("a"), aboutDisk("").Pair+"\n").Val()
	testkit.Equal(t, strings.Count(kept, " e"), mostDeliveries, "events that are being delivered, in Redis")
	testkit.Equal(t, len(m.pairs.deliveries(aboutDisk("").Pair, math.MinInt64)), mostDeliveries, "events that are being delivered, in memory")
	testkit.Contains(t, "the newest", kept, fmt.Sprintf(" e%05d", events-1), fmt.Sprintf(" e%05d", events-mostDeliveries))
}

// TestRestoredTogether restores two events of a key that are being delivered in one call. A resolved event waits for both.
func TestRestoredTogether(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "together", pairSettings(t))
	now := time.Now()
	end := testkit.Must(r.Restore(t.Context(), []Admission{{Lease: Lease{Request: aboutDisk("one")}, At: now}, {Lease: Lease{Request: aboutDisk("two")}, At: now}}, now))(t)
	testkit.NoError(t, finish(t.Context(), r, Lease{Request: aboutDisk("two"), End: end, Receipt: "two"}))
	ends := aboutDisk("ends")
	ends.Resolves = true
	testkit.Equal(t, testkit.Must(r.Pairs.Resolve(t.Context(), []Request{ends}))(t)[0].Verdict, Leased, "the resolved event")
}

func TestDecodeResolutions(t *testing.T) {
	t.Parallel()
	events := []Request{aboutDisk("e")}
	for _, reply := range [][]any{
		{}, {int64(1)}, {int64(1), int64(1), int64(1)}, {"1", int64(1), int64(1), "r"}, {int64(1), "1", int64(1), "r"},
		{int64(1), int64(1), "1", "r"}, {int64(1), int64(1), int64(1), int64(1)}, {int64(1), int64(Denied), int64(1), ""},
		{int64(1), int64(1), int64(1), "r", "more"},
	} {
		_, err := decodeResolutions(reply, events)
		testkit.Fails(t, fmt.Sprint(reply), err, script.ErrReply)
	}
}
