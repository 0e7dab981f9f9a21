package sink

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func sampleSummary() Summary {
	first := time.Date(2026, 1, 2, 10, 2, 0, 0, time.UTC)
	return Summary{
		Path:    "payments.refunds",
		Dropped: 12,
		First:   first,
		Last:    first.Add(29 * time.Minute),
		Limits:  []SuppressedBy{{"payments", "10/30m", 12}},
		Titles:  []TitleCount{{"Refund <stuck>", 9}, {"Payout\nlate", 2}, {"<!channel>", 1}},
		Opens:   first.Add(40 * time.Minute),
	}
}

func TestRenderSummary(t *testing.T) {
	t.Parallel()
	const (
		from, to, opens = "<!date^1767348120^{time}|10:02 UTC>", "<!date^1767349860^{time}|10:31 UTC>",
			"next slot opens <!date^1767350520^{date_short_pretty} {time}|2026-01-02T10:42:00Z>"
		titles = "Most frequent:\n9 × Refund &lt;stuck&gt;\n2 × Payout late\n1 × &lt;!channel&gt;"
	)
	tests := []struct {
		name   string
		change func(*Summary)
		line   string
		texts  []string
	}{
		{
			"usual", func(*Summary) {},
			"12 notifications of payments.refunds were suppressed between 10:02 and 10:31 UTC by payments 10/30m: " +
				"9 × Refund <stuck>, 2 × Payout late, 1 × <!channel>; next slot opens 10:42 UTC",
			[]string{
				"12 notifications of payments.refunds were suppressed between " + from + " and " + to,
				titles, "limit payments 10/30m", opens,
			},
		},
		{
			"at least, by several limits",
			func(s *Summary) {
				s.AtLeast, s.Titles, s.Opens = true, nil, time.Time{}
				s.Limits = []SuppressedBy{{"payments", "10/30m", 9}, {"global", "100/30m", 3}}
			},
			"at least 12 notifications of payments.refunds were suppressed between 10:02 and 10:31 UTC " +
				"by payments 10/30m (9), global 100/30m (3)",
			[]string{
				"At least 12 notifications of payments.refunds were suppressed between " + from + " and " + to,
				"limit payments 10/30m: 9, global 100/30m: 3",
			},
		},
		{
			"one",
			func(s *Summary) {
				s.Dropped, s.Last, s.Titles, s.Limits, s.Opens = 1, s.First, nil, nil, s.First.AddDate(0, 0, 1)
			},
			"1 notification of payments.refunds was suppressed at 10:02 UTC; next slot opens 2026-01-03 10:02 UTC",
			[]string{
				"1 notification of payments.refunds was suppressed at " +
					"<!date^1767348120^{date_short_pretty} {time}|2026-01-02T10:02:00Z>",
				"next slot opens <!date^1767434520^{date_short_pretty} {time}|2026-01-03T10:02:00Z>",
			},
		},
		{
			"over days",
			func(s *Summary) {
				s.Last, s.Titles, s.Limits, s.Opens = s.First.Add(48*time.Hour), nil, nil, time.Time{}
			},
			"12 notifications of payments.refunds were suppressed between 2026-01-02 10:02 and 2026-01-04 10:02 UTC",
			[]string{
				"12 notifications of payments.refunds were suppressed between " +
					"<!date^1767348120^{date_short_pretty} {time}|2026-01-02T10:02:00Z> and " +
					"<!date^1767520920^{date_short_pretty} {time}|2026-01-04T10:02:00Z>",
			},
		},
	}
	for _, test := range tests {
		s := sampleSummary()
		test.change(&s)
		if got := SummaryLine(s); got != test.line {
			t.Errorf("%s: line %q, want %q", test.name, got, test.line)
		}
		m := renderSummary(s)
		if want := escape(test.line); m.Text != want {
			t.Errorf("%s: text %q, want %q", test.name, m.Text, want)
		}
		var texts []string
		for _, text := range m.allTexts() {
			texts = append(texts, text.Text)
		}
		if !reflect.DeepEqual(texts, test.texts) {
			t.Errorf("%s: texts %q, want %q", test.name, texts, test.texts)
		}
	}
}

// No title, and no number of anything, brings a summary over Slack's limits or to mention anybody.
func TestRenderSummaryOfAnything(t *testing.T) {
	t.Parallel()
	for _, text := range append(longTexts(), hostileTexts...) {
		s := sampleSummary()
		s.Titles, s.Limits = nil, nil
		for i := range int64(100) {
			s.Titles = append(s.Titles, TitleCount{text, 1e15 + i})
			s.Limits = append(s.Limits, SuppressedBy{strings.Repeat("x", 128), "token:10000000/8784h;burst=10000000", 1e15 + i})
		}
		if _, err := summaryTemplate().execute(newSummaryContent(s), ""); err != nil {
			t.Errorf("%.20q: %v", text, err)
		}
		m := renderSummary(s)
		checkEscaped(t, m.Text, 4000)
		if got := len(m.Attachments); got != 1 {
			t.Errorf("%.20q: %d attachments", text, got)
		}
		for _, object := range m.allTexts() {
			if !strings.Contains(object.Text, "<!date^") {
				checkEscaped(t, object.Text, sectionLimit)
			}
		}
	}
}
