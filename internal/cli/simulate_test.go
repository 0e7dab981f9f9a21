package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// pastEvents are three payments within a second, one error, and a payment with a duplicate.
const pastEvents = `{"time": "2026-03-01T00:00:00Z", "category": "payments", "title": "first"}
{"time": "2026-03-01T00:00:00.5Z", "category": "Payments"}
{"time": "2026-03-01T00:00:01Z", "category": "payments"}

{"time": "2026-03-01T00:10:00Z", "category": "payments", "id": "order"}
{"time": "2026-03-01T00:00:02Z", "category": "errors"}
{"time": "2026-03-01T00:10:01Z", "category": "payments", "id": "order"}
`

const pastSpan = "events from 2026-03-01T00:00:00Z to 2026-03-01T00:10:01Z: 6\n"

// withLimits are settings with a limit, so that simulate asks no worker.
var withLimits = map[string]string{"CATEGORY_LIMIT": "10/30m"}

const fromHere = "limits from this shell's settings\n"

const underTheSettings = pastSpan + fromHere + `limits: global=100/30m,category=2/5m,errors=0/1h

category seen sent dropped dropped by duplicate longest silence
payments 5 3 1 category 1 1 10m
errors 1 0 1 errors 1 0 0s
total 6 3 2 category 1, errors 1 1 10m`

// simulations are changes of the limits with the output for the past events.
var simulations = map[string]struct {
	arguments []string
	want      string
}{
	"standard input":           {nil, underTheSettings},
	"standard input, named":    {[]string{"-"}, underTheSettings},
	"no changes of the limits": {[]string{"--limits", " "}, underTheSettings},
	"limits": {[]string{"--limits", "errors=none, global=1/1s,category = 3/5m , payments.*=1/1h"}, pastSpan + fromHere +
		`limits: global=1/1s,category=3/5m,errors=none,payments.*=1/1h

category seen sent dropped dropped by duplicate longest silence
payments 5 3 1 global 1 1 9m59s
errors 1 1 0 - 0 0s
total 6 4 1 global 1 1 9m58s`},
	"the first path": {[]string{"--top", "1"}, pastSpan + fromHere + `limits: global=100/30m,category=2/5m,errors=0/1h

category seen sent dropped dropped by duplicate longest silence
payments 5 3 1 category 1 1 10m
(1 more) 1 0 1 errors 1 0 -
total 6 3 2 category 1, errors 1 1 10m`},
	"a comparison with the settings": {[]string{"--limits", "category=none", "--compare", "category=2/5m"}, pastSpan + fromHere +
		"a: global=100/30m,category=none,errors=0/1h\nb: global=100/30m,category=2/5m,errors=0/1h\n" + `
category seen sent a sent b b-a dropped a dropped b dupl. a dupl. b silence a silence b
payments 5 4 3 -1 0 1 1 1 9m59s 10m
errors 1 0 0 0 1 1 0 0 0s 0s
total 6 4 3 -1 1 2 1 1 9m59s 10m

a drops by: errors 1
b drops by: category 1, errors 1`},
}

func TestSimulate(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"GLOBAL_LIMIT": "100/30m", "CATEGORY_LIMIT": "2/5m", "LIMITS": "errors=0/1h"})
	for name, test := range simulations {
		t.Run(name, func(t *testing.T) {
			output := mustRun(t, pastEvents, append([]string{"simulate"}, test.arguments...)...)
			testkit.Equal(t, fields(output), test.want, "output")
		})
	}
}

// simulate --week needs no input, and takes no other events.
func TestSimulateWeek(t *testing.T) {
	testkit.SetSettings(t, nil)
	shown := mustRun(t, "", "simulate", "--week")
	testkit.Contains(t, "simulate --week", fields(shown), "the limits of the settings 14384 ", "with *@key=1/1h 14384 ")
	testkit.Contains(t, "simulate --week --json", mustRun(t, "", "simulate", "--week", "--json"), `"never_reported":0`, `"longest_silence_seconds":`)
	requireFailure(t, Usage, "simulate --week file", "--week takes no file")
	requireFailure(t, Usage, "simulate --week --from-stream", "--week takes no file")
}

