package render

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func sampleSummary() summary.Digest {
	first := time.Date(2026, 1, 2, 10, 2, 0, 0, time.UTC)
	return summary.Digest{
		Channel: "C0000001",
		Dropped: 5321,
		First:   first,
		Last:    first.Add(29 * time.Minute),
		Paths: []summary.Path{
			{Path: "debug", Rest: true, Dropped: 4698},
			{
				Path: "payments.refunds", Dropped: 112, Reasons: []summary.Reason{{Text: "payments.* 10/30m", Dropped: 112}},
				Opens: first.Add(33 * time.Minute), Title: "Refund <stuck>",
			},
		},
		MorePaths: 290, MoreAtLeast: true, MoreDropped: 499,
		Unpaired: 12,
		Changes:  []summary.Change{{At: first.Add(10 * time.Minute), Limit: "payments.*", Value: "10/30m"}},
	}
}

const (
	sampleLine = "5321 notifications were suppressed between 10:02 and 10:31 UTC: " +
		"4698 × other paths below debug; " +
		"112 × payments.refunds (payments.* 10/30m, next slot opens 10:35 UTC, such as Refund <stuck>); " +
		"and at least 290 more paths: 499; 12 resolved alerts had no open notification; " +
		"the live limit of payments.* was set to 10/30m at 10:12 UTC"
	sampleFrom, sampleTo = "<!date^1767348120^{time}|10:02 UTC>", "<!date^1767349860^{time}|10:31 UTC>"
	sampleOpens          = "next slot opens <!date^1767350100^{date_short_pretty} {time}|2026-01-02T10:35:00Z>"
	sampleChanged        = "<!date^1767348720^{date_short_pretty} {time}|2026-01-02T10:12:00Z>"
)

var renderedSummaries = []struct {
	name   string
	change func(*summary.Digest)
	line   string
	texts  []string
}{
	{
		"usual", func(*summary.Digest) {}, sampleLine,
		[]string{
			"5321 notifications were suppressed between " + sampleFrom + " and " + sampleTo,
			"4698 × other paths below debug",
			"112 × payments.refunds\nRefund &lt;stuck&gt;", "payments.* 10/30m", sampleOpens,
			"and at least 290 more paths: 499",
			"12 resolved alerts had no open notification",
			"the live limit of payments.* was set to 10/30m", sampleChanged,
		},
	},
	{
		"at least, for several reasons, some of it in doubt",
		func(s *summary.Digest) {
			s.AtLeast, s.Doubtful, s.Unpaired, s.MoreAtLeast, s.MorePaths, s.MoreDropped = true, 40, 1, false, 1, 3
			s.Paths = []summary.Path{{
				Path: "payments", Dropped: 12, Reasons: []summary.Reason{
					{Text: "payments 10/30m", Dropped: 7}, {Text: "could not wait: too many waited already", Dropped: 5},
				},
			}}
			s.Changes = []summary.Change{{At: s.First.AddDate(0, 0, -1), Limit: "global", By: "anna"}}
		},
		"at least 5321 notifications were suppressed between 10:02 and 10:31 UTC: " +
			"12 × payments (payments 10/30m: 7, could not wait: too many waited already: 5); and 1 more path: 3; " +
			"1 resolved alert had no open notification; including 40 that an earlier digest may have reported; " +
			"the live limit of global was unset by anna at 2026-01-01 10:02 UTC",
		[]string{
			"at least 5321 notifications were suppressed between " + sampleFrom + " and " + sampleTo,
			"12 × payments", "payments 10/30m: 7, could not wait: too many waited already: 5",
			"and 1 more path: 3",
			"1 resolved alert had no open notification",
			"including 40 that an earlier digest may have reported",
			"the live limit of global was unset by anna", "<!date^1767261720^{date_short_pretty} {time}|2026-01-01T10:02:00Z>",
		},
	},
	{
		"one, within a minute",
		func(s *summary.Digest) {
			*s = summary.Digest{
				Dropped: 1, First: s.First.Add(time.Second), Last: s.First.Add(59 * time.Second),
				Paths: []summary.Path{{Path: "payments", Dropped: 1, Opens: s.First.AddDate(0, 0, 1)}},
			}
		},
		"1 notification was suppressed at 10:02 UTC: 1 × payments (next slot opens 2026-01-03 10:02 UTC)",
		[]string{
			"1 notification was suppressed at <!date^1767348121^{date_short_pretty} {time}|2026-01-02T10:02:01Z>",
			"1 × payments",
			"next slot opens <!date^1767434520^{date_short_pretty} {time}|2026-01-03T10:02:00Z>",
		},
	},
	{
		"unpaired alone, over days",
		func(s *summary.Digest) {
			*s = summary.Digest{Dropped: 2, Unpaired: 2, First: s.First, Last: s.First.Add(48 * time.Hour)}
		},
		"2 notifications were suppressed between 2026-01-02 10:02 and 2026-01-04 10:02 UTC: 2 resolved alerts had no open notification",
		[]string{
			"2 notifications were suppressed between " +
				"<!date^1767348120^{date_short_pretty} {time}|2026-01-02T10:02:00Z> and " +
				"<!date^1767520920^{date_short_pretty} {time}|2026-01-04T10:02:00Z>",
			"2 resolved alerts had no open notification",
		},
	},
}

