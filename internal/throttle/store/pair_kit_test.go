package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// testPairTTL is longer than the retention, as in production.
const testPairTTL = 24 * time.Hour

func pairSettings(t testing.TB) Settings {
	settings := scriptSettings(t)
	settings.Tree = newTree(t, "none", "none", "")
	settings.Flap = Flap{Changes: 4, Window: 20 * time.Minute}
	return settings
}

func (r Request) ofPair(key string) Request {
	r.Pair = r.Category + "\n" + key
	return r
}

func aboutDisk(id string) Request { return request(id, "a").ofPair("disk") }

// pairKit is a subject in Redis, with the calls that Redis alone has.
type pairKit struct {
	*Redis
	*subject
	client redis.UniversalClient
}

// newPairKit uses keys of its own on a server.
func newPairKit(t *testing.T, client redis.UniversalClient, way script.Scripting) *pairKit {
	prefix := strings.NewReplacer("/", "-", ",", "").Replace(t.Name())
	r := newRedisBy(client, prefix, way, pairSettings(t))
	return &pairKit{Redis: r, subject: subjectOf(t, r, r.d.settings), client: client}
}

// startPairKit starts a server for a pairKit.
func startPairKit(t *testing.T) *pairKit {
	_, client := startRedis(t)
	return newPairKit(t, client, script.Eval)
}

// story is a sequence of calls to a store.
type story struct {
	name string
	run  func(t *testing.T, k *pairKit)
}

// tellStories runs each story with its own store, with scripts and with functions.
func tellStories(t *testing.T, stories []story, tree *limits.Tree) {
	t.Helper()
	_, client := startRedis(t)
	for _, way := range scripttest.Ways(t) {
		for _, s := range stories {
			t.Run(string(way)+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				k := newPairKit(t, client, way)
				k.Adopt(limits.Ruleset{Tree: tree})
				s.run(t, k)
			})
		}
	}
}

// deliver decides and announces a firing event, as a limiter does.
func (k *pairKit) deliver(r Request) Lease {
	k.t.Helper()
	result, err := k.Decide(k.t.Context(), []Request{r})
	if err == nil {
		err = k.Pairs.Announce(k.t.Context(), result.Decisions)
	}
	testkit.NoError(k.t, err)
	return result.Decisions[0].Lease
}

func (k *pairKit) finish(lease Lease, receipt string) {
	k.t.Helper()
	lease.Receipt = receipt
	testkit.Must(k.Finish(k.t.Context(), []Lease{lease}))(k.t)
}

func (k *pairKit) fire(r Request, receipt string) {
	k.t.Helper()
	k.finish(k.deliver(r), receipt)
}

func (k *pairKit) resolve(r Request, want Verdict, opened string, others ...string) Decision {
	k.t.Helper()
	resolutions := testkit.Must(k.Pairs.Resolve(k.t.Context(), []Request{r}))(k.t)
	var receipts []string
	for _, message := range resolutions[0].Resolved {
		receipts = append(receipts, message.Receipt)
	}
	wanted := append([]string{opened}, others...)
	if len(receipts) == 0 { // an event that resolves nothing has no first message
		receipts = []string{""}
	}
	if got := resolutions[0]; got.Verdict != want || !slices.Equal(receipts, wanted) {
		k.t.Fatalf("%q: verdict %d with receipts %q, want %d with %q", r.ID, got.Verdict, receipts, want, wanted)
	}
	return resolutions[0]
}

// wantFields compares the fields of pairs, and checks their expiry.
func (k *pairKit) wantFields(want map[string]string) {
	k.t.Helper()
	got := k.client.HGetAll(k.t.Context(), k.d.keys.pairs("a")).Val()
	for field, value := range got {
		got[field] = shortened(value)
	}
	testkit.EqualMaps(k.t, got, want, "pairs")
	for _, field := range k.client.ZRange(k.t.Context(), k.d.keys.pairsUntil("a"), 0, -1).Val() {
		_, there := got[field]
		testkit.Check(k.t, there, "%q is to expire, and is not there", field)
	}
	testkit.Equal(k.t, int(k.client.ZCard(k.t.Context(), k.d.keys.pairsUntil("a")).Val()), len(got), "fields that expire")
	for _, key := range []string{k.d.keys.pairs("a"), k.d.keys.pairsUntil("a")} {
		if ttl := k.client.PTTL(k.t.Context(), key).Val() - scripttest.ExpiryMargin; len(got) > 0 && (ttl <= 0 || ttl > testPairTTL) {
			k.t.Errorf("%s expires after %v", key, ttl)
		}
	}
}

