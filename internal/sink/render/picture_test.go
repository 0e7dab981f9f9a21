package render

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestPreview(t *testing.T) {
	t.Parallel()
	d := UsualView().Delivery
	d.Event.Title = "Refunds <stuck> & late, and with them the payouts of everybody who asked for one since"
	d.Event.Status, d.Mention = event.StatusFiring, "<!here> <!subteam^S0123ABCD>"
	d.Event.Fields = append(d.Event.Fields, event.Field{Name: "what to do", Value: "call\nthe bank"})
	message, got, err := Preview(nil, d)
	testkit.NoError(t, err)
	const want = `
╭──────────────────────────────────────────────────────────────────────────────╮
│ @here @S0123ABCD                                                             │
│                                                                              │
│ [FIRING ERROR] Refunds <stuck> & late, and with them the payouts of          │
│ everybody who asked for one since                                            │
│ ═══════════════════════════════════════════════════════════════════          │
│                                                                              │
│ ┏ red #dc2626                                                                │
│ ┃ 42 refunds wait                                                            │
│ ┃ for approval                                                               │
│ ┃                                                                            │
│ ┃ region                                oldest                               │
│ ┃ eu-1                                  2 h                                  │
│ ┃ what to do                                                                 │
│ ┃ call                                                                       │
│ ┃ the bank                                                                   │
│ ┃                                                                            │
│ ┃ Open (https://example.org/refunds)  ·  Runbook                             │
│ ┃ (https://example.org/runbooks/refunds)  ·  Silence                         │
│ ┃ (https://example.org/silence)                                              │
│ ┃                                                                            │
│ ┃ category payments.refunds · source api-7 · 2026-01-02T03:04:05Z · id e-1 · │
│ ┃ payments 7 of 10 in 30m, global 61 of 100 in 30m                           │
│ ┗                                                                            │
╰──────────────────────────────────────────────────────────────────────────────╯
`
	testkit.Check(t, got == want[1:], "got\n%s\nwant%s", got, want)
	if !strings.HasPrefix(string(message), "{\n  \"text\": \"[FIRING ERROR] Refunds &lt;stuck&gt; &amp; late, ") ||
		!strings.Contains(string(message), `"text": "<!here> <!subteam^S0123ABCD>",`) {
		t.Errorf("got %s, want the escaped headline and the mention", message)
	}
	var shown, sent layout
	testkit.NoError(t, json.Unmarshal(message, &shown))
	whole := testkit.Must((*Template)(nil).Event(View{Delivery: d}))(t)
	posted := testkit.Must(json.Marshal(map[string]any{"text": whole.Text, "blocks": whole.Blocks, "attachments": whole.Attachments}))(t)
	testkit.NoError(t, json.Unmarshal(posted, &sent))
	testkit.EqualDeeply(t, shown, sent, "the preview, compared with the request,")
}

func TestPreviewOfAFailure(t *testing.T) {
	t.Parallel()
	broken := testkit.Must(parseTemplate("template", `{"text": 1}`))(t)
	message, picture, err := Preview(broken, UsualView().Delivery)
	testkit.Check(t, err != nil && json.Valid(message) && strings.Contains(picture, "Refunds wait"),
		"got %s, %s and %v, want the default message and an error", message, picture, err)
}

func TestPicture(t *testing.T) {
	t.Parallel()
	plain := testkit.Must(parseTemplate("template", `{"text": "{{.Title}}"}`))(t)
	bare := testkit.Must(parseTemplate("template", `{"text": "x", "blocks": [{"type": "divider"}], "attachments": [
		{"color": "#abcdef", "blocks": [{"type": "divider"}]}, {"blocks": [{{section .Title}}]}]}`))(t)
	line := func(text string) string { return "│ " + padded(text, pictureWidth-frameWidth) + " │" }
	for _, test := range []struct {
		name     string
		template *Template
		want     []string
	}{
		{"a text alone", plain, []string{line("早 Refunds wait")}},
		{"without colour", bare, []string{
			line(strings.Repeat("─", 76)), line(""),
			line("┏ #abcdef"), line("┃ " + strings.Repeat("─", 74)), line("┗"), line(""),
			line("┏ grey"), line("┃ 早 Refunds wait"), line("┗"),
		}},
	} {
		d := UsualView().Delivery
		d.Event.Title = "早\u0301 Refunds wait"
		_, picture, err := Preview(test.template, d)
		testkit.NoError(t, err)
		lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(picture), "\u0301", ""), "\n")
		testkit.EqualSlices(t, lines[1:len(lines)-1], test.want, "%s", test.name)
	}
}

func TestPictureOfEverySample(t *testing.T) {
	t.Parallel()
	for _, trial := range trials() {
		l := testkit.Must((*Template)(nil).render(trial.view))(t)
		for line := range strings.Lines(l.picture()) {
			line = strings.TrimSuffix(line, "\n")
			testkit.Require(t, columns(line) == pictureWidth && utf8.ValidString(line),
				"%s: got %d columns, want %d: %q", trial.name, columns(line), pictureWidth, line)
		}
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"<!here> and <@U1>":                "@here and @U1",
		"<!subteam^S1> <!subteam^S1|@ops>": "@S1 @ops",
		"<https://x.org/?a&amp;b>":         "https://x.org/?a&b",
		"<https://x.org|a &lt; b>":         "a < b (https://x.org)",
		"<!date^1^{time}|10:02 UTC>":       "10:02 UTC",
		"*a b* 2*3*4 * *":                  "a b 2*3*4 * *",
		"&amp;lt; &lt;!here&gt;":           "&lt; <!here>",
	} {
		testkit.Equal(t, shown(slack.TextBlockObject{Type: "mrkdwn", Text: text}), want, "%s", text)
	}
	testkit.Equal(t, shown(slack.TextBlockObject{Type: "plain_text", Text: "*a* &lt;x&gt;"}), "*a* <x>", "plain")
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", []string{""}},
		{"0123456789", []string{"0123456789"}},
		{"01234 6789 12", []string{"01234 6789", "12"}},
		{"01234 678901", []string{"01234", "678901"}},
		{"0123456789012", []string{"0123456789", "012"}},
		{"  0123456789", []string{"  01234567", "89"}},
		{"a\n\n\tb", []string{"a", "", "    b"}},
		{"早早早早早早", []string{"早早早早早", "早"}},
	} {
		testkit.EqualDeeply(t, wrap(test.text, 10), test.want, "%q", test.text)
	}
}
