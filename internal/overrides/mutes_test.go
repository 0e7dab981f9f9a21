package overrides

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/schedule"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func weekly(t *testing.T, text string) schedule.Weekly {
	t.Helper()
	return testkit.Must(schedule.Parse(text))(t)
}

// TestBegin has a recurring mute before, in and after a window, which an operator may have ended.
func TestBegin(t *testing.T) {
	t.Parallel()
	rule := NewMute("db", "vacuum", "critical").Recurring(weekly(t, "Tue 02:00-04:00 UTC"))
	rule.By = "ann"
	begin := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	name := Name{Pattern: "db", Kind: Mute, Rule: rule.Name.Rule}
	ended := func(at time.Time, revision uint64) map[Name]Change {
		return map[Name]Change{name: {Name: name, Deleted: true, Changed: at, Ended: revision}}
	}
	for what, c := range map[string]struct {
		entries map[Name]Change
		now     time.Time
		want    bool
	}{
		"before the window":              {nil, begin.Add(-time.Second), false},
		"at the begin":                   {nil, begin, true},
		"in force":                       {map[Name]Change{name: {Name: name}}, begin.Add(time.Minute), false},
		"after last week's window":       {ended(begin.AddDate(0, 0, -7).Add(time.Hour), 0), begin, true},
		"ended by an operator":           {ended(begin.Add(time.Minute), 0), begin.Add(time.Hour), false},
		"ended by itself in this window": {ended(begin.Add(time.Minute), 5), begin.Add(time.Hour), true},
		"at the end":                     {nil, begin.Add(2 * time.Hour), false},
	} {
		begun, begins, err := rule.begin(c.entries, c.now)
		testkit.NoError(t, err)
		testkit.Equal(t, begins, c.want, "%s: the mute begins", what)
		if begins && (begun.Name != name || !begun.Until.Equal(begin.Add(2*time.Hour)) || begun.By != "ann" || begun.Muting.Spare != "critical" || begun.Value != "vacuum") {
			t.Errorf("%s: begins as %+v", what, begun)
		}
	}
	rule.Muting.Every = "Tue 02:00-04:00 Nowhere/City"
	_, begins, err := rule.begin(nil, begin)
	testkit.Equal(t, begins || err == nil, false, "begins in an unknown time zone")
}

// TestBeginsBeforeItsForgedEnd has a forged message on the end of last week's mute when a window begins. The mute begins: the end is not
// restored into this window.
func TestBeginsBeforeItsForgedEnd(t *testing.T) {
	t.Parallel()
	rule := NewMute("db", "vacuum", "").Recurring(weekly(t, "Tue 02:00-04:00 UTC"))
	begin := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	name := Name{Pattern: "db", Kind: Mute, Rule: rule.Name.Rule}
	end := Change{Name: name, Deleted: true, Changed: begin.AddDate(0, 0, -7), Revision: 7}
	forged := end.overwrittenBy(Change{Name: name, Revision: 9})
	for range 20 { // the entries are in a map
		due := (&Watcher{}).due(&state{entries: map[Name]Change{name: forged, rule.Name: rule}}, begin)
		testkit.Require(t, len(due) == 2 && !due[0].Deleted && due[0].Until.Equal(begin.Add(2*time.Hour)) && due[1].Deleted,
			"changes to store: %+v, want the mute before its old end", due)
	}
}

// TestMutesInTheBucket sets a mute beside a limit, and two schedules, one of which has a window now. A watcher ends the mute, and keeps the
// limit. A rollback changes no mute.
func TestMutesInTheBucket(t *testing.T) {
	t.Parallel()
	f, b := newBucketFixture(t)
	f.change(b, "payments=5/1h")
	f.mirror(f.js, false)
	s, mute := f.load(b), NewMute("payments", "migration", "")
	set := testkit.Must(b.SetMute(f.context(), s, mute, s.Read.Add(soon)))(t)
	_, err := b.SetMute(f.context(), s, mute, s.Read.Add(time.Hour))
	testkit.Fails(t, "a mute of a path that was muted since it was checked", err, ErrConflict)
	_, err = b.SetMute(f.context(), s, mute, s.Read)
	testkit.Fails(t, "a mute that ends at once", err, ErrPast)
	now := time.Now().UTC().Format("15:04")
	later := time.Now().UTC().Add(6 * time.Hour).Format("15:04")
	for _, text := range []string{"daily " + now + "-" + later + " UTC", "daily " + later + "-" + now + " UTC"} {
		rule := testkit.Must(b.SetMute(f.context(), f.load(b), NewMute("db", "vacuum", "").Recurring(weekly(t, text)), time.Time{}))(t)
		testkit.Equal(t, rule.Until.IsZero(), text != "daily "+now+"-"+later+" UTC", "%s has no window now", text)
	}
	testkit.Eventually(t, "the end of the mute", func() bool {
		s := f.load(b)
		return len(s.Mutes) == 3 && len(s.Entries) == 1
	})
	s = f.load(b)
	f.requireEntries(s, "payments=5/1h")
	for i, want := range []Kind{Recurring, Recurring, Mute} {
		testkit.Equal(t, s.Mutes[i].Name.Kind, want, "kind of mute %d", i)
		testkit.Equal(t, s.Mutes[i].Name.Pattern, "db", "pattern of mute %d", i)
	}
	testkit.Must(b.Rollback(f.context(), set.Revision-1, unchecked))(t)
	testkit.Equal(t, len(f.load(b).Mutes), 3, "mutes after a rollback")
}
