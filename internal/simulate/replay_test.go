package simulate

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestReplay compares a report with one computed by hand. The limits are four a minute in all, two for a category, one for refunds.
func TestReplay(t *testing.T) {
	t.Parallel()
	lines := []string{
		lineAt(0, "payments", ""),                            // sent
		lineAt(0, "payments", ""),                            // sent
		lineAt(10, "payments", ""),                           // two payments since -50: category
		lineAt(20, "payments.refunds", ""),                   // category, that of payments
		lineAt(30, "errors", ""),                             // sent
		lineAt(40, "errors", `, "id": "first"`),              // sent, the fourth
		lineAt(50, "audit", `, "id": "second"`),              // global
		lineAt(60, "payments", ""),                           // sent: the events at 0 are not in (0, 60]
		lineAt(61, "payments.refunds", ""),                   // sent
		lineAt(70, "payments.refunds", ""),                   // 30, 40, 60, 61: global
		lineAt(91, "payments.refunds", ""),                   // 60, 61: category
		lineAt(121, "payments.refunds", ""),                  // sent
		lineAt(122, "payments.refunds", ""),                  // 121: payments.refunds
		lineAt(200, "batch", `, "cost": 3`),                  // never fits: category
		lineAt(230, "batch", `, "cost": 2`),                  // sent
		lineAt(231, "batch", ""),                             // category
		lineAt(300, "errors", `, "id": "first"`),             // duplicate of the one at 40
		lineAt(301, "audit", `, "id": "second"`),             // sent: the one at 50 was dropped
		lineAt(302, "audit", `, "id": "second"`),             // duplicate
		lineAt(303, "Payments", `, "title": "upper case"`),   // sent, to payments
		lineAt(303.5, "payments", `, "severity": "warning"`), // sent
	}
	want := Report{
		From: midnight, To: midnight.Add(303500 * time.Millisecond),
		Paths: []Path{
			{Category: "payments", Seen: 6, Sent: 5, Dropped: map[string]int{"category": 1}, LongestSilence: 243 * time.Second},
			{
				Category: "payments.refunds", Seen: 6, Sent: 2, LongestSilence: time.Minute,
				Dropped: map[string]int{"global": 1, "category": 2, "payments.refunds": 1},
			},
			{Category: "audit", Seen: 3, Sent: 1, Duplicate: 1, Dropped: map[string]int{"global": 1}, LongestSilence: 251 * time.Second},
			{Category: "batch", Seen: 3, Sent: 1, Dropped: map[string]int{"category": 2}, LongestSilence: 30 * time.Second},
			{Category: "errors", Seen: 3, Sent: 2, Duplicate: 1, LongestSilence: 260 * time.Second},
		},
		Total: Path{
			Seen: 21, Sent: 11, Duplicate: 2, LongestSilence: 109 * time.Second, // from 121 to 230
			Dropped: map[string]int{"global": 2, "category": 5, "payments.refunds": 1},
		},
	}
	for name, order := range map[string]func(){
		"in order":     func() {},
		"out of order": func() { rand.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] }) },
	} {
		order()
		h := readLines(t, strings.Join(lines, ""))
		for range 2 { // each time with a new limiter
			got := testkit.Must(h.Replay(t.Context(), newLimiter(t, "4/1m", "2/1m", "payments.refunds=1/1m"), unwatched))(t)
			testkit.EqualDeeply(t, got, want, "%s", name)
		}
	}
}

// TestSilence measures the longest silence between the first and the last event of a path.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lines string
		want  time.Duration
	}{
		"one event":           {lineAt(0, "a", ""), 0},
		"none of many":        {lineAt(0, "a", `, "cost": 9`) + lineAt(3600, "a", `, "cost": 9`) + lineAt(7200, "a", `, "cost": 9`), 2 * time.Hour},
		"before the first":    {lineAt(0, "a", `, "cost": 9`) + lineAt(60, "a", "") + lineAt(70, "a", ""), time.Minute},
		"between two":         {lineAt(0, "a", "") + lineAt(50, "a", "") + lineAt(60, "a", ""), 50 * time.Second},
		"after the last":      {lineAt(0, "a", "") + lineAt(1, "a", "") + lineAt(61.5, "a", `, "cost": 9`), 60500 * time.Millisecond},
		"others do not count": {lineAt(0, "a", "") + lineAt(10, "a.b", "") + lineAt(20, "a", ""), 20 * time.Second},
	} {
		got := replay(t, test.lines, newLimiter(t, "5/1s", "5/1s", "")).Paths[0]
		testkit.Equal(t, got.Category, "a", "%s: category", name)
		testkit.Equal(t, got.LongestSilence, test.want, "%s: longest silence", name)
	}
}