// shortened leaves the receipts of messages, and the event keys of deliveries, with the time at which an event comes back.
func shortened(value string) string {
	kind, rest := value[:1], value[1:]
	var parts []string
	for rest != "" {
		var version, back int64
		var key, receipt int
		var numbers string
		switch kind {
		case "=":
			words := strings.SplitAfterN(rest, " ", 12)[:11]
			_, _ = fmt.Sscan(words[9]+words[10], &key, &receipt)
			numbers = strings.Join(words, "")
			parts, rest = append(parts, rest[len(numbers)+key:][:receipt]), rest[len(numbers)+key+receipt:]
		case "~":
			_, _ = fmt.Sscanf(rest, "%d %d %d ", &version, &back, &key)
			numbers = fmt.Sprintf("%d %d %d ", version, back, key)
			part := rest[len(numbers):][:key]
			if back > 0 {
				part = fmt.Sprint(part, "@", back)
			}
			parts, rest = append(parts, part), rest[len(numbers)+key:]
			slices.Sort(parts)
		default:
			return value
		}
	}
	return kind + strings.Join(parts, ",")
}

func (k *pairKit) restore(admissions ...Admission) {
	k.t.Helper()
	testkit.Must(k.Restore(k.t.Context(), admissions, time.Now()))(k.t)
}

// repeat asks about a repetition of a firing event.
func (k *pairKit) repeat(r Request, want int64) {
	k.t.Helper()
	testkit.EqualSlices(k.t, testkit.Must(k.Pairs.Repeated(k.t.Context(), []Request{r}))(k.t), []int64{want}, "answer about %s", r.ID)
}

// postponed returns an event denied by the limit 10/30m of path a. The next slot opens in 20 minutes.
func postponed(r Request) Postponement {
	return Postponement{
		Request: r, Wait: 20 * time.Minute, Longest: 4 * time.Hour, Node: limits.Node{Path: "a"}, Limit: limits.Limit{Count: 10, Window: 30 * time.Minute},
	}
}

// comeBack returns the same event after its wait.
func (p Postponement) comeBack() Postponement {
	p.HasWaited = true
	return p
}

func inQueue(n int, category string) Postponement {
	return postponed(request(fmt.Sprint("e", n), category).inMessage(uint64(n + 1)))
}

const mostDelayed = 1000

// delay plans the return of an event, compares the verdict, and returns the wait.
func (k *pairKit) delay(p Postponement, most int, want DelayVerdict) time.Duration {
	k.t.Helper()
	verdict, in, err := k.Queues.Delay(k.t.Context(), p, most)
	testkit.NoError(k.t, err)
	testkit.Require(k.t, verdict == want && (want == ComesBack) == (in > 0), "%q: verdict %d in %v, want %d", p.ID, verdict, in, want)
	return in
}

// delays plans the return of events, and compares the wait of each.
func (k *pairKit) delays(want []time.Duration, postponements ...Postponement) {
	k.t.Helper()
	for i, p := range postponements {
		testkit.Equal(k.t, k.delay(p, mostDelayed, ComesBack), want[i], "%s comes back in", p.ID)
	}
}

func (k *pairKit) leaves(postponements ...Postponement) {
	k.t.Helper()
	testkit.NoError(k.t, k.Queues.Leave(k.t.Context(), requestsOf(postponements)))
}

func requestsOf(postponements []Postponement) []Request {
	requests := make([]Request, len(postponements))
	for i, p := range postponements {
		requests[i] = p.Request
	}
	return requests
}

// waits compares how long events have to wait for events before them.
func (k *pairKit) waits(want []time.Duration, postponements ...Postponement) {
	k.t.Helper()
	requests := requestsOf(postponements)
	turns := testkit.Must(k.Queues.Turns(k.t.Context(), requests))(k.t)
	for i, turn := range turns {
		testkit.Equal(k.t, turn.Wait, want[i], "wait of %s for others", requests[i].ID)
	}
}

func (k *pairKit) awaiting(back time.Duration, p Postponement) string {
	return fmt.Sprintf("%s@%d", p.eventKey(), k.clock.Read().Add(back).UnixMicro())
}

// wantDelayed compares the events in the room and in the queue of path a.
func (k *pairKit) wantDelayed(room, queue []string) {
	k.t.Helper()
	remembered := k.client.ZRange(k.t.Context(), k.d.keys.room("a"), 0, -1).Val()
	slices.Sort(remembered)
	testkit.EqualSlices(k.t, remembered, room, "events that the room remembers")
	stand := k.client.ZRange(k.t.Context(), k.d.keys.queue("a", "a"), 0, -1).Val()
	for i, member := range stand {
		stand[i] = member[strings.LastIndex(member, " ")+1:]
	}
	testkit.EqualSlices(k.t, stand, queue, "the queue")
}

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
