package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Counts of workers add up. A value that all workers read counts once. The newest limits win.
func TestMerge(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	later := at.Add(time.Minute)
	search := Limit{Use: limits.Use{Level: "category", Path: "search", Limit: "4/30m", Used: 3, Size: 4}, PerMinute: 2}
	full := search
	full.Used, full.PerMinute, full.Next = 4, 5, &later
	global := Limit{Use: limits.Use{Level: "global", Limit: "100/30m", Used: 60, Size: 100}}
	blocked := Limit{Use: limits.Use{Level: "blocked", Path: "blocked", Limit: "0/1h"}}
	var s Status
	s.merge([]Report{
		{
			Worker: Worker{Name: "a", Revision: "7:9"}, Limits: []Limit{search, global}, SlowestCall: time.Second,
			Channels: []Channel{{Name: "#b", PerMinute: 1, Rate: 1, Held: 3, PacedUntil: later, LastDigest: later}, {Name: "#a"}},
			Minutes:  []Minute{{At: at, Sent: 1, Dropped: 2, Delayed: 3}},
			Budgets:  []Budget{{Name: "updates", Used: 1}, {Name: "lookups", Used: 2}, {Name: "workspace", Used: 4, Waiting: 1, PausedUntil: later}},
			Changes:  []Change{{Path: "old"}},
		},
		{
			Worker: Worker{Name: "b", Revision: "7:10"}, Omitted: []Omission{{"minutes", 1, 2}, {"channels", 3, 4}}, Limits: []Limit{global, full, blocked}, SlowestCall: time.Millisecond,
			Channels: []Channel{{Name: "#b", PerMinute: 2, Rate: 1, Held: 4, PacedUntil: at, PausedUntil: later, LastDigest: at}},
			Minutes:  []Minute{{At: at, Sent: 10}, {At: later, Sent: 4}},
			Budgets:  []Budget{{Name: "workspace", Used: 3, Waiting: 2, PausedUntil: at}},
			Changes:  []Change{{Path: "new"}},
		},
	})
	full.PerMinute = 7
	testkit.EqualSlices(t, s.Limits, []Limit{full, blocked, global}, "limits")
	testkit.EqualSlices(t, s.Channels, []Channel{{Name: "#a"}, {Name: "#b", PerMinute: 3, Rate: 1, Held: 7, PacedUntil: later, PausedUntil: later, LastDigest: later}}, "channels")
	testkit.EqualSlices(t, s.Budgets, []Budget{{Name: "workspace", Used: 4, Waiting: 2, PausedUntil: later}, {Name: "updates", Used: 1}, {Name: "lookups", Used: 2}}, "budgets")
	testkit.EqualSlices(t, s.Minutes, []Minute{{At: at, Sent: 11, Dropped: 2, Delayed: 3}, {At: later, Sent: 4}}, "minutes")
	testkit.EqualSlices(t, s.Changes, []Change{{Path: "new"}}, "changes")
	testkit.EqualSlices(t, s.Omitted, []string{"b reports without 1 of 2 minutes, 3 of 4 channels"}, "omitted")
	testkit.Equal(t, s.Knows(LimitsPart), true, "whether the limits are known")
	testkit.Check(t, len(s.Workers) == 2 && s.Revision == "7:10" && s.Redis.SlowestCall == time.Second,
		"got %d workers, revision %s and slowest call %v, want 2, 7:10 and 1s", len(s.Workers), s.Revision, s.Redis.SlowestCall)
}

// A worker that could not read the use of the limits has no limits to report. It does not hide the limits of other workers.
func TestMergeLimitsThatWereNotRead(t *testing.T) {
	t.Parallel()
	read := Report{Worker: Worker{Name: "a"}, Limits: []Limit{{Use: limits.Use{Level: "global", Used: 1, Size: 2}}}}
	unread := Report{Worker: Worker{Name: "b"}, LimitsUnread: true, Omitted: []Omission{{"minutes", 1, 2}}}
	var some, none Status
	some.merge([]Report{read, unread})
	testkit.EqualSlices(t, some.Omitted, []string{"b reports without 1 of 2 minutes, the use of limits (not read from Redis)"}, "omitted")
	testkit.Equal(t, some.Knows(LimitsPart), true, "the limits are known if one worker has read them")
	none.merge([]Report{unread})
	testkit.EqualSlices(t, none.Unknown, []string{"limits: no worker has read their use from Redis"}, "unknown")
	testkit.EqualSlices(t, none.Omitted, []string{"b reports without 1 of 2 minutes"}, "omitted by the only worker")
	testkit.Equal(t, none.Knows(LimitsPart), false, "the limits are known if no worker has read them")
}

