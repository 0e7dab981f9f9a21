package render

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/configs"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// render makes the message of the default template. It panics on an error.
func render(e event.Event) layout {
	l, err := (*Template)(nil).render(View{Delivery: sink.Delivery{Event: e}})
	if err != nil {
		panic(err)
	}
	return l
}

// allBlocks returns the layout's blocks, then those beside the bar, as slack-go reads them.
func (l layout) allBlocks() []slack.Block {
	all := slices.Clone(l.Blocks)
	for _, attachment := range l.Attachments {
		all = append(all, attachment.Blocks...)
	}
	encoded, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	var blocks slack.Blocks
	if err := json.Unmarshal(encoded, &blocks); err != nil {
		panic(err)
	}
	return blocks.BlockSet
}

// allTexts returns every text object of the layout's blocks, the headline's first.
func (l layout) allTexts() []*slack.TextBlockObject {
	var texts []*slack.TextBlockObject
	for _, block := range l.allBlocks() {
		switch block := block.(type) {
		case *slack.HeaderBlock:
			texts = append(texts, block.Text)
		case *slack.SectionBlock:
			if block.Text != nil {
				texts = append(texts, block.Text)
			}
			texts = append(texts, block.Fields...)
		case *slack.ContextBlock:
			for _, element := range block.ContextElements.Elements {
				texts = append(texts, element.(*slack.TextBlockObject)) //nolint:errcheck // a panic fails the test
			}
		}
	}
	return texts
}

func TestRenderHeadline(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 100)
	for _, test := range []struct {
		name     string
		event    event.Event
		headline string   // the header's text
		sections []string // texts of the sections below it
	}{
		{"title", event.Event{Title: "t", Text: "b"}, "[INFO] t", []string{"b"}},
		{"title alone", event.Event{Title: "t"}, "[INFO] t", nil},
		{"one line of text", event.Event{Text: "b"}, "[INFO] b", nil},
		{"two lines of text", event.Event{Text: "\r\na\r\nb\n"}, "[INFO] a", []string{"b"}},
		{"blank title", event.Event{Title: " \n\t\x00", Text: "a"}, "[INFO] a", nil},
		{"title over lines", event.Event{Title: "a\nb\u2028c"}, "[INFO] a b c", nil},
		{"neither", event.Event{Category: "c", Title: "\x01", Text: "\x02"}, "[INFO] c", nil},
		{"long title", event.Event{Title: long, Text: "b"}, "[INFO] " + long[:142] + "…", []string{strings.TrimSpace(long), "b"}},
		{"long line of text", event.Event{Text: long + "\nb"}, "[INFO] " + long[:142] + "…", []string{strings.TrimSpace(long), "b"}},
	} {
		l := render(test.event)
		testkit.Equal(t, l.allTexts()[0].Text, test.headline, "%s: headline", test.name)
		var sections []string
		for _, block := range l.allBlocks() {
			if section, ok := block.(*slack.SectionBlock); ok {
				sections = append(sections, section.Text.Text)
			}
		}
		testkit.EqualDeeply(t, sections, test.sections, "%s: sections", test.name)
	}
}

var severities = []event.Severity{event.SeverityInfo, event.SeverityWarning, event.SeverityError, event.SeverityCritical}

func TestRenderSeverities(t *testing.T) {
	t.Parallel()
	colours := make(map[string]bool)
	for _, s := range severities {
		l := render(event.Event{ID: "e-1", Title: "t", Severity: s})
		testkit.Equal(t, l.Text, "["+strings.ToUpper(string(s))+"] t", "%s: text", s)
		colour := l.Attachments[0].Color
		testkit.Equal(t, colourForm.MatchString(colour), true, "%s: the colour %q is hexadecimal", s, colour)
		colours[colour] = true
	}
	testkit.Equal(t, len(colours), len(severities), "different colours")
}

