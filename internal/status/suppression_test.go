package status

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestSuppression(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	s := NewSuppression()
	s.clock = clock.Read
	begin := clock.Read()
	drop := func(category, title string, n int) {
		s.Add([]summary.Drop{{Category: category, Level: "category", N: n, Title: title}})
	}
	want := func(want ...Suppressed) {
		t.Helper()
		testkit.EqualDeeply(t, s.Now(), want, "what is suppressed")
	}
	s.Add([]summary.Drop{{Category: "payments", Mute: "ann 1", Keys: []summary.Key{{Name: "disk"}}}}) // a resolved event of a muted path
	want()
	drop("payments", "card declined", 3)
	drop("orders", "", 5)
	clock.Advance(spellEnds - time.Second)
	drop("payments", "card declined", 1)
	drop("payments", "refund failed", 2)
	want(
		Suppressed{Category: "payments", Level: "category", Count: 6, Titles: []string{"refund failed", "card declined"}, Since: begin},
		Suppressed{Category: "orders", Level: "category", Count: 5, Since: begin},
	)
	clock.Advance(time.Second)
	want(Suppressed{Category: "payments", Level: "category", Count: 6, Titles: []string{"refund failed", "card declined"}, Since: begin})
	drop("orders", "late", 1)
	clock.Advance(spellEnds - time.Second)
	want(Suppressed{Category: "orders", Level: "category", Count: 1, Titles: []string{"late"}, Since: begin.Add(spellEnds)})
	clock.Advance(time.Second)
	want()
}

func TestSuppressionIsBounded(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	s := NewSuppression()
	s.clock = clock.Read
	for i := range 2 * mostSpells {
		s.Add([]summary.Drop{{Category: fmt.Sprint("junk", i), Level: "category", N: 1, Title: fmt.Sprint(i)}})
	}
	testkit.Equal(t, len(s.spells.values), mostSpells, "spells")
	clock.Advance(spellEnds)
	body := "title" + strings.Repeat(" ", 250_000)
	for i := range 2 * mostOfFirst {
		s.Add([]summary.Drop{{Category: fmt.Sprint("evil.q", i), Level: "category", N: 1, Title: strings.TrimSpace(body)}})
	}
	s.Add([]summary.Drop{{Category: "payments", Level: "category", N: 1}})
	shown := s.Now()
	testkit.Equal(t, len(shown), mostOfFirst+2, "suppressed beside a flood of paths")
	testkit.Equal(t, shown[0].Count, mostOfFirst, "drops of the first level that are counted together")
	testkit.Equal(t, shown[0].Category, "evil", "category of these drops")
	testkit.Equal(t, shown[1].Category, "payments", "the next category beside categories of evil with as many drops")
	title := shown[2].Titles[0]
	testkit.Check(t, unsafe.StringData(title) != unsafe.StringData(body), "a title keeps the body that it comes from in memory")
	clock.Advance(spellEnds)
	s.Add([]summary.Drop{{Category: "security", Level: "category", N: 1}})
	testkit.Equal(t, len(s.Now()), 1, "suppressed after the spells have ended")
}

// TestFullSuppressionLooksOnce adds drops of new categories to a full suppression. It looks through the spells once, and again when the first of
// them may have ended.
func TestFullSuppressionLooksOnce(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(nil)
	s := NewSuppression()
	s.clock = clock.Read
	add := func(category string) (added bool) {
		s.Add([]summary.Drop{{Category: category, Level: "category", N: 1}})
		return s.spells.values[Denial{category, "category"}] != nil
	}
	for i := range mostSpells {
		testkit.Equal(t, add(fmt.Sprint("junk", i)), true, "there is a place for the category %d", i)
	}
	testkit.Equal(t, add("one more"), false, "there is a place in a full suppression")
	s.spells.values[Denial{"junk0", "category"}].last = clock.Read().Add(-spellEnds) // only a look finds this end
	testkit.Equal(t, add("another"), false, "there is a place without another look")
	clock.Advance(spellEnds)
	testkit.Equal(t, add("later"), true, "there is a place after spells have ended")
}

