package render

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/configs"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestParse(t *testing.T) {
	t.Parallel()
	testkit.Must(Parse(configs.SlackMessage))(t)
}

// templateFaults has the texts that the error of each fixture must contain. Each fixture breaks one rule.
var templateFaults = map[string][]string{
	"not-closed":                {"template:1:", "bad character"},
	"unknown-function":          {`"unknown" not defined`},
	"unknown-name-in-a-branch":  {"(warning firing)", "Titel"},
	"needs-what-is-optional":    {"(with a title alone)", "slice .Source"},
	"not-json":                  {"(info)", "not JSON", `"A"`},
	"without-quotes":            {"(info)", "not JSON", `"{\"text\": R"`},
	"two-messages":              {"(info)", "behind the message"},
	"unknown-member":            {"(info)", `"channel"`},
	"unknown-block":             {"(info)", "block 1 (image)", "a block is a header"},
	"unknown-member-of-a-block": {"(info)", `"txt"`},
	"unknown-type-of-text":      {"(info)", "block 1 (section)", `not "markdown"`},
	"header-with-markup":        {"(info)", "block 1 (header)", "plain_text"},
	"header-with-a-link":        {"(info)", "a header shows no links"},
	"section-with-elements":     {"(info)", "block 1 (section)", "fields, or both"},
	"context-with-a-text":       {"(info)", "block 1 (context)", "elements and nothing else"},
	"divider-with-a-text":       {"(info)", "block 1 (divider)", "has nothing"},
	"no-text":                   {"(with a title alone)", "the text of the message is empty"},
	"leaks-a-mention":           {"(info)", "block 1 (section)", `leaks "<Refunds wait>"`},
	"leaks-a-link":              {`(link "<http://x|y>")`, "block 1 (section)", `leaks "<https://example.org/&lt;http://x|y&gt;|Open>"`},
	"leaks-by-an-escape":        {"(info)", "block 1 (section)", `leaks "<api-7>"`},
	"leaks-in-the-text":         {"(info)", "the text of the message", "leaks"},
	"leaks-in-the-fallback":     {"(info)", "attachment 1: the fallback", "leaks"},
	"markup-in-plain-text":      {"(info)", "block 1 (section)", "type mrkdwn"},
	"colour-from-the-event":     {"(info)", "attachment 1", `colour "Refunds wait"`},
	"long-text":                 {`(title of 20000 times "&")`, "the text of the message: ", "takes 40000"},
	"long-header":               {`(title of 20000 times "x")`, "block 1 (header): 20000 characters", "takes 150"},
	"long-section":              {`(text of 20000 times "x")`, "block 1 (section): 20000 characters", "takes 3000"},
	"long-field":                {`(source of 20000 times "x")`, "block 1 (section): 20000 characters", "takes 2000"},
	"long-element":              {`(source of 20000 times "x")`, "block 1 (context): 20000 characters", "takes 3000"},
	"long-fallback":             {`(title of 20000 times "x")`, "attachment 1: the fallback: 20000 characters"},
	"many-fields":               {"(with many fields)", "block 1 (section): 302 fields", "takes 10"},
	"many-elements":             {"(with many fields)", "block 1 (context): 302 elements", "takes 10"},
	"many-blocks":               {"(with many fields)", "the message: 302 blocks", "takes 50"},
	"many-attachments":          {"(with many fields)", "the message: 302 attachments", "takes 20"},
	"much-together":             {`(text of 20000 times "x")`, "all blocks together: 15000 characters", "takes 13000"},
	"endless":                   {"(info)", `"template" is longer than 262144 bytes`},
	"loop-without-output":       {"(info)", `"template" took longer than 1s`},
	"loop-in-a-variable":        {"(info)", `"template" took longer than 1s`},
	"calls-itself":              {"(info)", `"template" took longer than 1s`},
}

func TestParseTemplateFaults(t *testing.T) {
	t.Parallel()
	for _, fixture := range testkit.Must(filepath.Glob(filepath.Join("testdata", "templates", "*.tmpl")))(t) {
		name := strings.TrimSuffix(filepath.Base(fixture), ".tmpl")
		if _, ok := templateFaults[name]; !ok && name != "own" {
			t.Errorf("got the fixture %s, want it in templateFaults", fixture)
		}
	}
	for name, wants := range templateFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parsed, err := Parse(testkit.Text(t, filepath.Join("testdata", "templates", name+".tmpl")))
			testkit.Require(t, err != nil && parsed == nil, "got %v, want a fault and no template", err)
			testkit.Contains(t, "error", err.Error(), wants...)
			testkit.Check(t, !strings.ContainsAny(err.Error(), "\n\x1b") && len(err.Error()) <= 400,
				"got %q, want one line of 400 bytes at most", err)
		})
	}
}

