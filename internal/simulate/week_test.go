package simulate

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestWeek replays one week. A limit for each key sends fewer messages about more keys, and every event is reported in both variants.
func TestWeek(t *testing.T) {
	t.Parallel()
	testkit.EqualDeeply(t, Week(7).events, Week(7).events, "week of one seed")
	testkit.Check(t, !reflect.DeepEqual(Week(7).events, Week(8).events), "weeks of two seeds are alike")
	plan := limits.Plan{Global: limits.Limits{{Count: 100, Window: 30 * time.Minute}}, Category: limits.Limits{{Count: 10, Window: 30 * time.Minute}}}
	variants := testkit.Must(WeekVariants(plan, 24*time.Hour, 24*time.Hour))(t)
	rows := testkit.Must(ReplayWeek(t.Context(), Week(1), variants))(t)
	testkit.Equal(t, len(rows), 4, "rows")
	plain, keyed, folded, flapping := rows[0], rows[1], rows[2], rows[3]
	testkit.Check(t, keyed.Sent < plain.Sent && keyed.Keys > plain.Keys && plain.Silence <= time.Hour,
		"got %+v and %+v, want fewer messages about more keys with a limit of each key", plain, keyed)
	testkit.Check(t, folded.Folded != 0 && folded.Keys > plain.Keys,
		"got %+v and %+v, want messages about more keys where repeated events are folded", plain, folded)
	testkit.Check(t, flapping.Steady == 1 && flapping.Sent <= plain.Sent/2,
		"got %+v and %+v, want one report, and half the messages with a rule for flapping", plain, flapping)
	for _, row := range rows {
		sum := 0
		for _, sent := range row.PerHour {
			sum += sent
		}
		testkit.Equal(t, row.Never, 0, "events of %s that were never reported", row.Name)
		testkit.Equal(t, row.Events, row.Sent+row.Folded+row.Digested, "events of %s", row.Name)
		testkit.Equal(t, sum, row.Sent+row.Steady, "messages of %s in all hours", row.Name)
	}
	lost := testkit.Must(ReplayWeek(t.Context(), Week(1), []Variant{{"without messages", foldsAll{}}}))(t)[0]
	testkit.Equal(t, lost.Never, lost.Events, "events that were folded into no message")
	var table strings.Builder
	testkit.NoError(t, WriteWeek(&table, rows))
	testkit.Contains(t, "the table", table.String(), "never reported", "with *@key=1/1h")
}

// foldsAll folds each event, though there is no message.
type foldsAll struct{}

func (foldsAll) Evaluate(events []Event) ([]Verdict, error) {
	return slices.Repeat([]Verdict{{Outcome: Folded, Number: 2}}, len(events)), nil
}

func (foldsAll) Reports(time.Time) []time.Time { return nil }

// TestReplayOfKeys has lines with keys: each key has its own slot.
func TestReplayOfKeys(t *testing.T) {
	t.Parallel()
	report := replay(t, lineAt(0, "payments", `, "key": "a"`)+lineAt(1, "payments", `, "key": "b"`)+lineAt(2, "payments", `, "key": "a"`)+
		lineAt(3, "payments.refunds", `, "key": "b"`)+lineAt(4, "payments", "")+lineAt(3601, "payments", `, "key": "a"`),
		newLimiter(t, "none", "none", "payments@key=1/1h"))
	testkit.Equal(t, report.Total.Sent, 4, "sent")
	testkit.EqualMaps(t, report.Total.Dropped, map[string]int{"payments@key": 2}, "dropped")
}