// simulate reads the named file. Faults in it end the command with status 1.
func TestSimulateFile(t *testing.T) {
	testkit.SetSettings(t, withLimits)
	folder := t.TempDir()
	good, bad := filepath.Join(folder, "good"), filepath.Join(folder, "bad")
	testkit.NoError(t, os.WriteFile(good, []byte(pastEvents), 0o600))
	testkit.NoError(t, os.WriteFile(bad, []byte(pastEvents+"broken"), 0o600))
	testkit.Contains(t, "simulate", mustRun(t, "", "simulate", good), pastSpan)
	requireFailure(t, Failure, "simulate "+bad, "1 of 7 lines could not be used")
	requireFailure(t, Failure, "simulate "+good+"x", "no such file")
	requireFailure(t, Failure, "simulate "+folder, "directory")
}

func TestSimulateJSON(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"CATEGORY_LIMIT": "2/5m"})
	one := `{"from":"2026-03-01T00:00:00Z","to":"2026-03-01T00:10:01Z","events":6,"invalid":1,"paths":[` +
		`{"category":"payments","seen":5,"sent":3,"duplicate":1,"dropped":{"category":1},"longest_silence_seconds":599.5},` +
		`{"category":"errors","seen":1,"sent":1,"duplicate":0,"dropped":{},"longest_silence_seconds":0}],` +
		`"total":{"seen":6,"sent":4,"duplicate":1,"dropped":{"category":1},"longest_silence_seconds":598}}`
	other := `{"from":"2026-03-01T00:00:00Z","to":"2026-03-01T00:10:01Z","events":6,"invalid":1,"paths":[` +
		`{"category":"payments","seen":5,"sent":0,"duplicate":0,"dropped":{"global":5},"longest_silence_seconds":601},` +
		`{"category":"errors","seen":1,"sent":0,"duplicate":0,"dropped":{"global":1},"longest_silence_seconds":0}],` +
		`"total":{"seen":6,"sent":0,"duplicate":0,"dropped":{"global":6},"longest_silence_seconds":601}}`
	const from = `,"limits_from":"this shell's settings"}`
	for want, arguments := range map[string][]string{
		strings.TrimSuffix(one, "}") + from:    {"--json", "--top", "1"},
		`{"a":` + one + `,"b":` + other + from: {"--json", "--compare", "global=0/1h"},
	} {
		output, problems, err := execute(t.Context(), pastEvents+"broken", append([]string{"simulate"}, arguments...)...)
		testkit.Check(t, output == want+"\n" && json.Valid([]byte(output)), "%q prints\n%s, want\n%s", arguments, output, want)
		testkit.Check(t, problems == "line 8: not a JSON object\n" && err != nil && err.Error() == "1 of 7 lines could not be used",
			"%q: got %v and %q, want one unusable line", arguments, err, problems)
	}
}

// Unusable lines do not stop the simulation. Ten are reported with their number, and the status is 1.
func TestSimulateUnusableLines(t *testing.T) {
	testkit.SetSettings(t, withLimits)
	output, problems, err := execute(t.Context(), strings.Repeat("{}\n", 12)+pastEvents, "simulate")
	testkit.Check(t, err != nil && err.Error() == "12 of 18 lines could not be used" && strings.Contains(output, "Z: 6\n"),
		"got %v and %q, want 12 unusable lines and 6 events", err, output)
	testkit.Check(t, strings.HasPrefix(problems, "line 1: no time") && strings.Count(problems, "\n") == 11 && strings.HasSuffix(problems, "\nand 2 more\n"),
		"got the problems\n%s\nwant ten lines and the number of the others", problems)
	testkit.Contains(t, "simulate without events", mustRun(t, "", "simulate"), "no events\n")
}

// An interrupt ends simulate while it waits for input.
func TestSimulateInterrupted(t *testing.T) {
	testkit.SetSettings(t, withLimits)
	silent, producer := io.Pipe()
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		defer interrupt()
		_, _ = io.WriteString(producer, pastEvents) // it is being read
	}()
	output, problems, err := executeReading(ctx, silent, "simulate")
	_ = producer.Close()
	testkit.Check(t, errors.Is(err, context.Canceled) && output+problems == "",
		"got %v, the output %q and the problems %q, want %v and none", err, output, problems, context.Canceled)
}

