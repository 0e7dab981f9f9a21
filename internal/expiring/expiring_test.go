package expiring_test

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMap(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(func(time.Time) {})
	m := expiring.New[string, int](2, clock.Read)
	want := func(key string, want int) {
		t.Helper()
		value, found := m.Get(key)
		testkit.Equal(t, value, want, "value of %s", key)
		testkit.Equal(t, found, want != 0, "found %s", key)
	}
	want("a", 0)
	m.Put("a", 1, testkit.Start.Add(time.Second))
	m.PutLater("a", 2, testkit.Start.Add(time.Second))
	want("a", 1)
	m.PutLater("a", 3, testkit.Start.Add(2*time.Second))
	want("a", 3)
	clock.Advance(2*time.Second - 1)
	want("a", 3)
	clock.Advance(1)
	want("a", 0)
	testkit.Equal(t, m.Len(), 0, "entries after the expired one was read")

	end := clock.Read().Add(time.Minute)
	m.Put("a", 1, end)
	m.Put("b", 2, end)
	want("a", 1)
	m.Put("c", 3, end) // evicts b, which was used least recently
	want("a", 1)
	want("b", 0)
	want("c", 3)
	m.Clear()
	want("a", 0)
}
