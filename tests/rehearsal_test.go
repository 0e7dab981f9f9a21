package tests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestRehearsal follows what slack-stub prints: a worker with these settings posts there, and the page shows its message.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	stub := start(t, "slack-stub", nil, "slack-stub", "--addr", freeAddress(t))
	var changes []string
	testkit.Await(t, "the settings are printed", func() error {
		_, exports, printed := strings.Cut(stub.stdout.String(), "\nexport ")
		if !printed || !strings.HasSuffix(exports, "\n") {
			return fmt.Errorf("printed: %q", stub.stdout.String())
		}
		changes = nil
		for assignment := range strings.FieldsSeq(exports) {
			name, value, _ := strings.Cut(strings.TrimPrefix(assignment, "NOTIFIER_"), "=")
			changes = append(changes, name, strings.Trim(value, "'"))
		}
		return nil
	})
	run(t, d.settings(changes...), "check").want(0, "ok    slack: nothing found")
	w := d.startReady("worker", changes...)
	run(t, settings{"HTTP_ADDR": w.address}, "health", "--wait", "30s").want(0)
	run(t, d.settings(), "publish", "payments", "card <b>declined</b>", "--severity", "error").want(0)
	_, address, _ := strings.Cut(stub.stdout.String(), "http://")
	address, _, _ = strings.Cut(address, "/")
	page := &worker{stub, address}
	page.awaitStatus("/", 200, "card &lt;b&gt;declined&lt;/b&gt;")
	testkit.Equal(t, len(d.slack.Posts()), 0, "posts elsewhere")
	run(t, nil, "slack-stub", "--addr", address).want(1, "listen on "+address)
	run(t, nil, "slack-stub", "--addr", "8085").want(2, "--addr")
	w.stop()
	stub.stop()
}