// Many workers that leave something out have a sentence for each kind of entries, not one each.
func TestMergeManyWorkersThatLeaveOut(t *testing.T) {
	t.Parallel()
	var reports []Report
	for i := range 40 {
		reports = append(reports, Report{Worker: Worker{Name: fmt.Sprintf("w%02d", i)}, Omitted: []Omission{{"full limits", i, 900}, {"minutes", 1, 2}}})
	}
	reports[7].LimitsUnread = true
	var s Status
	s.merge(reports)
	testkit.EqualSlices(t, s.Omitted, []string{
		"40 workers report without full limits, such as w00 without 0 of 900 full limits",
		"40 workers report without minutes, such as w00 without 1 of 2 minutes",
		"1 worker reports without the use of limits (not read from Redis), such as w07",
	}, "omitted")
}

// Workers on one host differ by the numbers of their processes, and in containers, where these are equal, by their instances.
func TestNames(t *testing.T) {
	t.Parallel()
	testkit.EqualSlices(t, Names([]Worker{
		{Name: "a", Process: 4711, Instance: "instance-000001"}, {Name: "a", Process: 4712, Instance: "instance-000002"},
		{Name: "b", Process: 1, Instance: "instance-000003"},
		{Name: "c", Process: 1, Instance: "instance-000004"}, {Name: "c", Process: 1, Instance: "instance-000005"},
	}), []string{"a/4711", "a/4712", "b", "c/000004", "c/000005"}, "names")
}

// Settings differ if two workers have different values. The names of workers on one host differ.
func TestMismatches(t *testing.T) {
	t.Parallel()
	worker := func(name, instance string, settings ...string) Worker {
		w := Worker{Name: name, Instance: instance, Settings: make(map[string]string)}
		for i := 0; i < len(settings); i += 2 {
			w.Settings[settings[i]] = settings[i+1]
		}
		return w
	}
	for _, test := range []struct {
		about   string
		workers []Worker
		want    []string
	}{
		{"nobody", nil, nil},
		{"equal", []Worker{worker("a", "1", "LIMIT", "1/1m"), worker("b", "2", "LIMIT", "1/1m")}, nil},
		{"a version that does not know one", []Worker{worker("a", "1", "LIMIT", "1/1m", "NEW", "x"), worker("b", "2", "LIMIT", "1/1m")}, nil},
		{"two", []Worker{
			worker("a", "1", "LIMIT", "1/1m", "ROUTES", ""), worker("b", "2", "LIMIT", "2/1m", "ROUTES", "x=#y"), worker("c", "3", "LIMIT", "1/1m", "ROUTES", ""),
		}, []string{"LIMIT is 1/1m on a and c, 2/1m on b", "ROUTES is not set on a and c, x=#y on b"}},
		{"one host", []Worker{worker("a", "instance-000001", "LIMIT", "1/1m"), worker("a", "2", "LIMIT", "2/1m")}, []string{
			"LIMIT is 1/1m on a/000001, 2/1m on a/2", // both processes have the number 0
		}},
	} {
		t.Run(test.about, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, m := range Mismatches(test.workers) {
				got = append(got, m.String())
			}
			testkit.EqualSlices(t, got, test.want, "mismatches")
		})
	}
}

// Only what is known of Redis is in its words.
func TestRedisInWords(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Redis{
		"": {}, "replica, replicas: 0": {Role: "replica"}, "slowest call of the last minute 3ms": {SlowestCall: 3 * time.Millisecond},
		"primary 7.2.4, replicas: 1, memory 5 MiB of 1 GiB": {Role: "primary", Version: "7.2.4", Replicas: 1, Memory: 5 << 20, MaxMemory: 1 << 30},
	} {
		testkit.Equal(t, r.String(), want, "words")
	}
}

// TestMutesThatWorkersIgnore leaves out a mute that forged messages have replaced, and a mute without an end.
func TestMutesThatWorkersIgnore(t *testing.T) {
	t.Parallel()
	mute, every := overrides.NewMute("db", "vacuum", ""), overrides.NewMute("search", "reindex", "")
	mute.Until, every.Name.Kind, every.Muting.Every = time.Now().Add(time.Hour), overrides.Recurring, "daily 02:00-04:00 UTC"
	endless, lost := mute, every
	endless.Until, lost.Lost = time.Time{}, true
	shown := Mutes(overrides.Snapshot{Mutes: []overrides.Change{mute, endless, lost, every}})
	testkit.Check(t, len(shown) == 2 && shown[0].Path == "db" && shown[1].Path == "search", "mutes: got %+v, want those that workers apply", shown)
}