func TestReplayEnds(t *testing.T) {
	t.Parallel()
	h := readLines(t, strings.Repeat(lineAt(0, "a", ""), progressEvery)+lineAt(1, "a", "")+lineAt(2, "a", ""))
	broken := errors.New("broken")
	fails := evaluatorFunc(func([]Event) ([]Verdict, error) { return nil, broken })
	_, err := h.Replay(t.Context(), fails, unwatched)
	testkit.Fails(t, "an evaluator that fails", err, broken)

	asked := 0
	counts := evaluatorFunc(func(events []Event) ([]Verdict, error) {
		asked += len(events)
		return make([]Verdict, len(events)), nil
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = h.Replay(ctx, counts, func(done, total int64) {
		testkit.Equal(t, done, progressEvery, "events done")
		testkit.Equal(t, total, progressEvery+2, "events in all")
		cancel(broken)
	})
	testkit.Fails(t, "end of the context", err, broken)
	testkit.Equal(t, asked, progressEvery, "evaluated events")
}

// TestBatches passes the events of an instant to the evaluator together.
func TestBatches(t *testing.T) {
	t.Parallel()
	var got [][]Event
	replay(t, lineAt(2, "c", "")+lineAt(1, "a", `, "id": "x", "cost": 7`)+lineAt(1, "b", ""), evaluatorFunc(func(events []Event) ([]Verdict, error) {
		got = append(got, events)
		return make([]Verdict, len(events)), nil
	}))
	testkit.EqualDeeply(t, got, [][]Event{
		{
			{Number: 2, At: midnight.Add(time.Second), Identity: "a x", Category: "a", Cost: 7},
			{Number: 3, At: midnight.Add(time.Second), Identity: "b line:3", Derived: true, Category: "b", Cost: 1},
		},
		{{Number: 1, At: midnight.Add(2 * time.Second), Identity: "c line:1", Derived: true, Category: "c", Cost: 1}},
	}, "evaluated")
}

func TestNoEvents(t *testing.T) {
	t.Parallel()
	testkit.EqualDeeply(t, replay(t, "", newLimiter(t, "1/1m", "1/1m", "")), Report{Paths: []Path{}}, "report of no events")
}

// TestAlgorithms counts with each algorithm at the times of the events. Deliveries take no time.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	lines := lineAt(0, "a", "") + lineAt(0, "a", "") + lineAt(0, "a", `, "cost": 3`) + lineAt(59, "a", "") + lineAt(60, "a", "") +
		lineAt(60, "a", "") + lineAt(89.9, "a", "") + lineAt(90, "a", "")
	for limit, want := range map[string]int{
		"inflight:1/1m":      7, // all without the event of cost 3
		"inflight:3/1m":      8,
		"inflight:1/1m+3/1m": 5, // 0, 0, 59; two of them have left at 60
		"fixed:2/1m":         4, // 0, 0; 60, 60
		"token:2/1m":         5, // 0, 0; then 59, 60 and 90, as two tokens come a minute
		"none":               8,
	} {
		got := replay(t, lines, newLimiter(t, limit, "none", "")).Total
		testkit.Equal(t, got.Sent, want, "%s: sent", limit)
		testkit.Equal(t, got.Dropped["global"], 8-want, "%s: dropped", limit)
	}
}

// outcomes has events and their results by hand. The limit of each category is two a minute.
var outcomes = map[string]struct {
	lines string
	want  Path
}{
	"one instant": { // events of an instant count together, in any order
		lineAt(0, "a", `, "cost": 2`) + lineAt(0, "b", `, "cost": 2`) + lineAt(60, "b", `, "cost": 2`) + lineAt(60, "a", `, "cost": 2`) +
			strings.Repeat(lineAt(120, "a", `, "cost": 2`), 2),
		Path{Seen: 6, Sent: 5, Dropped: map[string]int{"category": 1}},
	},
	"an ID, until it is forgotten": {
		lineAt(0, "a", `, "id": "x"`) + lineAt(3599, "a", `, "id": "x"`) + lineAt(3601, "a", `, "id": "x"`),
		Path{Seen: 3, Sent: 2, Duplicate: 1},
	},

	// A resolved event takes no slot. The result of its firing event decides.
	"resolved after what it resolves": {
		lineAt(0, "a", firing("k")) + lineAt(1, "a", "") + lineAt(2, "a", "") + lineAt(3, "a", resolved("k")), // one of 2 in 3
		Path{Seen: 4, Sent: 3, Dropped: map[string]int{"category": 1}},
	},
	"resolved, takes no slot": {
		lineAt(0, "a", firing("k")) + lineAt(1, "a", resolved("k")) + lineAt(2, "a", "") + lineAt(3, "a", ""),
		Path{Seen: 4, Sent: 3, Dropped: map[string]int{"category": 1}},
	},
	"resolved, nothing": {
		lineAt(0, "a", resolved("k")) + lineAt(1, "a", firing("other")) + lineAt(1, "b", firing("k")),
		Path{Seen: 3, Sent: 2, Dropped: map[string]int{"unpaired": 1}},
	},
	"resolved what was dropped": {
		lineAt(0, "a", "") + lineAt(1, "a", "") + lineAt(2, "a", firing("k")) + lineAt(3, "a", resolved("k")),
		Path{Seen: 4, Sent: 2, Dropped: map[string]int{"category": 1, "unpaired": 1}},
	},
	"resolved, once": {
		lineAt(0, "a", firing("k")) + lineAt(3, "a", resolved("k")) + lineAt(4, "a", resolved("k")),
		Path{Seen: 3, Sent: 2, Dropped: map[string]int{"unpaired": 1}},
	},
	"resolved what fired twice, once": {
		lineAt(0, "a", firing("k")) + lineAt(1, "a", firing("k")) + lineAt(3, "a", resolved("k")) + lineAt(4, "a", resolved("k")),
		Path{Seen: 4, Sent: 3, Dropped: map[string]int{"unpaired": 1}},
	},
	"resolved, under an ID that is known": {
		lineAt(0, "a", firing("k")+`, "id": "x"`) + lineAt(1, "a", resolved("k")+`, "id": "x"`),
		Path{Seen: 2, Sent: 1, Duplicate: 1},
	},
	"resolved with what it resolves": {
		lineAt(0, "a", resolved("k")) + lineAt(0, "a", firing("k")),
		Path{Seen: 2, Sent: 2},
	},
	"resolved just before what it resolves": {
		lineAt(0, "a", resolved("k")) + lineAt(0.5, "b", "") + lineAt(2, "a", firing("k")) + lineAt(9, "a", resolved("k")),
		Path{Seen: 4, Sent: 3, Dropped: map[string]int{"unpaired": 1}},
	},
	"resolved just before what is dropped": {
		lineAt(0, "a", "") + lineAt(0, "a", "") + lineAt(0, "a", resolved("k")) + lineAt(1, "a", firing("k")),
		Path{Seen: 4, Sent: 2, Dropped: map[string]int{"category": 1, "unpaired": 1}},
	},
	"resolved long before what it resolves": {
		lineAt(0, "a", resolved("k")) + lineAt(2.1, "a", firing("k")),
		Path{Seen: 2, Sent: 1, Dropped: map[string]int{"unpaired": 1}},
	},
	"resolved what has expired": {
		lineAt(0, "a", firing("k")) + lineAt(24*3600+1, "a", resolved("k")),
		Path{Seen: 2, Sent: 1, Dropped: map[string]int{"unpaired": 1}},
	},
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, test := range outcomes {
		got := replay(t, test.lines, newLimiter(t, "none", "2/1m", "")).Total
		got.LongestSilence = 0
		testkit.EqualDeeply(t, got, test.want, "%s", name)
	}
}

// TestGroups splits each group into the events of its alerts. The time of the line wins over the times of the alerts.
func TestGroups(t *testing.T) {
	t.Parallel()
	var fifteen []string
	for i := range 15 {
		fifteen = append(fifteen, alert("firing", string(rune('a'+i))))
	}
	own := strings.NewReplacer("2020-01-01T00:00:00Z", "2026-03-01T00:00:00Z", `"Disk"`, `"Disk", "category": "a.b"`)
	for name, test := range map[string]struct {
		lines   string
		want    Path
		invalid int
		paths   string
	}{
		"fifteen alerts": {groupAt(0, "a", fifteen...), Path{Seen: 15, Sent: 10, Dropped: map[string]int{"category": 5}}, 0, "a"},
		"a group that grows": {
			groupAt(0, "a", fifteen[:3]...) + groupAt(1, "a", fifteen[:4]...), Path{Seen: 7, Sent: 4, Duplicate: 3}, 0, "a",
		},
		"the same group again": {
			strings.Repeat(lineAt(0, "a", `, "id": "group", "alerts": [`+fifteen[0]+","+fifteen[1]+`]`), 2), Path{Seen: 4, Sent: 2, Duplicate: 2}, 0, "a",
		},
		"resolved alerts": {
			groupAt(0, "a", fifteen[:12]...) + groupAt(1, "a", alert("resolved", "a"), alert("resolved", "b"), alert("resolved", "k"), alert("resolved", "l")),
			Path{Seen: 16, Sent: 12, Dropped: map[string]int{"category": 2, "unpaired": 2}}, 0, "a",
		},
		"one alert": {groupAt(0, "a", fifteen[0]), Path{Seen: 1, Sent: 1}, 0, "a"},
		"bad alerts": {
			groupAt(0, "a", fifteen[0], `{}`, `{"status": "pending"}`, fifteen[1]) + groupAt(1, "a", "{}", "{}") + groupAt(2, "a", "{}"),
			Path{Seen: 2, Sent: 2}, 3, "a",
		},
		"times and categories of their own": {
			own.Replace(`{"alerts": [` + fifteen[0] + "," + fifteen[1] + `]}`), Path{Seen: 2, Sent: 2}, 0, "a.b",
		},
		"a bad category": {groupAt(0, "pay ments", fifteen[:2]...), Path{}, 1, ""},
		"a bad time":     {strings.Replace(groupAt(0, "a", fifteen[:2]...), "2026", "26", 1), Path{}, 1, ""},
		"no time":        {`{"alerts": [{"labels": {"alertname": "x"}}, {"labels": {"alertname": "y"}}]}`, Path{}, 1, ""},
	} {
		h := readLines(t, test.lines)
		got, err := h.Replay(t.Context(), newLimiter(t, "none", "10/1m", ""), unwatched)
		if got.Total.LongestSilence = 0; err != nil || !reflect.DeepEqual(got.Total, test.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got.Total, err, test.want)
		}
		testkit.Equal(t, h.Invalid, test.invalid, "%s: invalid lines, with %v", name, h.Problems)
		testkit.Equal(t, categoriesOf(got), test.paths, "%s: categories", name)
		if test.want.Seen > 0 && test.want.Seen < 16 && !got.From.Equal(midnight) {
			t.Errorf("%s: from %v, want %v", name, got.From, midnight)
		}
	}
}