func TestRenderText(t *testing.T) {
	t.Parallel()
	x, y := func(n int) string { return strings.Repeat("x", n) }, func(n int) string { return strings.Repeat("y", n) }
	lines := strings.Repeat(x(99)+"\n", 29)
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"exactly one section":  {x(3000), []string{x(3000)}},
		"two sections":         {x(3000) + y(3000), []string{x(3000), y(3000)}},
		"too long":             {x(3000) + y(3001), []string{x(3000), y(2999) + "…"}},
		"broken at a line end": {lines + y(200), []string{strings.TrimSpace(lines), y(200)}},
		"an escape is not cut apart": {
			x(2998) + "&" + strings.Repeat("<", 1000), []string{x(2998), "&amp;" + strings.Repeat("&lt;", 748) + "…"},
		},
		"a character of two units is not cut apart": {strings.Repeat("😀", 1501), []string{strings.Repeat("😀", 1500), "😀"}},
		"blanks between": {"a" + strings.Repeat(" ", 9000) + "b", []string{"a", "b"}},
	} {
		testkit.EqualDeeply(t, sections(test.text, 2), test.want, "%s", name)
	}
}

func TestRenderFields(t *testing.T) {
	t.Parallel()
	many := make([]event.Field, 250)
	for i := range many {
		many[i] = event.Field{Name: fmt.Sprint("n", i), Value: "v"}
	}
	big := event.Field{Name: strings.Repeat("n", 500), Value: strings.Repeat("&", 5000)}
	for _, test := range []struct {
		name   string
		fields []event.Field
		shown  int
		note   string
	}{
		{"none", nil, 0, ""},
		{"one", many[:1], 1, ""},
		{"eleven", many[:11], 11, ""},
		{"too many", many, 100, "… 150 more fields"},
		{"too long together", []event.Field{big, big, big, {Name: "n", Value: "v"}}, 2, "… 2 more fields"},
		{"empty", []event.Field{{}, {Name: " ", Value: "\x00"}}, 0, ""},
		{"name alone and value alone", []event.Field{{Name: "n"}, {Value: "v"}}, 2, ""},
	} {
		shown, note := 0, ""
		for _, block := range fields(test.fields) {
			testkit.AtMost(t, len(block.Fields), 10, "%s: fields of a section", test.name)
			shown += len(block.Fields)
			if len(block.Elements) > 0 {
				note = block.Elements[0].Text
			}
		}
		testkit.Equal(t, shown, test.shown, "%s: fields shown", test.name)
		testkit.Equal(t, note, test.note, "%s: note", test.name)
	}
}

func TestRenderLink(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ link, kind, want string }{
		{"https://example.org/", "mrkdwn", "<https://example.org/|Open>"},
		{"http://example.org/?a=1&b=<2>|x y", "mrkdwn", "<http://example.org/?a=1&amp;b=%3C2%3E%7Cx%20y|Open>"},
		{"https://example.org/ <!channel>", "mrkdwn", "<https://example.org/%20%3C!channel%3E|Open>"},
		{"javascript:alert(1)", "plain_text", "javascript:alert(1)"},
		{"!channel", "plain_text", "!channel"},
		{"<!here>", "plain_text", "&lt;!here&gt;"},
		{"https://example.org/" + strings.Repeat("x", 1500), "plain_text", "https://example.org/" + strings.Repeat("x", 1479) + "…"},
	} {
		if got := compose(maxLink, link(test.link, "Open")); got.Type != test.kind || got.Text != test.want {
			t.Errorf("%s: got %s %q, want %s %q", test.link, got.Type, got.Text, test.kind, test.want)
		}
	}
}

func TestRenderTime(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ time, want string }{
		{"1970-01-01T00:00:00Z", "<!date^0^{date_short_pretty} {time}|1970-01-01T00:00:00Z>"},
		{"2100-12-31T23:59:59Z", "<!date^4133980799^{date_short_pretty} {time}|2100-12-31T23:59:59Z>"},
		{"2026-01-02T03:04:05+01:00", "<!date^1767319445^{date_short_pretty} {time}|2026-01-02T02:04:05Z>"},
		{"1969-12-31T23:59:59Z", "1969-12-31T23:59:59Z"},
	} {
		at := testkit.Must(time.Parse(time.RFC3339, test.time))(t)
		testkit.Equal(t, compose(maxContext, dateAndTime(at)).Text, test.want, "%s", test.time)
	}
}