func TestTemplateRender(t *testing.T) {
	t.Parallel()
	parsed := testkit.Must(Parse(testkit.Text(t, "testdata/templates/own.tmpl")))(t)
	v := UsualView()
	v.Event.Title, v.Event.Source, v.Event.Link = `"<!channel>" \ {{.ID}}`, "", ""
	m := testkit.Must(parsed.render(v))(t)
	const title = `"&lt;!channel&gt;" \ {{.ID}}`
	testkit.Equal(t, m.Text, title, "text")
	testkit.Equal(t, len(m.Attachments), 0, "attachments")
	want := []string{
		"<!here> *" + title + "*  & <!date^1767323045^{date_short_pretty} {time}|2026-01-02T03:04:05Z>",
		"global: 61/100", "payments: 7/10", "payments.refunds ()",
	}
	var got []string
	for _, text := range m.allTexts() {
		got = append(got, text.Text)
		if text.Type == slack.MarkdownType && !text.Verbatim {
			t.Errorf("%q: got markup with mentions, want verbatim", text.Text)
		}
	}
	testkit.EqualSlices(t, got, want, "texts")
	testkit.Equal(t, len(m.Blocks), 3, "blocks without the section of the absent source")
}

func TestTemplateEscapes(t *testing.T) {
	t.Parallel()
	const text = `<!here> & "x" \`
	for _, action := range []string{
		"{{.Title}}", "{{.Title | print}}", `{{printf "%s" .Title}}`, "{{with .Title}}{{.}}{{end}}", "{{cut 100 .Title}}",
		"{{if false}}{{else if true}}{{.Title}}{{end}}", "{{range .Fields}}{{.Value}}{{end}}", "{{range $f := .Fields}}{{$f.Value}}{{end}}",
		"{{$t := .Title}}{{$t}}", `{{define "t"}}{{.Title}}{{end}}{{template "t" .}}`, `{{block "t" .}}{{.Title}}{{end}}`,
		`{{or "" .Title}}`, `{{index (index .Fields 0).Value 0 | printf "%c"}}{{slice .Title 1}}`, `{{label "" .Title}}`,
	} {
		parsed := testkit.Must(parseTemplate("template", `{"text": "`+action+`"}`))(t)
		v := UsualView()
		v.Event.Title, v.Event.Fields = text, []event.Field{{Name: "n", Value: text}}
		if m, err := parsed.render(v); err != nil || strings.TrimSpace(m.Text) != `&lt;!here&gt; &amp; "x" \` {
			t.Errorf("%s: got %q and %v, want the escaped text", action, m.Text, err)
		}
	}
	// A function of the language turns markup into text.
	parsed := testkit.Must(parseTemplate("template", `{"text": "{{print (link .Link "Open")}}"}`))(t)
	m, err := parsed.render(UsualView())
	testkit.Check(t, err == nil && m.Text == "&lt;https://example.org/refunds|Open&gt;", "got %q and %v, want the escaped markup", m.Text, err)
}

// The texts of an event do not change the shape of a message whose template puts them between quotes.
func FuzzTemplate(f *testing.F) {
	for _, text := range hostileTexts {
		f.Add(text, text)
	}
	f.Add("\xff\xf0\x9f\u2028", strings.Repeat("<", 400))
	parsed := testkit.Must(parseTemplate("template", `{"text": "x{{.Title}}", "blocks": [
		{"type": "section", "text": {"type": "mrkdwn", "text": "x{{.Title}}{{.Source}}"}},
		{"type": "context", "elements": [{"type": "plain_text", "text": "x{{range .Fields}}{{.Name}}{{end}}"}]}]}`))(f)
	f.Fuzz(func(t *testing.T, title, source string) {
		title, source = cut(title, 500), cut(source, 90)
		e := event.Event{ID: "e", Title: title, Source: source, Fields: []event.Field{{Name: title}, {Name: source}}}
		m := testkit.Must(parsed.render(View{Delivery: sink.Delivery{Event: e}}))(t)
		texts := m.allTexts()
		testkit.Require(t, len(m.Blocks) == 2 && len(m.Attachments) == 0 && len(texts) == 2, "got %+v, want two blocks with one text each", m)
		checkEscaped(t, m.Text, textLimit)
		for _, text := range texts {
			checkEscaped(t, text.Text, sectionLimit)
		}
	})
}

var defaultTemplate = builtIn("slack-message.tmpl", configs.SlackMessage)

// wantTemplate compares the built-in message with the output of the default template.
func wantTemplate(t *testing.T, v View) {
	t.Helper()
	c := newContent(v)
	printed := testkit.Must(defaultTemplate.execute(c, c.Mention))(t)
	want := testkit.Must(json.Marshal(printed))(t)
	got := testkit.Must(json.Marshal(defaultLayout(c)))(t)
	testkit.Equal(t, string(got), string(want), "layout by the template")
}

func TestDefaultLayout(t *testing.T) {
	t.Parallel()
	for _, s := range trials() {
		t.Run(s.name, func(t *testing.T) { wantTemplate(t, s.view) })
	}
}
