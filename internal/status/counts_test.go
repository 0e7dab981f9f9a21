package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Counts leave the last minute after sixty seconds, and the last hour after sixty minutes.
func TestCounts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	c := NewCounts()
	c.clock = func() time.Time { return now }
	c.Event("sent", 3)
	c.Event("dropped", 2)
	c.Event("folded", 4)
	c.Event("duplicate", 1)
	c.Event("expired", 1)
	c.Delay("payments", "category")
	c.Denied("payments", "category", 1)
	c.Took("#alerts")
	c.Digest("#alerts")
	c.Call(3 * time.Millisecond)
	c.Call(2 * time.Millisecond)
	c.InFlight(3)
	c.InFlight(-1)
	digest := now

	want := func(perMinute Rates, minutes int, denied, taken int64, slowest time.Duration) {
		t.Helper()
		got := c.Now()
		testkit.Equal(t, got.PerMinute, perMinute, "events of the last minute")
		testkit.Equal(t, len(got.Minutes), minutes, "minutes")
		testkit.Equal(t, got.Denials[Denial{"payments", "category"}], denied, "denials")
		testkit.Equal(t, got.Taken["#alerts"], taken, "messages taken")
		testkit.Equal(t, got.SlowestCall, slowest, "the slowest call")
		testkit.Equal(t, got.Digests["#alerts"], digest, "the last digest")
		testkit.Equal(t, got.InHand, 2, "events in hand")
	}
	first := Rates{Sent: 3, Dropped: 2, Delayed: 1, Folded: 4, Other: 2}
	want(first, 1, 2, 2, 3*time.Millisecond)
	now = now.Add(50 * time.Second)
	c.Event("sent", 1)
	want(Rates{Sent: 4, Dropped: 2, Delayed: 1, Folded: 4, Other: 2}, 2, 2, 2, 3*time.Millisecond)
	testkit.EqualSlices(t, c.Now().Minutes, []Minute{
		{At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Sent: 3, Dropped: 2, Delayed: 1},
		{At: time.Date(2026, 3, 1, 12, 1, 0, 0, time.UTC), Sent: 1},
	}, "minutes")
	now = now.Add(10 * time.Second)
	want(Rates{Sent: 1}, 2, 0, 0, 0)
	now = now.Add(time.Minute)
	want(Rates{}, 2, 0, 0, 0)
	now = now.Add(58 * time.Minute)
	want(Rates{}, 1, 0, 0, 0)
	now = now.Add(time.Hour)
	want(Rates{}, 0, 0, 0, 0)
}

// A channel that nothing waits for any more is not kept.
func TestHeld(t *testing.T) {
	t.Parallel()
	c := NewCounts()
	c.Held("#a", 1)
	c.Held("#b", 1)
	c.Held("#a", 1)
	c.Held("#b", -1)
	held := c.Now().Held
	testkit.Equal(t, len(held), 1, "channels that deliveries wait for")
	testkit.Equal(t, held["#a"], 2, "deliveries that wait for #a")
}

// Producers choose categories, so the number of counts is bounded.
func TestCountsAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := NewCounts()
	c.clock = func() time.Time { return now }
	for i := range mostDenials + 10 {
		c.Denied(fmt.Sprint("category", i), "category", 1)
		c.Digest(fmt.Sprint("#channel", i))
	}
	c.Denied("category0", "category", 1)
	got := c.Now()
	testkit.Equal(t, len(got.Denials), mostDenials, "categories and levels")
	testkit.Equal(t, len(got.Digests), mostChannels, "channels with a digest")
	testkit.Equal(t, len(got.Taken), mostChannels, "channels that took messages")
	testkit.Equal(t, got.Denials[Denial{"category0", "category"}], 2, "denials of a category that is known")

	now = now.Add(time.Hour)
	for i := range mostDenials {
		c.Denied(fmt.Sprint("evil.q", i), "category", 1)
	}
	c.Denied("payments", "category", 1)
	got = c.Now()
	testkit.Equal(t, got.Denials[Denial{"payments", "category"}], 1, "denials beside a flood of paths")
	testkit.Equal(t, got.Denials[Denial{"evil", "category"}], mostDenials-mostOfFirst, "denials that are counted together")
}