var (
	linkMarkup = regexp.MustCompile(`^<https?://[^<>| \n]+\|Open>$`)
	dateMarkup = regexp.MustCompile(`^<!date\^\d+\^\{date_short_pretty\} \{time\}\|[0-9TZ:+-]+>$`)
	bareAmp    = regexp.MustCompile(`&(amp;|lt;|gt;)`)
)

// checkEscaped fails unless text is escaped, valid, and at most limit characters long.
func checkEscaped(t *testing.T, text string, limit int) {
	t.Helper()
	testkit.Equal(t, utf8.ValidString(text), true, "%q is valid UTF-8", text)
	testkit.AtMost(t, len(utf16.Encode([]rune(text))), limit, "characters of %.100q", text)
	testkit.Check(t, !strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }),
		"got %q, want no control characters", text)
	testkit.Check(t, !strings.ContainsAny(text, "<>") && !strings.Contains(bareAmp.ReplaceAllString(text, ""), "&"),
		"got %q, want escaped text", text)
}

func FuzzRender(f *testing.F) {
	f.Add("title", "text", "name", "value", "https://example.org/a?b=1", "source", "category", "error", int64(1767322800), uint8(3))
	f.Add("", "<!channel> & <@U123>", "<n>", ">&<", "https://x/|<>", "<s>", "c", "", int64(-1), uint8(0))
	f.Add("&<>", "<😀&amp;\nlines of text", "*n*", "v\n>value<", "javascript:x", "\x00", "", "x", int64(0), uint8(255))
	f.Add("\xff\xfe", "\u202e\u0000\r\n\r", "", "", " ", "\u2028", "a.b", "critical", int64(4133980799), uint8(12))
	f.Add("|", "&amp;lt;", "a", "b", "http://[::1]:80/%zz", "", "", "warning", int64(math.MaxInt64), uint8(1))
	f.Fuzz(func(t *testing.T, title, text, name, value, link, source, category, severity string, unix int64, count uint8) {
		// Repeating reaches the limits with inputs that are quick to mutate.
		again := func(s string, length int) string {
			return strings.Repeat(s, 1+int(count)*length/(len(s)+1)/math.MaxUint8)
		}
		e := event.Event{
			ID: name, Category: category, Title: again(title, 8000), Text: again(text, 8000), Severity: event.Severity(severity),
			Source: source, Link: again(link, 2000), Time: time.Unix(unix, 0),
		}
		for range count {
			e.Fields = append(e.Fields, event.Field{Name: name, Value: value})
		}
		if count%2 == 1 {
			e.Fields[0] = event.Field{Name: again(name, 500), Value: again(value, 4000)}
		}
		l := render(e)
		testkit.EqualDeeply(t, render(e), l, "rendered again")
		wantTemplate(t, View{Delivery: sink.Delivery{Event: e}})
		checkEscaped(t, l.Text, 4000)
		for _, attachment := range l.Attachments {
			checkEscaped(t, attachment.Fallback, maxFallback)
		}
		testkit.Equal(t, l.Text != "", true, "there is a text")
		checkBlocks(t, l.allBlocks())
		checkAllTexts(t, l)
	})
}

func checkBlocks(t *testing.T, blocks []slack.Block) {
	t.Helper()
	testkit.AtMost(t, len(blocks), 50, "blocks")
	for _, block := range blocks {
		switch block := block.(type) {
		case *slack.HeaderBlock:
			checkEscaped(t, block.Text.Text, 150)
		case *slack.SectionBlock:
			testkit.AtMost(t, len(block.Fields), 10, "fields in a section")
			for _, field := range block.Fields {
				checkEscaped(t, field.Text, 2000)
			}
		case *slack.ContextBlock:
			testkit.Between(t, len(block.ContextElements.Elements), 1, 10, "elements in a context")
		}
	}
}