func TestRenderSummary(t *testing.T) {
	t.Parallel()
	for _, test := range renderedSummaries {
		s := sampleSummary()
		test.change(&s)
		testkit.Equal(t, newSummaryContent(s).Line, test.line, "%s: line", test.name)
		l := renderSummary(s)
		testkit.Equal(t, l.Text, escape(test.line), "%s: text", test.name)
		var texts []string
		for _, text := range l.allTexts() {
			texts = append(texts, text.Text)
		}
		testkit.EqualSlices(t, texts, test.texts, "%s: texts", test.name)
	}
}

// Hostile texts and large counts keep a summary within Slack's limits and without mentions. The other paths count what has no room.
func TestRenderSummaryOfAnything(t *testing.T) {
	t.Parallel()
	for _, text := range append(longTexts(), hostileTexts...) {
		s := sampleSummary()
		s.Paths, s.Changes, s.MorePaths, s.MoreDropped, s.AtLeast, s.Doubtful = nil, nil, 5, 500, true, 1e15
		for i := range 100 {
			path := summary.Path{Path: text, Dropped: 1e12, Title: text, Rest: i%2 == 0, Opens: s.Last.Add(time.Hour)}
			for range 100 {
				path.Reasons = append(path.Reasons, summary.Reason{Text: strings.Repeat("x", 128) + text, Dropped: 1e12})
			}
			s.Paths = append(s.Paths, path)
			s.Changes = append(s.Changes, summary.Change{At: s.First, Limit: text, Value: "token:10000000/8784h;burst=10000000", By: text})
		}
		l, err := summaryTemplate().execute(newSummaryContent(s), "")
		testkit.Check(t, err == nil, "%.20q: got %v, want no error", text, err)
		m := renderSummary(s)
		checkEscaped(t, m.Text, 4000)
		got := len(m.Attachments)
		testkit.Require(t, got == 1, "%.20q: got %d attachments, want 1", text, got)
		testkit.AtMost(t, len(l.Attachments[0].Blocks), 50, "%.20q: blocks", text)
		found := false
		for _, object := range m.allTexts() {
			if !strings.Contains(object.Text, "<!date^") {
				checkEscaped(t, object.Text, sectionLimit)
			}
			found = found || object.Text == "and at least 95 more paths: 90000000000500"
		}
		testkit.Equal(t, found, true, "%.20q: there is a line of the other paths", text)
	}
}

func TestSampleInTheDocumentation(t *testing.T) {
	t.Parallel()
	if picture := renderSummary(sampleSummary()).picture(); !strings.Contains(testkit.Text(t, "../../../docs/delivery.md"), "\n"+picture+"```\n") {
		t.Errorf("docs/delivery.md does not show\n%s", picture)
	}
}