func TestSimulateFromStream(t *testing.T) {
	server := servertest.StartNATS(t)
	testkit.SetSettings(t, map[string]string{"NATS_URL": server.URL, "CATEGORY_LIMIT": "2/1h"})
	_, _, err := execute(t.Context(), "", "simulate", "--from-stream")
	testkit.Fails(t, "without a stream", err, jetstream.ErrStreamNotFound)
	js := servertest.JetStream(t, server.URL)
	testkit.Must(js.CreateStream(t.Context(), setup.Names(loadSettings(t)).StreamConfig()))(t)
	testkit.Must(js.Publish(t.Context(), "notify.payments", []byte("payment")))(t)
	testkit.Must(js.Publish(t.Context(), "notify.errors", []byte("{broken")))(t)
	output, problems, err := execute(t.Context(), "", "simulate", "--from-stream")
	testkit.Contains(t, "simulate", fields(output), "\npayments 1 1 0 - 0 0s\n")
	testkit.Contains(t, "problems", problems, "message 2: bad_json: ")
	testkit.Equal(t, fmt.Sprint(err), "1 of 2 messages could not be used", "error")
}

// Without limits in the settings, simulate uses the workers' limits. The output names their source.
func TestSimulateTheWorkersLimits(t *testing.T) {
	natsServer := servertest.StartNATS(t)
	simulated := func(settings map[string]string, want string) {
		t.Helper()
		testkit.SetSettings(t, settings)
		testkit.Contains(t, fmt.Sprint("simulate with ", settings), fields(mustRun(t, pastEvents, "simulate", "--limits", "errors=1/1h")), pastSpan+want)
	}
	const usual = "limits: global=100/30m,category=10/30m,errors=1/1h\n"
	simulated(map[string]string{"NATS_URL": "nats://" + unused(t)}, "limits from this shell's settings: nats does not answer\n"+usual)
	simulated(map[string]string{"NATS_URL": natsServer.URL}, "limits from this shell's settings: no worker answers\n"+usual)
	reports(t, natsServer.URL, status.Report{Worker: status.Worker{
		Revision: "7:11", Settings: map[string]string{"NOTIFIER_GLOBAL_LIMIT": "50/30m", "NOTIFIER_CATEGORY_LIMIT": "10/30m"},
	}})
	reports(t, natsServer.URL, status.Report{
		Worker: status.Worker{Revision: "7:12", Settings: map[string]string{
			"NOTIFIER_GLOBAL_LIMIT": "60/30m", "NOTIFIER_CATEGORY_LIMIT": "5/30m", "NOTIFIER_LIMITS": "errors=0/1h,payments=3/5m",
		}},
		Changes: []status.Change{{Path: "payments", Limit: "2/5m"}, {Path: "other", Limit: "1/1h", Shadow: true}, {Path: "bad", Limit: "lots"}},
	})
	const theirs = "limits from 2 workers (revision 12)\nlimits: global=60/30m,category=5/30m,errors=1/1h,payments=2/5m\n"
	testkit.Eventually(t, "both answer in time", func() bool {
		testkit.SetSettings(t, map[string]string{"NATS_URL": natsServer.URL})
		output, _, _ := execute(t.Context(), pastEvents, "simulate")
		return strings.Contains(output, "2 workers")
	})
	unreadable(t, natsServer.URL, `{"worker": 7`)
	simulated(map[string]string{"NATS_URL": natsServer.URL}, theirs)
	simulated(map[string]string{"NATS_URL": natsServer.URL, "GLOBAL_LIMIT": "40/30m"},
		fromHere+"limits: global=40/30m,category=10/30m,errors=1/1h\n")
}

// unreadable starts an instance whose report cannot be read, as one of another version may be.
func unreadable(t *testing.T, url, report string) {
	t.Helper()
	conn := servertest.Connect(t, url)
	instance := testkit.Must(fleet.Join(conn, fleet.Options{
		Layout: lua.Layout, Deployment: "notifier", Version: "9.0.0", Logger: slog.New(slog.DiscardHandler),
		Report: func(string, int64) ([]byte, error) { return []byte(report), nil },
	}))(t)
	t.Cleanup(instance.Leave)
	testkit.NoError(t, conn.FlushTimeout(testkit.Patience))
}

// reports starts an instance that answers with a report.
func reports(t *testing.T, url string, report status.Report) {
	t.Helper()
	conn := servertest.Connect(t, url)
	instance := testkit.Must(fleet.Join(conn, fleet.Options{
		Layout:     lua.Layout,
		Deployment: "notifier", Version: "1.0.0", Logger: slog.New(slog.DiscardHandler),
		Report: func(_ string, most int64) ([]byte, error) { return report.Encode(most) },
	}))(t)
	t.Cleanup(instance.Leave)
	testkit.NoError(t, conn.FlushTimeout(testkit.Patience))
}