// checkAllTexts checks that texts are escaped, except links and dates. It bounds the length of all texts together.
func checkAllTexts(t *testing.T, l layout) {
	t.Helper()
	total := 0
	for _, object := range l.allTexts() {
		if err := object.Validate(); err != nil {
			t.Errorf("%q: %v", object.Text, err)
		}
		total += len(utf16.Encode([]rune(object.Text)))
		if object.Type != slack.MarkdownType || !linkMarkup.MatchString(object.Text) && !dateMarkup.MatchString(object.Text) {
			checkEscaped(t, object.Text, 3000)
		}
	}
	testkit.AtMost(t, total, 13000, "characters in all blocks")
}

var renderedStates = []struct {
	name    string
	change  func(*View)
	colour  string
	first   []string // the texts above the bar
	context []string // without the time
}{
	{
		"firing", func(v *View) { *v = UsualView(); v.Event.Status, v.Mention = event.StatusFiring, "<!here>" }, "#dc2626",
		[]string{"<!here>", "[FIRING ERROR] Refunds wait"},
		[]string{"category payments.refunds", "source api-7", "id e-1", "payments 7 of 10 in 30m, global 61 of 100 in 30m"},
	},
	{
		"resolved", func(v *View) { v.Resolved = nil }, "#16a34a",
		[]string{"[RESOLVED] Refunds go on"}, []string{"category payments.refunds", "source api-7", "id e-2"},
	},
	{
		"resolved after a time", func(*View) {}, "#16a34a",
		[]string{"[RESOLVED] Refunds go on"}, []string{"category payments.refunds", "source api-7", "after 2h 5m", "id e-2"},
	},
	{
		"the first message", func(v *View) { v.Rewrite = true }, "#16a34a",
		[]string{"[RESOLVED] Refunds wait"}, []string{"category payments.refunds", "after 2h 5m", "id e-1"},
	},
	{
		"fired in the year 0", func(v *View) { v.Resolved.Time = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) }, "#16a34a",
		[]string{"[RESOLVED] Refunds go on"}, []string{"category payments.refunds", "source api-7", "id e-2"},
	},
	{
		"resolved before it fired", func(v *View) { v.Ended = v.Resolved.Time.Add(-time.Hour) }, "#16a34a",
		[]string{"[RESOLVED] Refunds go on"}, []string{"category payments.refunds", "source api-7", "id e-2"},
	},
}

// resolvedView is the view of an event that resolves one of 125 minutes before.
func resolvedView() View {
	v := UsualView()
	v.Event.ID, v.Event.Title, v.Event.Status, v.Usage = "e-2", "Refunds go on", event.StatusResolved, nil
	v.Ended = v.Event.Time
	v.Resolved = &sink.Receipt{
		Timestamp: "1.2", ID: "e-1", Category: "payments.refunds", Title: "Refunds wait", Severity: event.SeverityError,
		Time: v.Ended.Add(-125 * time.Minute),
	}
	return v
}

func TestRenderStatus(t *testing.T) {
	t.Parallel()
	for _, test := range renderedStates {
		v := resolvedView()
		test.change(&v)
		l := testkit.Must((*Template)(nil).render(v))(t)
		testkit.Equal(t, l.Attachments[0].Color, test.colour, "%s: colour", test.name)
		var first, context []string
		for _, block := range l.Blocks {
			first = append(first, block.Text.Text)
		}
		blocks := l.Attachments[0].Blocks
		for _, element := range blocks[len(blocks)-1].Elements {
			if !strings.HasPrefix(element.Text, "<!date^") {
				context = append(context, element.Text)
			}
		}
		testkit.EqualSlices(t, first, test.first, "%s: above the bar", test.name)
		testkit.EqualSlices(t, context, test.context, "%s: small print", test.name)
	}
}

func BenchmarkRender(b *testing.B) {
	parsed := testkit.Must(parseTemplate("t", configs.SlackMessage))(b)
	v := UsualView()
	for name, t := range map[string]*Template{"go": nil, "template": parsed} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				testkit.Must(t.render(v))(b)
			}
		})
	}
}
