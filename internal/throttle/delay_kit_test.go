package throttle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// postponed is an event that a limit of 10/30m on the path a has denied; the next slot opens in 20 minutes.
func postponed(r Request) Postponement {
	return Postponement{
		Request: r, Wait: 20 * time.Minute, Longest: 4 * time.Hour, Path: "a", Limit: limits.Limit{Count: 10, Window: 30 * time.Minute},
	}
}

// comeBack is the same event when it has waited.
func (p Postponement) comeBack() Postponement {
	p.HasWaited = true
	return p
}

// inQueue is the n-th of several events that wait.
func inQueue(n int, category string) Postponement {
	return postponed(request(fmt.Sprint("e", n), category).inMessage(uint64(n + 1)))
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

// delays plans the return of events, and checks in what time each comes.
func (k *pairKit) delays(want []time.Duration, postponements ...Postponement) {
	k.t.Helper()
	for i, p := range postponements {
		testkit.Equal(k.t, k.delay(p, mostDelayed, ComesBack), want[i], "%s comes back in", p.ID)
	}
}

// leaves takes events out of their queues.
func (k *pairKit) leaves(postponements ...Postponement) {
	k.t.Helper()
	requests := make([]Request, len(postponements))
	for i, p := range postponements {
		requests[i] = p.Request
	}
	testkit.NoError(k.t, k.leave(k.t.Context(), requests))
}

// waits checks how long events have to wait for others before they may be evaluated.
func (k *pairKit) waits(want []time.Duration, postponements ...Postponement) {
	k.t.Helper()
	requests := make([]Request, len(postponements))
	for i, p := range postponements {
		requests[i] = p.Request
	}
	turns := testkit.Must(k.turns(k.t.Context(), requests))(k.t)
	for i, turn := range turns {
		if turn.wait != want[i] {
			k.t.Errorf("%s waits %v for others, want %v", requests[i].ID, turn.wait, want[i])
		}
	}
}

func (k *pairKit) awaiting(back time.Duration, id string) string {
	return fmt.Sprintf("@%d %s", k.clock.Read().Add(back).UnixMicro(), id)
}

// wantDelayed checks which events are remembered in the room, and which stand in the queue of a path.
func (k *pairKit) wantDelayed(room, queue []string) {
	k.t.Helper()
	remembered := k.client.ZRange(k.t.Context(), k.keys.room("a"), 0, -1).Val()
	if slices.Sort(remembered); !slices.Equal(remembered, room) {
		k.t.Errorf("the room remembers %q, want %q", remembered, room)
	}
	stand := k.client.ZRange(k.t.Context(), k.keys.queue("a", "a"), 0, -1).Val()
	for i, member := range stand {
		stand[i] = member[strings.LastIndex(member, " ")+1:]
	}
	testkit.EqualSlices(k.t, stand, queue, "the queue")
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
