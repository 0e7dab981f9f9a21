package render

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// trial is a sample event for trying a template.
type trial struct {
	name string
	view View
}

// trials are events of every kind: each severity and status, each optional part absent, and each text at its worst.
func trials() []trial {
	all := plainTrials()
	try := func(name, text string, at ...textPlace) {
		v := UsualView()
		for _, place := range at {
			place.put(&v.Event, text)
		}
		all = append(all, trial{name, v})
	}
	for _, place := range textPlaces {
		if place.optional {
			try("without "+place.name, "", place)
		}
		for _, text := range hostileTexts {
			try(fmt.Sprintf("%s %q", place.name, text), text, place)
		}
		for _, text := range longTexts() {
			try(fmt.Sprintf("%s of %d times %q", place.name, longText, text[:1]), text, place)
		}
	}
	for _, text := range longTexts() {
		try("every text long", text, textPlaces...)
	}
	return all
}

// plainTrials are everyday events.
func plainTrials() []trial {
	var all []trial
	for _, severity := range []event.Severity{
		event.SeverityInfo, event.SeverityWarning, event.SeverityError, event.SeverityCritical,
	} {
		for _, status := range []event.Status{"", event.StatusFiring, event.StatusResolved} {
			v := UsualView()
			v.Event.Severity, v.Event.Status = severity, status
			name := strings.TrimSpace(string(severity) + " " + string(status))
			all = append(all, trial{name, v})
			if status == event.StatusResolved {
				all = append(all, resolvedTrials(name, v)...)
			}
		}
	}
	least := event.Event{ID: "e-1", Category: "payments", Severity: event.SeverityInfo, Cost: 1}
	titled, untitled := least, least
	titled.Title, untitled.Text = "Refunds wait", "Refunds wait"
	counted := resolvedTrials("counted", UsualView())[1]
	counted.view.Ended = time.Time{}
	counted.view.Seen = sink.Seen{Times: 37, Last: time.Date(2026, 1, 2, 10, 31, 0, 0, time.UTC), Worst: event.SeverityCritical, Flapping: true}
	called := UsualView()
	called.Mention = "<!here> <@U0123ABCD> <!subteam^S0123ABCD>"
	many := UsualView()
	for i := range 3 * maxFields {
		many.Event.Fields = append(many.Event.Fields, event.Field{Name: fmt.Sprint("name ", i), Value: "value"})
	}
	return append(all,
		trial{"with a title alone", View{Delivery: sink.Delivery{Event: titled}}},
		trial{"with a text alone", View{Delivery: sink.Delivery{Event: untitled}}},
		trial{"with folded events", counted.view},
		trial{"with a mention", called},
		trial{"with many fields", many},
	)
}

// resolvedTrials returns the two messages of a resolved event: the reply, and the first message rewritten.
func resolvedTrials(name string, v View) []trial {
	v.Ended = v.Event.Time.Add(125 * time.Minute)
	v.Resolved = &sink.Receipt{
		Channel: "C0123456789", Timestamp: "1767322800.000100", ID: "e-0", Category: v.Event.Category,
		Title: v.Event.Title, Text: v.Event.Text, Severity: v.Event.Severity, Source: v.Event.Source, Link: v.Event.Link,
		Links: v.Event.Links, Fields: v.Event.Fields, Time: v.Event.Time,
	}
	rewritten := v
	rewritten.Rewrite = true
	return []trial{{name + ", in a thread", v}, {name + ", the first message", rewritten}}
}

// UsualView returns a sample with everything that an event may have, with harmless texts.
func UsualView() View {
	return View{Delivery: sink.Delivery{
		Event: event.Event{
			ID:       "e-1",
			Category: "payments.refunds",
			Title:    "Refunds wait",
			Text:     "42 refunds wait\nfor approval",
			Severity: event.SeverityError,
			Source:   "api-7",
			Link:     "https://example.org/refunds",
			Links:    []event.Field{{Name: "Runbook", Value: "https://example.org/runbooks/refunds"}, {Name: "Silence", Value: "https://example.org/silence"}},
			Fields:   []event.Field{{Name: "region", Value: "eu-1"}, {Name: "oldest", Value: "2 h"}},
			Time:     time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Cost:     1,
			Key:      "refunds",
		},
		Usage: []limits.Use{
			{Level: "global", Limit: "100/30m", Used: 61, Size: 100},
			{Level: "category", Path: "payments", Limit: "10/30m", Used: 7, Size: 10},
		},
	}}
}

// textPlace is a part of an event that holds a producer's text.
type textPlace struct {
	name     string
	optional bool
	put      func(e *event.Event, text string)
}

// textPlaces are all such parts except the category, which holds only safe characters.
var textPlaces = []textPlace{
	{"title", true, func(e *event.Event, text string) { e.Title = text }},
	{"text", true, func(e *event.Event, text string) { e.Text = text }},
	{"source", true, func(e *event.Event, text string) { e.Source = text }},
	{"link", true, func(e *event.Event, text string) { e.Link = linkOf(text) }},
	{"name of a link", true, func(e *event.Event, text string) { e.Links[0].Name = text }},
	{"link with a name", true, func(e *event.Event, text string) { e.Links[0].Value = linkOf(text) }},
	{"field's name", true, func(e *event.Event, text string) { e.Fields[0].Name = text }},
	{"field's value", true, func(e *event.Event, text string) { e.Fields[0].Value = text }},
	{"key", true, func(e *event.Event, text string) { e.Key = head(text, event.MaxIDBytes) }},
	{"id", false, func(e *event.Event, text string) { e.ID = head(plain.Line(text), event.MaxIDBytes) }},
}

func linkOf(text string) string {
	if text == "" || strings.HasPrefix(text, "https://") {
		return text
	}
	return "https://example.org/" + text
}

// head is the longest start of s that has at most limit bytes.
func head(s string, limit int) string { return strings.ToValidUTF8(s[:min(len(s), limit)], "") }

// hostileTexts try to mention, to link, to end a JSON string or to inject a template.
var hostileTexts = []string{
	"<!channel>", "!channel", "<@U1>", "@U1", "#C1", "<http://x|y>", "http://x|y", "a|b", "javascript:x",
	"&", "&lt;!channel&gt;", `"`, `\`, `\u003c!channel\u003e`, `", "x": "`, "line\nfeed", "\r\n\t\x00\x1b[31m",
	"}", "]", "{{", "}}", "{{.Title}}", "*bold* _text_ `code`", "null", "1", "#", "😀", " ",
}

const longText = 20_000

// longTexts have characters that count as one, as five, and as two lines of one against a limit.
func longTexts() []string {
	return []string{strings.Repeat("x", longText), strings.Repeat("&", longText), strings.Repeat("x\n", longText/2)}
}
