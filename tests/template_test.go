package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// ownTemplate is a template that fails for the events of one category, which no sample has.
const ownTemplate = `{
  "text": {{json (cut 1000 (printf "own: %s" .Title))}},
  "blocks": [
    {{section (label "from our own template:" .Title)}},
    {{if eq .Category "trap"}}{{section (index .Fields 9).Value}},{{end}}
    {{context (label "category" .Category) (label "id" .ID)}}
  ]
}`

func templateFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "message.tmpl")
	testkit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestTemplate posts with a template of the operator's own; the default one stands in where that fails.
func TestTemplate(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", unlimited("SLACK_TEMPLATE_FILE", templateFile(t, ownTemplate))...)
	ids := d.publishEvents([]string{"errors", "trap"}, 2)
	d.awaitEmpty()
	posts := d.slack.Posts()
	wantPostedOnce(t, posts, ids...)
	for _, post := range posts {
		own := strings.HasPrefix(post.Message.Text, "own: event ")
		if fails := origin(post, "category") == "trap"; own == fails {
			t.Errorf("%s was posted by the template of the file: %t, want %t: %s", origin(post, "id"), own, !fails, post.Message.Text)
		}
	}
	w.alone().awaitEvents(len(ids), "outcome", "sent")
	w.wantLogLines(2, "rendered with the default template")
}

func TestBadTemplate(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"is empty":               "",
		"is not closed":          `{"text": {{json .Title}`,
		"names what is not":      `{"text": {{json .Titel}}}`,
		"is no JSON":             `text: {{.Title}}`,
		"lets a field command":   `{"text": "<{{.Title}}>"}`,
		"is over Slack's limits": `{"text": "x", "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "{{.Text}}"}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, arguments := range [][]string{{"run"}, {"check", "--offline"}} {
				p := run(t, valid().with("SLACK_TEMPLATE_FILE", templateFile(t, text), "CONCURRENCY", "0"), arguments...)
				lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
				named := strings.Contains(p.stderr.String(), "NOTIFIER_SLACK_TEMPLATE_FILE")
				if status := p.wait(); status != 2 || len(lines) != 2 || !named {
					t.Errorf("%v: status %d, printed %q; want 2, and one line on NOTIFIER_SLACK_TEMPLATE_FILE beside the other fault",
						arguments, status, lines)
				}
			}
		})
	}
}
