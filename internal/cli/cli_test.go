package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRoot returns the commands, with programs that end at once.
func newRoot() *cobra.Command {
	run := func(context.Context) error { return nil }
	return New(Programs{Worker: run, Ingest: run, Page: func(context.Context, io.Writer) error { return nil }, Version: "v1.2.3"})
}

// loadSettings reads the settings as most commands do.
func loadSettings(t *testing.T) config.Config {
	t.Helper()
	settings, err := commandSettings()
	testkit.NoError(t, err)
	return settings
}

// execute runs a command line and returns its outputs.
func execute(ctx context.Context, input string, arguments ...string) (output, problems string, err error) {
	return executeReading(ctx, strings.NewReader(input), arguments...)
}

// executeReading is execute with another input.
func executeReading(ctx context.Context, in io.Reader, arguments ...string) (output, problems string, err error) {
	var out, err2 bytes.Buffer
	root := newRoot()
	root.SetArgs(arguments)
	root.SetIn(in)
	root.SetOut(&out)
	root.SetErr(&err2)
	err = root.ExecuteContext(ctx)
	return out.String(), err2.String(), err
}

// mustRun runs a command line without an error and returns its output.
func mustRun(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	output, problems, err := execute(t.Context(), input, arguments...)
	testkit.Check(t, err == nil && problems == "", "%q: got %v and the problems %q, want neither", arguments, err, problems)
	return output
}

// decoded runs a command line without an error and decodes its JSON.
func decoded[T any](t *testing.T, line string) (value T) {
	t.Helper()
	testkit.NoError(t, json.Unmarshal([]byte(mustRun(t, "", strings.Fields(line)...)), &value))
	return value
}

// requireFailure runs a command line. It compares the exit status and looks for each text in the printed error.
func requireFailure(t *testing.T, status int, line string, says ...string) {
	t.Helper()
	output, problems, err := execute(t.Context(), "", strings.Fields(line)...)
	var printed strings.Builder
	testkit.Equal(t, ExitStatus(err, &printed), status, "%s: the exit status", line)
	testkit.Contains(t, "the error of "+line, printed.String(), says...)
	if status == Usage && output+problems != "" {
		t.Errorf("%s: prints %q and %q, want nothing beside the error", line, output, problems)
	}
}