func TestSuppressedOfAllWorkers(t *testing.T) {
	t.Parallel()
	now := testkit.Start
	next := now.Add(time.Hour)
	of := func(count int64, since time.Time, titles ...string) []Suppressed {
		return []Suppressed{{Category: "payments.cards", Level: "category", Count: count, Titles: titles, Since: since}}
	}
	s := Status{At: now}
	s.merge([]Report{
		{Suppressed: of(3, now, "a"), Limits: []Limit{{Use: limits.Use{Level: "category", Path: "payments", Limit: "6/1h", Size: 6, Next: &next}}}},
		{Suppressed: of(4, now.Add(-time.Minute), "a", "b")},
	})
	want := of(7, now.Add(-time.Minute), "a", "b")
	want[0].Until = next
	testkit.EqualDeeply(t, s.Suppressed, want, "suppressed")
}

func TestSuppressedUntil(t *testing.T) {
	t.Parallel()
	now := testkit.Start
	soon, later := now.Add(time.Minute), now.Add(time.Hour)
	limit := func(path string, used int64, next *time.Time) Limit {
		return Limit{Use: limits.Use{Level: "category", Path: path, Used: used, Size: 6, Next: next}}
	}
	for _, test := range []struct {
		level  string
		limits []Limit
		mutes  []Mute
		until  time.Time
		open   bool
		never  bool
	}{
		{level: "category"},
		{level: "category", limits: []Limit{{Use: limits.Use{Level: "category", Path: "payments", Limit: "0/1h"}}}, never: true},
		{level: "category", limits: []Limit{{Use: limits.Use{Level: "category", Path: "payments", Limit: "0/1h"}}, limit("payments", 6, &soon)}, until: soon, never: true},
		{level: "category", limits: []Limit{limit("payments", 5, nil)}, open: true},
		{level: "category", limits: []Limit{limit("payments", 6, nil)}},
		{level: "category", limits: []Limit{limit("payments", 5, nil), limit("payments.cards", 6, &soon)}, until: soon},
		{level: "category", limits: []Limit{limit("payments", 5, &later), limit("payments.cards", 5, nil)}, until: later},
		{level: "category", limits: []Limit{limit("payments", 6, nil), limit("payments.cards", 5, nil)}},
		{level: "category", limits: []Limit{limit("orders", 5, &soon)}, mutes: []Mute{{Path: "payments", Until: soon}}},
		{level: limits.LevelMute, open: true},
		{level: limits.LevelMute, mutes: []Mute{{Path: "payments", Every: "daily 02:00-04:00 UTC"}, {Path: "orders", Until: soon}}, open: true},
		{level: limits.LevelMute, mutes: []Mute{{Path: "payments", Until: now}}, open: true},
		{level: limits.LevelMute, mutes: []Mute{{Path: "payments", Until: soon}, {Path: "payments.cards", Until: later}}, until: later},
	} {
		s := Status{At: now}
		s.merge([]Report{{
			Suppressed: []Suppressed{{Category: "payments.cards", Level: test.level, Count: 1, Since: now}}, Limits: test.limits, Mutes: test.mutes,
		}})
		testkit.Equal(t, s.Suppressed[0].Until, test.until, "end with %+v", test)
		testkit.Equal(t, s.Suppressed[0].Open, test.open, "whether it is open with %+v", test)
		testkit.Equal(t, s.Suppressed[0].Never, test.never, "whether it has no slots with %+v", test)
	}
}

// TestSuppressedShowsEachFirstLevel has many categories of one first level on one worker, and a smaller one of another first level on another
// worker.
func TestSuppressedShowsEachFirstLevel(t *testing.T) {
	t.Parallel()
	var flood []Suppressed
	for i := range 20 {
		flood = append(flood, Suppressed{Category: fmt.Sprint("evil.q", i), Level: "category", Count: int64(100 - i)})
	}
	var s Status
	s.merge([]Report{{Suppressed: flood}, {Suppressed: []Suppressed{{Category: "payments", Level: "category", Count: 2}}}})
	var categories []string
	for _, shown := range s.Suppressed[:3] {
		categories = append(categories, shown.Category)
	}
	testkit.EqualSlices(t, categories, []string{"evil.q0", "payments", "evil.q1"}, "first categories")
}
