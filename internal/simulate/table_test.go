package simulate

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var sample = Report{
	From: midnight, To: midnight.Add(90 * time.Minute), Invalid: 3,
	Paths: []Path{
		{Category: "payments", Seen: 1500, Sent: 40, Duplicate: 2, Dropped: map[string]int{"payments.*": 20, "category": 1000, "global": 438}, LongestSilence: 65 * time.Minute},
		{Category: "errors", Seen: 20, Sent: 20, LongestSilence: 1500 * time.Millisecond},
		{Category: "audit", Seen: 1, Dropped: map[string]int{"global": 1}},
	},
	Total: Path{
		Seen: 1521, Sent: 60, Duplicate: 2, Dropped: map[string]int{"payments.*": 20, "category": 1000, "global": 439},
		LongestSilence: 20 * time.Minute,
	},
}

func table(t *testing.T, top int) string {
	t.Helper()
	var out strings.Builder
	testkit.NoError(t, WriteTable(&out, sample, top))
	return "\n" + out.String()
}

func TestTable(t *testing.T) {
	t.Parallel()
	all := `
  category  seen  sent  dropped  dropped by                                duplicate  longest silence
  payments  1500    40     1458  global 438, category 1000, payments.* 20          2             1h5m
  errors      20    20        0  -                                                 0             1.5s
  audit        1     0        1  global 1                                          0               0s
  total     1521    60     1459  global 439, category 1000, payments.* 20          2              20m
`
	for _, top := range []int{0, 3, 50} {
		testkit.Equal(t, table(t, top), all, "the first %d", top)
	}
	some := `
  category  seen  sent  dropped  dropped by                                duplicate  longest silence
  payments  1500    40     1458  global 438, category 1000, payments.* 20          2             1h5m
  (2 more)    21    20        1  global 1                                          0                -
  total     1521    60     1459  global 439, category 1000, payments.* 20          2              20m
`
	testkit.Equal(t, table(t, 1), some, "the first")
}

func TestComparison(t *testing.T) {
	t.Parallel()
	other := sample
	other.Paths = []Path{
		{Category: "payments", Seen: 1500, Sent: 140, Duplicate: 1, Dropped: map[string]int{"global": 1359}, LongestSilence: time.Minute},
		{Category: "errors", Seen: 20, Sent: 5, Dropped: map[string]int{"global": 15}, LongestSilence: 2 * time.Second},
		{Category: "audit", Seen: 1, Dropped: map[string]int{"global": 1}},
	}
	other.Total = Path{Seen: 1521, Sent: 145, Duplicate: 1, Dropped: map[string]int{"global": 1375}, LongestSilence: time.Second}
	var out strings.Builder
	testkit.NoError(t, WriteComparison(&out, sample, other, 2))
	testkit.Equal(t, "\n"+out.String(), `
  category  seen  sent a  sent b   b-a  dropped a  dropped b  dupl. a  dupl. b  silence a  silence b
  payments  1500      40     140  +100       1458       1359        2        1       1h5m         1m
  errors      20      20       5   -15          0         15        0        0       1.5s         2s
  (1 more)     1       0       0     0          1          1        0        0          -          -
  total     1521      60     145   +85       1459       1375        2        1        20m         1s

a drops by: global 439, category 1000, payments.* 20
b drops by: global 1375
`, "comparison")
}

// TestComparisonOfNothing leaves out columns of zeros, and the rules without drops.
func TestComparisonOfNothing(t *testing.T) {
	t.Parallel()
	all := Report{Paths: []Path{{Category: "errors", Seen: 2, Sent: 2}}, Total: Path{Seen: 2, Sent: 2}}
	var out strings.Builder
	testkit.NoError(t, WriteComparison(&out, all, all, 0))
	testkit.Equal(t, "\n"+out.String(), `
  category  seen  sent a  sent b
  errors       2       2       2
  total        2       2       2
`, "comparison")
}

func TestFormatSpan(t *testing.T) {
	t.Parallel()
	for span, want := range map[time.Duration]string{
		0: "0s", 400 * time.Microsecond: "0s", 1499 * time.Microsecond: "1ms", 250 * time.Millisecond: "250ms",
		999_600 * time.Microsecond: "1s", 1234 * time.Millisecond: "1.2s", 59_960 * time.Millisecond: "1m",
		61_499 * time.Millisecond: "1m1s", 59*time.Minute + 59_600*time.Millisecond: "1h",
		2*time.Hour + 5*time.Minute + 29*time.Second: "2h5m", 24*time.Hour - time.Second: "1d", 24 * time.Hour: "1d",
		76 * time.Hour: "3d4h", 366 * 24 * time.Hour: "366d",
	} {
		testkit.Equal(t, formatSpan(span), want, "%v is shown as", span)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Report{
		`{"from":"2026-03-01T00:00:00Z","to":"2026-03-01T01:30:00Z","events":1521,"invalid":3,"paths":[` +
			`{"category":"payments","seen":1500,"sent":40,"duplicate":2,"dropped":{"category":1000,"global":438,"payments.*":20},"longest_silence_seconds":3900},` +
			`{"category":"errors","seen":20,"sent":20,"duplicate":0,"dropped":{},"longest_silence_seconds":1.5},` +
			`{"category":"audit","seen":1,"sent":0,"duplicate":0,"dropped":{"global":1},"longest_silence_seconds":0}],` +
			`"total":{"seen":1521,"sent":60,"duplicate":2,"dropped":{"category":1000,"global":439,"payments.*":20},"longest_silence_seconds":1200}}`: sample,
		`{"from":null,"to":null,"events":0,"invalid":0,"paths":[],` +
			`"total":{"seen":0,"sent":0,"duplicate":0,"dropped":{},"longest_silence_seconds":0}}`: {},
	} {
		testkit.Equal(t, string(testkit.Must(json.Marshal(r))(t)), want, "report")
	}
}

func TestTableCannotBePrinted(t *testing.T) {
	t.Parallel()
	full := failing{errors.New("disk is full")}
	for what, err := range map[string]error{"table": WriteTable(full, sample, 0), "comparison": WriteComparison(full, sample, sample, 0)} {
		testkit.Fails(t, what, err, full.error)
	}
}