// fields joins the words of each line with one blank.
func fields(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// unused is an address without a listener.
func unused(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(servertest.ReservePort(t))
}

// usageFaults are wrong command lines and their errors. No command asks a server.
var usageFaults = map[string]string{
	"bogus":                                  `unknown command "bogus" for "notifier"`,
	"--bogus":                                "unknown flag",
	"check redis":                            `unknown command "redis" for "notifier check"`,
	"check --offline --post #a":              "leave out --offline or --post",
	"check --post=":                          "--post is empty",
	"run fast":                               "fast",
	"version 1":                              "1",
	"health now":                             "now",
	"page now":                               "now",
	"ingest now":                             "now",
	"ingest token name":                      "expected: notifier ingest token NAME PATTERN",
	"ingest token name a..b":                 "empty level",
	"ingest token a/b >":                     "the name is invalid",
	"completion bash bogus":                  "bogus",
	"publish":                                "expected a category and a text",
	"publish payments card declined":         "expected a category and a text",
	"publish payments text --count 0":        "--count is below 1",
	"publish payments text --count 2 --id x": "would publish duplicates",
	"publish --stdin payments text":          "at most a category",
	"publish --stdin pay..ments":             "empty",
	"publish --stdin --count 5":              "no other flag than --preview",
	"publish --stdin a --preview --key k":    "no other flag than --preview",
	"publish payments.* text":                "payments.*",
	"publish payments! text":                 "payments!",
	"publish payments text --field novalue":  "--field novalue is not name=value",
	"publish payments text --link ftp://a":   "workers would reject this event",
	"publish payments text --cost 101":       "workers would reject this event",
	"publish payments text --cost 0":         "--cost is below 1",
	"publish payments text --cost -1":        "--cost is below 1",
	"help nosuch":                            `unknown command "nosuch" for "notifier"`,
	"help stauts":                            "did you mean 'notifier status'?",
	"help dlq nosuch":                        `unknown command "nosuch" for "notifier dlq"`,

	"why":                                            "which event?",
	"why evt-1 evt-2 --seq 1":                        "goes with no ID",
	"why --seq 0":                                    "--seq is 0",
	"why evt-1 --seq 1":                              "--seq names one message",
	"why --seq abc":                                  "\"abc\" for \"--seq\" flag: expected a whole number\n",
	"why --seq -1":                                   "flag: expected a whole number\n",
	"why --json=maybe":                               "flag: expected true or false\n",
	"dlq list --limit many":                          "flag: expected a whole number\n",
	"dlq list --limit 99999999999999999999":          "flag: the number is too large\n",
	"why --since 0s":                                 "such as 30m, 2h or 1d",
	"why --category a..b":                            "--category: category",
	"dlq bogus":                                      "bogus",
	"dlq list 1":                                     "1",
	"dlq list --reason bogus":                        "bad_json, bad_utf8",
	"dlq list --category a..b":                       "--category: category",
	"dlq drop --all --yes --category=":               "--category is empty",
	"dlq replay --since 1h --reason=":                "--reason is empty",
	"why evt-1 --category=":                          "--category is empty",
	"why evt-1 --title=":                             "--title is empty",
	"dlq list --since soon":                          "expected a number with a unit",
	"dlq list --since 0s":                            "such as 30m, 24h or 7d",
	"dlq list --limit -1":                            "--limit is below 0",
	"dlq show":                                       "expected: notifier dlq show ID",
	"dlq replay":                                     "or use --reason, --category, --since or --all",
	"dlq drop --yes":                                 "or use --reason, --category, --since or --all",
	"dlq drop --all --reason empty --yes":            "--all goes with nothing",
	"dlq drop --all":                                 "standard input is no terminal: confirm with --yes",
	"limits payments bogus":                          "expected: notifier limits [PATH[@KEY]]",
	"limits payments..refunds":                       "payments..refunds",
	"limits global":                                  `"global" is a limit and no path of events; notifier limits without a path shows it`,
	"limits category@a":                              `"category" is a limit and no path of events`,
	"limits set":                                     "expected: notifier limits set PATH LIMIT",
	"limits set payments 1/1h --bogus":               "unknown flag",
	"limits unset":                                   "expected: notifier limits unset PATH",
	"limits history payments":                        "payments",
	"limits history --shadow":                        "unknown flag",
	"limits rollback":                                "expected: notifier limits rollback REVISION",
	"limits rollback last":                           `"last" is not a revision`,
	"limits adopt 1 --yes":                           `unknown command "1"`,
	"limits adopt":                                   "standard input is no terminal: confirm with --yes",
	"mute":                                           "expected: notifier mute PATH",
	"mute pay..ments --for 1h --reason x":            "pay..ments",
	"mute payments --reason x":                       "expected one of --for, --until and --every",
	"mute a --for 1h --until 1:00":                   "expected one of --for, --until and --every",
	"mute payments --for 1h":                         "expected --reason",
	"mute payments --for 31d --reason x":             "--for 31d is not between 1s and 30d",
	"mute payments --for 0s --reason x":              "--for 0s is not between 1s and 30d",
	"mute a --until 00:00 --reason x":                "--until 00:00 is in the past; for tomorrow, --until 2",
	"mute a --until= --reason x":                     "--until is empty",
	"mute a --for 1h --reason x --except=":           "--except is empty",
	"mute a --every= --reason x":                     "--every is empty",
	"unmute a --every=":                              "--every is empty",
	"mute a --until noon --reason x":                 "--until noon is neither a time of today, such as 18:00, nor one such as 2",
	"mute a --until 2020-01-02T03:04:05Z --reason x": "--until 2020-01-02T03:04:05Z is in the past",
	"mute a --until 2999-01-02T03:04:05Z --reason x": "is more than 30d from now",
	"mute a --every Tue --reason x":                  `"Tue" is not a weekly schedule`,
	"mute > --for 1h --reason x":                     "this mutes all events: confirm with --yes",
	"mute * --for 1h --reason x":                     "this mutes all events: confirm with --yes",
	"mute global --for 1h --reason x":                `"global" is a limit and no path of events; '>' mutes all events`,
	"mute category --for 1h --reason x":              `"category" is a limit and no path of events`,
	"mute a --for 1h --reason x --except error":      "--except error: only critical can be excepted",
	"unmute":                               "expected: notifier unmute PATH",
	"unmute a --every Tue":                 `"Tue" is not a weekly schedule`,
	"simulate a --mute a=Tue":              `--mute: "Tue" is not a weekly schedule`,
	"simulate --week --mute a":             "nor --mute",
	"simulate a b":                         "at most one file",
	"simulate a --from-stream":             "--from-stream takes no file",
	"simulate a --top -1":                  "--top is below 0",
	"simulate --limit global=1/1h":         "unknown flag",
	"simulate --limits= --compare b=5/1h":  "--limits is empty",
	"simulate --compare=":                  "--compare is empty",
	"simulate --limits a=no --compare b=5": "--limits: entry \"a=no\": ",
	"simulate --compare b=5 --limits a=no": "--compare: entry \"b=5\": ",
}

func TestUsageErrors(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"NATS_URL": servertest.StartNATS(t).URL})
	for line, says := range usageFaults {
		t.Run(line, func(t *testing.T) { requireFailure(t, Usage, line, says) })
	}
	requireFailure(t, Usage, "check redis", "\nSee 'notifier check --help'")
	requireFailure(t, Usage, "publish --bogus", "\nSee 'notifier publish --help'")
}

func TestHelp(t *testing.T) {
	for line, usage := range map[string]string{"help": "notifier [command]", "help dlq": "notifier dlq [command]", "help dlq show": "notifier dlq show ID"} {
		testkit.Contains(t, line, mustRun(t, "", strings.Fields(line)...), usage)
	}
}

// Wrong settings end each command with status 2. The error names all of them.
func TestBadSettings(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"SINK": "console", "CONCURRENCY": "many", "GLOBAL_LIMIT": "lots"})
	for _, line := range []string{
		"check", "check --offline", "health", "publish payments text", "limits", "limits set payments 1/1h", "dlq list", "simulate", "why evt-1",
		"status", "provision",
	} {
		t.Run(line, func(t *testing.T) {
			requireFailure(t, Usage, line, "NOTIFIER_CONCURRENCY", "NOTIFIER_GLOBAL_LIMIT")
		})
	}
	testkit.SetSettings(t, map[string]string{"SINK": "console", "REDIS_URL": "redis://127.0.0.1:1?foo=bar"})
	requireFailure(t, Usage, "check --offline", "NOTIFIER_REDIS_URL: ", "unexpected option: foo")
}
