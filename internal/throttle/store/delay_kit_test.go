package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

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
	if verdict != want || (want == ComesBack) != (in > 0) {
		k.t.Fatalf("%q: verdict %d in %v, want %d", p.ID, verdict, in, want)
	}
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
	return fmt.Sprintf("@%d %s", k.clock.Read().Add(back).UnixMicro(), p.queueMember())
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
