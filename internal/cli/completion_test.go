package cli

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// completed are the completions of a command line's last word.
func completed(t *testing.T, line string) string {
	t.Helper()
	output, _, err := execute(t.Context(), "", append([]string{"__complete"}, strings.Split(line, " ")...)...)
	testkit.NoError(t, err)
	words, noFiles := strings.CutSuffix(output, ":4\n") // cobra.ShellCompDirectiveNoFileComp
	testkit.Check(t, noFiles, "%q: got %q, want no files", line, output)
	return strings.TrimSpace(strings.ReplaceAll(words, "\n", " "))
}

// Completions come from the running workers and from closed sets.
func TestCompletion(t *testing.T) {
	natsServer := servertest.StartNATS(t)
	testkit.SetSettings(t, map[string]string{"NATS_URL": natsServer.URL, "LIMITS": "mine=1/1h"})
	report := status.Report{
		Worker:     status.Worker{Name: "a", Settings: map[string]string{"NOTIFIER_LIMITS": "payments=40/30m,debug.*=none"}},
		Limits:     []status.Limit{{Use: limits.Use{Level: "global"}}, {Use: limits.Use{Level: "category", Path: "search"}}},
		Suppressed: []status.Suppressed{{Category: "payments.refunds"}},
		Changes:    []status.Change{{Path: "errors.disk"}},
	}
	joined := testkit.Must(fleet.Join(servertest.Connect(t, natsServer.URL), fleet.Options{
		Layout:     lua.Layout,
		Deployment: loadSettings(t).Redis.Prefix, Logger: slog.New(slog.DiscardHandler),
		Report: func(_ string, most int64) ([]byte, error) { return report.Encode(most) },
	}))(t)
	defer joined.Leave()
	for line, want := range map[string]string{
		"publish ":                "errors.disk payments payments.refunds search",
		"publish payments ":       "",
		"why --category s":        "search",
		"limits set ":             "category debug.* errors.disk global payments payments.refunds search",
		"limits unset ":           "errors.disk",
		"limits set payments ":    "",
		"dlq list --category e":   "errors.disk",
		"dlq drop --reason ":      joinedReasons(),
		"publish a b --severity ": "info warning error critical",
		"publish a b --status ":   "firing resolved",
		"status ":                 "",
	} {
		testkit.Await(t, line, func() error { // on a busy machine no worker answers within the time that a shell waits
			if got := completed(t, line); got != want {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		})
	}
	testkit.Eventually(t, "limits offers commands and categories", func() bool {
		words := completed(t, "limits ")
		return strings.Contains(words, "history") && strings.Contains(words, "payments.refunds")
	})
}

func joinedReasons() string { return strings.Join(texts(event.Reasons()), " ") }

// Without workers the completions come from the settings. Faults print nothing, since a shell would offer the message.
func TestCompletionWithoutWorkers(t *testing.T) {
	settings := map[string]string{"NATS_URL": "nats://" + unused(t), "LIMITS": "payments=1/1h,debug.*=none", "GUARANTEES": "search=5"}
	testkit.SetSettings(t, settings)
	testkit.Equal(t, completed(t, "publish "), "payments search", "without NATS")
	settings["GLOBAL_LIMIT"] = "lots"
	testkit.SetSettings(t, settings)
	testkit.Equal(t, completed(t, "publish "), "", "with wrong settings")
}

// The error of a misspelt command names the closest one.
func TestDidYouMean(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"NATS_URL": servertest.StartNATS(t).URL})
	for line, want := range map[string]string{
		"pubish":                 "did you mean 'notifier publish CATEGORY TEXT', such as 'notifier publish ",
		"dlq lsit":               "did you mean 'notifier dlq list'?",
		"dlq d":                  `unknown command "d"`,
		"limits sett payments 1": "did you mean 'notifier limits set PATH LIMIT', such as 'notifier limits set payments 40/30m'?",
		"completion powershel":   "did you mean 'notifier completion powershell'?",
	} {
		requireFailure(t, Usage, line, want)
	}
	// An unknown word below limits is a path. The suggestion goes to standard error.
	_, problems, _ := execute(t.Context(), "", "limits", "histroy")
	testkit.Equal(t, problems, "histroy is taken for a category; did you mean 'notifier limits history'?\n", "problems")
	_, problems, _ = execute(t.Context(), "", "limits", "hot")
	const set = "hot is taken for a category; did you mean 'notifier limits set PATH LIMIT', such as 'notifier limits set payments 40/30m'?\n"
	testkit.Equal(t, problems, set, "problems")
	_, problems, _ = execute(t.Context(), "", "limits", "payments")
	testkit.Equal(t, problems, "", "problems with a path")
}
