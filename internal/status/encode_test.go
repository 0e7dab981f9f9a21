package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// crowded is a report of 10,000 categories with long names, half of them full, and of as many suppressed categories and channels.
func crowded() Report {
	r := Report{Worker: Worker{Name: "host", Settings: map[string]string{"NOTIFIER_GLOBAL_LIMIT": "100/30m"}}, Changes: []Change{{Path: "debug"}}}
	for range 3 {
		r.Mutes = append(r.Mutes, Mute{Path: "db", Reason: strings.Repeat("long", 30)})
	}
	const categories = 10_000
	for i := range categories {
		path := fmt.Sprintf("%s.c%05d", strings.Repeat("long", 30), i)
		limit := Limit{Use: limits.Use{Level: path, Path: path, Limit: "10/30m", Used: 10, Size: 10}, PerMinute: 7}
		if i >= categories/2 {
			limit.Used = 1
		}
		r.Limits = append(r.Limits, limit)
		title := strings.Repeat("ü", 79) + "…"
		r.Suppressed = append(r.Suppressed, Suppressed{Category: path, Level: path, Count: int64(categories - i), Titles: []string{title, title, title}})
		r.Channels = append(r.Channels, Channel{Name: "#" + path})
	}
	for i := range 60 {
		r.Minutes = append(r.Minutes, Minute{At: time.Unix(int64(60*i), 0), Sent: int64(i)})
	}
	return r
}

// A report is never larger than a message may be. What matters least is left out first, and the report says what.
func TestEncodeIsBounded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		most     int64
		omitted  []string // each is the end of one that is left out
		complete []string // nothing of these is left out but what is beyond mostListed
	}{
		{10 << 20, []string{"4500 of 5000 limits that are not full", "9500 of 10000 suppressed categories"}, []string{"minutes"}},
		{1 << 20, []string{"4500 of 5000 full limits", "9500 of 10000 channels", "suppressed categories with titles"}, []string{"minutes"}},
		{256 << 10, []string{"10000 of 10000 suppressed categories with titles", "5000 of 5000 limits that are not full"}, []string{"minutes"}},
		{64 << 10, []string{"10000 of 10000 suppressed categories", "60 of 60 minutes", "10000 of 10000 channels"}, nil},
		{4 << 10, []string{"60 of 60 minutes", "of 5000 full limits"}, nil},
		{1 << 10, []string{"5000 of 5000 full limits", "of 3 mutes"}, nil},
	}
	limits := crowded().Limits
	for _, test := range tests {
		encoded := testkit.Must(crowded().Encode(test.most))(t)
		if got := int64(len(encoded)); got > test.most || got < test.most/2 && test.most < 1<<20 && test.most > 1<<10 {
			t.Errorf("got %d bytes, want at most %d, and most of them used", got, test.most)
		}
		var got Report
		testkit.NoError(t, json.Unmarshal(encoded, &got))
		all := listOmissions(got.Omitted)
		testkit.Contains(t, fmt.Sprint("omitted of ", test.most), all, test.omitted...)
		testkit.Lacks(t, "what is left out", all, test.complete...)
		testkit.Check(t, got.Settings["NOTIFIER_GLOBAL_LIMIT"] != "" && len(got.Changes) == 1, "got no settings or overrides in %d bytes", test.most)
		if test.most > 1<<10 && (len(got.Limits) == 0 || got.Limits[0] != limits[0]) {
			t.Errorf("got the limits %v, want the fullest first", got.Limits)
		}
	}
	_, err := crowded().Encode(200)
	testkit.Contains(t, "error", fmt.Sprint(err), "200 at most (max_payload)", "5000 of 5000 full limits", "3 of 3 mutes")
}

// Every event needs a slot of the global limit, so a report has it however many other limits are fuller.
func TestEncodeKeepsTheGlobalLimit(t *testing.T) {
	t.Parallel()
	global := Limit{Use: limits.Use{Level: limits.LevelGlobal, Limit: "100/30m", Used: 1, Size: 100}}
	for _, most := range []int64{10 << 20, 4 << 10, 1 << 10} {
		r := crowded()
		r.Limits = append(r.Limits, global)
		var got Report
		testkit.NoError(t, json.Unmarshal(testkit.Must(r.Encode(most))(t), &got))
		testkit.Equal(t, got.Limits[len(got.Limits)-1], global, "the last limit of at most %d bytes", most)
		testkit.Equal(t, slices.IsSortedFunc(got.Limits, CompareLimits), true, "the fullest come first")
	}
}

// A report that fits is complete.
func TestEncodeLeavesNothingOut(t *testing.T) {
	t.Parallel()
	r := crowded()
	r.Limits, r.Suppressed, r.Channels = r.Limits[4900:5100], r.Suppressed[:200], r.Channels[:200]
	encoded := testkit.Must(r.Encode(1 << 20))(t)
	want := testkit.Must(json.Marshal(r))(t)
	testkit.Equal(t, string(encoded), string(want), "report")
}
