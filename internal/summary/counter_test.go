package summary

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// channelOf has a channel for each of the first levels a and b, and one for all others.
func channelOf(category string) string {
	switch first, _, _ := strings.Cut(category, "."); first {
	case "a", "b":
		return "#" + first
	default:
		return "#alerts"
	}
}

// takeCounts takes what was counted, without the number of the round.
func takeCounts(c *Counter) []Counts {
	drops, _ := c.take()
	return drops
}

func TestCounterAddsUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, begin := newCounter(channelOf), time.Now()
		c.Add([]Drop{
			{Category: "b", Level: "global", Title: "the first", N: 2},
			{Category: "b", Level: "category", Title: "another", N: 1},
			{Category: "b.c", Level: "global", N: 1},
			{Category: "b", Level: "global", Title: "another", N: 1},
			{Category: "x", Level: "unpaired", Title: "resolved", N: 4},
		})
		time.Sleep(time.Minute) // of the time of synctest
		c.Add([]Drop{{Category: "b", Level: "room", N: 10}, {Category: "x", Level: "unpaired", N: 1}})
		want := []Counts{
			{Channel: "#alerts", First: begin, Last: begin.Add(time.Minute), Unpaired: 5},
			{
				Channel: "#b", First: begin, Last: begin.Add(time.Minute),
				Groups: []Group{{Name: "b", Paths: []Path{
					{
						Path: "b", Dropped: 14, Title: "the first",
						Reasons: []Reason{{Level: "global", Dropped: 3}, {Level: "category", Dropped: 1}, {Level: "room", Dropped: 10}},
					},
					{Path: "b.c", Dropped: 1, Reasons: []Reason{{Level: "global", Dropped: 1}}},
				}}},
			},
		}
		testkit.EqualDeeply(t, takeCounts(c), want, "counts")
		testkit.EqualDeeply(t, takeCounts(c), nil, "counts that are taken twice")
	})
}

// TestCounterRoom floods one first level with paths. Its room is bounded, and a neighbour has its own room. A larger path replaces the
// smallest.
func TestCounterRoom(t *testing.T) {
	t.Parallel()
	c := newCounter(channelOf)
	const junk = 300_000
	for i := range junk {
		c.Add([]Drop{{Category: fmt.Sprint("payments.x", i), Level: "global", Title: fmt.Sprint("title ", i), N: 1}})
	}
	c.Add([]Drop{{Category: "security.login", N: 1}, {Category: "payments.real", N: 2}, {Category: "payments.real", N: 3}})
	testkit.Equal(t, len(c.paths), maxPaths+1, "paths are held")
	drops := takeCounts(c)
	if len(drops) != 1 || drops[0].Total() != junk+6 || len(drops[0].Groups) != 2 {
		t.Fatalf("%d channels, %d drops, want one and %d", len(drops), drops[0].Total(), junk+6)
	}
	payments, security := drops[0].Groups[0], drops[0].Groups[1]
	testkit.Check(t, len(payments.Paths) == maxPaths && payments.More == junk-maxPaths+1,
		"%d paths and %d more drops of payments, want %d and %d", len(payments.Paths), payments.More, maxPaths, junk-maxPaths+1)
	testkit.Check(t, slices.ContainsFunc(payments.Paths, func(p Path) bool { return p.Path == "payments.real" && p.Dropped == 5 }),
		"got %+v, want the largest path among them", payments.Paths)
	testkit.Check(t, len(security.Paths) == 1 && security.Paths[0].Dropped == 1, "security: got %+v, want one path with one drop", security)
}

func TestCounterBounds(t *testing.T) {
	t.Parallel()
	c := newCounter(channelOf)
	for i := range 2 * maxLevels {
		c.Add([]Drop{{Category: "x", Level: fmt.Sprint("level ", i), N: 1}})
	}
	for i := range maxGroups + 10 {
		c.Add([]Drop{{Category: fmt.Sprint("c", i), N: 1}, {Category: "x", N: 1}})
	}
	drops := takeCounts(c)[0]
	testkit.Check(t, len(drops.Groups) == maxGroups && drops.More == 11,
		"%d first levels, %d drops beside them, want %d and 11", len(drops.Groups), drops.More, maxGroups)
	testkit.Equal(t, drops.Total(), int64(2*maxLevels+2*(maxGroups+10)), "drops")
	testkit.Equal(t, len(drops.Groups[len(drops.Groups)-1].Paths[0].Reasons), maxLevels, "levels")
}

func TestParts(t *testing.T) {
	t.Parallel()
	whole := Counts{Channel: "#a", First: time.Unix(1, 0), Last: time.Unix(2, 0), Unpaired: 3, More: 4}
	for i := range 7 {
		group := Group{Name: fmt.Sprint("c", i), More: 1}
		for range i {
			group.Paths = append(group.Paths, Path{Dropped: 1})
		}
		whole.Groups = append(whole.Groups, group)
	}
	var total int64
	var groups []Group
	for _, part := range inParts(whole, 6) {
		paths := 0
		for _, group := range part.Groups {
			paths += len(group.Paths)
		}
		testkit.Check(t, paths <= 6 && part.Channel == whole.Channel && part.First.Equal(whole.First) && part.Last.Equal(whole.Last),
			"got the part %+v, want 6 paths at most, and the channel and times of the whole", part)
		total += part.Total()
		groups = append(groups, part.Groups...)
	}
	testkit.Check(t, total == whole.Total() && reflect.DeepEqual(groups, whole.Groups), "the parts have %d drops, want %d", total, whole.Total())
}

func TestNoCounter(t *testing.T) {
	t.Parallel()
	k := NewReporter(Options{Logger: slog.New(slog.DiscardHandler)})
	k.Counter().Add([]Drop{{Category: "a", N: 1}})
	k.Run(t.Context()) // returns
}

// TestRoundsHoldWhatIsCounted counts drops while others are taken. Each is among the counts of the round that Add has named.
func TestRoundsHoldWhatIsCounted(t *testing.T) {
	t.Parallel()
	c := newCounter(channelOf)
	const adders, drops = 8, 5000
	var counted [adders]map[int64]int64 // by round
	var adding sync.WaitGroup
	begun := make(chan struct{}) // closed when a round has been taken, so there are several rounds
	for i := range counted {
		counted[i] = make(map[int64]int64)
		adding.Go(func() {
			for n := range drops {
				if n == drops/2 {
					<-begun
				}
				counted[i][c.Add([]Drop{{Category: "a.b", Level: "category", N: 1}})]++
			}
		})
	}
	added := make(chan struct{})
	go func() { defer close(added); adding.Wait() }()
	taken := make(map[int64]int64)
	take := func() {
		if counts, round := c.take(); len(counts) > 0 {
			if taken[round] = counts[0].Total(); len(taken) == 1 {
				close(begun)
			}
		}
	}
	for isAdding := true; isAdding; {
		select {
		case <-added:
			isAdding = false
		default:
		}
		take()
	}
	want := make(map[int64]int64)
	for _, rounds := range counted {
		for round, n := range rounds {
			want[round] += n
		}
	}
	testkit.EqualMaps(t, taken, want, "drops by round")
}
