package main

import (
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Time passes in steps, from the beginning of a window on.
const (
	step     = 200 * time.Millisecond
	length   = 200 * time.Second
	delivery = 12 * time.Second
)

var beginning = time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)

// arrivals are a trickle, three times the limit around the edge of a window, a pause, and another burst that runs out
// in a trickle.
func arrivals() []time.Duration {
	var at []time.Duration
	add := func(from, every time.Duration, n int) {
		for i := range n {
			at = append(at, from+time.Duration(i)*every)
		}
	}
	add(4*time.Second, 14*time.Second, 3)
	add(48*time.Second, 800*time.Millisecond, 30)
	add(136*time.Second, 800*time.Millisecond, 20)
	add(158*time.Second, 6*time.Second, 7)
	return at
}

// run is what became of the arrivals under a limit.
type run struct {
	name     string
	limit    limits.Limit
	arrivals []arrival
	used     []int64 // at each step: slots that are taken, as the limit counts
	sent     []int64 // at each step: how many were admitted in the window that ends there
}

type arrival struct {
	at       time.Duration
	admitted bool
}

// replay evaluates the arrivals by a limit. Each admitted one is delivered for some time.
func replay(text string) (run, error) {
	parsed, err := limits.Parse(text)
	if err != nil {
		return run{}, err
	}
	tree, err := limits.NewTree(limits.Plan{Global: parsed})
	if err != nil {
		return run{}, err
	}
	var (
		r        = run{name: text, limit: parsed[0]}
		now      time.Duration
		settings = store.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour}
		memory   = store.NewMemory(settings, func() time.Time { return beginning.Add(now) }, nil)
		underWay = make(map[time.Duration][]store.Lease) // by the end of the delivery
		coming   = arrivals()
	)
	for ; now <= length; now += step {
		memory.Finish(underWay[now])
		for len(coming) > 0 && coming[0] <= now {
			decision := decide(memory, len(r.arrivals))
			admitted := decision.Verdict == store.Admitted
			if admitted {
				underWay[now+delivery] = append(underWay[now+delivery], decision.Lease)
			}
			r.arrivals = append(r.arrivals, arrival{at: now, admitted: admitted})
			coming = coming[1:]
		}
		r.used = append(r.used, memory.Usage(tree.Path(""))[0][0])
		r.sent = append(r.sent, r.admitted(now-r.limit.Window, now))
	}
	return r, nil
}

func decide(memory *store.Memory, number int) store.Decision {
	return memory.DecideOnce("", []store.Request{{
		ID: strconv.Itoa(number), Message: store.Message{Stream: "pictures", Stored: beginning}, Category: "any", Cost: 1,
	}}).Decisions[0]
}

// admitted is how many arrivals were admitted in (from, upto].
func (r run) admitted(from, upto time.Duration) int64 {
	n := int64(0)
	for _, a := range r.arrivals {
		if a.admitted && a.at > from && a.at <= upto {
			n++
		}
	}
	return n
}