func categoriesOf(r Report) string {
	var categories []string
	for _, path := range r.Paths {
		categories = append(categories, path.Category)
	}
	return strings.Join(categories, " ")
}

// TestReplayFolds replays repeats of one key. Those within the hour of their message are folded, unless they are worse or follow a resolved
// event.
func TestReplayFolds(t *testing.T) {
	t.Parallel()
	keyed := func(at float64, more string) string { return lineAt(at, "folded", `, "key": "disk"`+more) }
	history := readLines(t, strings.Join([]string{
		keyed(0, ``), keyed(0, ``), keyed(10, `, "status": "firing"`), // the first one is sent
		keyed(20, `, "severity": "error"`), keyed(30, ``), // worse: a message of its own
		keyed(40, `, "status": "resolved"`), keyed(50, ``),
		keyed(3651, ``), // an hour after its message
		lineAt(60, "other", `, "key": "disk"`), lineAt(61, "other", `, "key": "disk"`),
	}, ""))
	report := testkit.Must(history.Replay(t.Context(), newLimiter(t, "none", "none", ""), unwatched))(t)
	for _, path := range report.Paths {
		want := map[string][2]int{"folded": {5, 3}, "other": {2, 0}}[path.Category]
		testkit.Equal(t, [2]int{path.Sent, path.Folded}, want, "sent and folded of %s", path.Category)
	}
}

