package render

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestDurationText(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second:                  "",
		0:                             "",
		time.Millisecond:              "1s",
		59*time.Second + 999999999:    "59s",
		time.Minute:                   "1m",
		61 * time.Second:              "1m 1s",
		time.Hour + 59*time.Second:    "1h",
		125 * time.Minute:             "2h 5m",
		24*time.Hour + 59*time.Minute: "1d",
		100*24*time.Hour + time.Hour:  "100d 1h",
	} {
		testkit.Equal(t, durationText(d), want, "%v", d)
	}
}

func TestUsageText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		usage []limits.Use
		want  string
	}{
		{nil, ""},
		{[]limits.Use{{Path: "payments", Limit: "10/30m", Used: 7, Size: 10}}, "payments 7 of 10 in 30m"},
		{
			[]limits.Use{{Level: "global", Limit: "100/30m", Used: 61, Size: 100}, {Path: "a.b", Limit: "5/minute", Used: 5, Size: 5}},
			"a.b 5 of 5 in minute, global 61 of 100 in 30m",
		},
		{[]limits.Use{{Path: "a", Limit: "token:100/1h;burst=20", Used: 7, Size: 20}}, "a 7 of 20 in 1h"},
		{[]limits.Use{{Path: "a", Limit: "inflight:3", Used: 1, Size: 3}}, "a 1 of 3"},
	} {
		testkit.Equal(t, usageText(test.usage), test.want, "%+v", test.usage)
	}
}

func TestBlockFunctions(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	full := contextOf("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11")
	testkit.Equal(t, len(full.Elements), elementsLimit, "elements of a full context")
	for _, test := range []struct {
		name string
		got  block
		want string
	}{
		{"header", testkit.Must(header("a", 1, nil, "<"))(t), `{"type":"header","text":{"type":"plain_text","text":"a1&lt;"}}`},
		{"empty header", testkit.Must(header(" ", nil))(t), "null"},
		{"section", sectionOf("a & ", link("https://x.org", "b|c")),
			`{"type":"section","text":{"type":"mrkdwn","text":"a &amp; <https://x.org|b/c>","verbatim":true}}`},
		{"empty section", sectionOf("", markup("")), "null"},
		{"context", contextOf(labelled("a", ""), labelled("b", "c"), labelled("<", clock(at))),
			`{"type":"context","elements":[{"type":"plain_text","text":"b c"},` +
				`{"type":"mrkdwn","text":"&lt; <!date^1767323045^{time}|03:04 UTC>","verbatim":true}]}`},
		{"empty context", contextOf(dateAndTime(time.Time{}), ""), "null"},
	} {
		testkit.Equal(t, printed(test.got), test.want, "%s", test.name)
	}
}

// TestLinks names links, escapes them, and leaves out those for which there is no room.
func TestLinks(t *testing.T) {
	t.Parallel()
	long := "https://x.org/" + strings.Repeat("a", maxLink-100)
	for _, test := range []struct {
		name, address string
		others        []event.Field
		want          any
	}{
		{"none", "", nil, markup("")},
		{"one", "https://x.org", nil, markup("<https://x.org|Open>")},
		{"the same by its name", "https://x.org", []event.Field{{Name: "Source", Value: "https://x.org"}}, markup("<https://x.org|Source>")},
		{"names alone", "", []event.Field{{Name: "Runbook", Value: "https://r"}, {Name: "a|<!channel>", Value: "https://s?<@U1>|x"}},
			markup("<https://r|Runbook>  ·  <https://s?%3C@U1%3E%7Cx|a/&lt;!channel&gt;>")},
		{"no address of the web", "https://x.org", []event.Field{{Name: "Runbook", Value: "javascript:alert(1)"}, {Name: "\u200b", Value: "https://z"}},
			markup("<https://x.org|Open>  ·  <https://z|Open>")},
		{"too long", "https://x.org", []event.Field{{Name: "A", Value: long}, {Name: "B", Value: long}, {Name: "C", Value: "https://c"}},
			markup("<https://x.org|Open>  ·  <" + long + "|A>  ·  <https://c|C>")},
	} {
		testkit.Equal(t, links(test.address, test.others), test.want, "%s", test.name)
	}
}

// Texts are cut to make room for markup. Markup is never cut.
func TestCompose(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit int
		parts []any
		want  string
	}{
		{10, []any{"0123456789"}, "0123456789"},
		{10, []any{"0123456789a"}, "012345678…"},
		{10, []any{"01234", "56789a"}, "0123456789"[:5] + "5678…"},
		{10, []any{"01234567", markup("<!x>")}, "01234…<!x>"},
		{10, []any{"<<<", "abc"}, "&lt;&lt;…"},
		{4, []any{"a", markup("<!x>"), "b"}, "<!x>"},
	} {
		testkit.Equal(t, compose(test.limit, test.parts...).Text, test.want, "%v in %d", test.parts, test.limit)
	}
}
