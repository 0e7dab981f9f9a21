package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// ownTemplate fails for the events of one category. No sample event has that category, so the template passes its check.
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

// TestTemplate posts with the operator's template, and with the default template where the operator's one fails. One line a minute reports the
// failures.
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
		if fails := post.Origin("category") == "trap"; own == fails {
			t.Errorf("%s was posted by the template of the file: %t, want %t: %s", post.Origin("id"), own, !fails, post.Message.Text)
		}
	}
	w.alone().awaitEvents(len(ids), "outcome", "sent")
	w.wantLogLines(1, "used the default template")
}

// TestBadTemplate sets a template in which a title can mention a channel, beside another bad setting.
func TestBadTemplate(t *testing.T) {
	t.Parallel()
	bad := templateFile(t, `{"text": "<{{.Title}}>"}`)
	for _, arguments := range [][]string{{"run"}, {"check", "--offline"}} {
		p := run(t, valid().with("SLACK_TEMPLATE_FILE", bad, "CONCURRENCY", "0"), arguments...)
		lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
		named := strings.Contains(p.stderr.String(), "NOTIFIER_SLACK_TEMPLATE_FILE")
		if status := p.wait(); status != 2 || len(lines) != 2 || !named {
			t.Errorf("%v: got status %d and %q, want status 2 and one line each on NOTIFIER_SLACK_TEMPLATE_FILE and NOTIFIER_CONCURRENCY",
				arguments, status, lines)
		}
	}
}