// TestMute replays events before, in and after the window of a recurring mute. The muted event takes no slot.
func TestMute(t *testing.T) {
	t.Parallel()
	plan := testkit.Must(limits.NewTree(limits.Plan{Global: testkit.Must(limits.Parse("2/1d"))(t)}))(t)
	l := NewLimiter(Options{
		Tree: plan, Retention: time.Hour, PairTTL: time.Hour, Mutes: []Mute{testkit.Must(ParseMute("db=Tue 02:00-04:00 UTC"))(t)},
	})
	begin := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	for i, c := range []struct {
		after time.Duration
		want  Verdict
	}{
		{-time.Second, Verdict{Outcome: Sent}}, {0, Verdict{Outcome: Dropped, Level: limits.LevelMute}}, {2 * time.Hour, Verdict{Outcome: Sent}},
		{3 * time.Hour, Verdict{Outcome: Dropped, Level: limits.LevelGlobal}},
	} {
		e := Event{Number: uint64(i + 1), At: begin.Add(c.after), Identity: "db " + c.after.String(), Category: "db.replica", Cost: 1}
		got := testkit.Must(l.Evaluate([]Event{e}))(t)
		testkit.Equal(t, got[0], c.want, "the event %v after the begin", c.after)
	}
	for _, text := range []string{"Not A Path", "db=Tue"} {
		_, err := ParseMute(text)
		testkit.Fails(t, text, err, nil)
	}
}
