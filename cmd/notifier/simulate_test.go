package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// pastEvents are three payments within a second, one error, and a payment that is announced twice.
const pastEvents = `{"time": "2026-03-01T00:00:00Z", "category": "payments", "title": "first"}
{"time": "2026-03-01T00:00:00.5Z", "category": "Payments"}
{"time": "2026-03-01T00:00:01Z", "category": "payments"}

{"time": "2026-03-01T00:10:00Z", "category": "payments", "id": "order"}
{"time": "2026-03-01T00:00:02Z", "category": "errors"}
{"time": "2026-03-01T00:10:01Z", "category": "payments", "id": "order"}
`

// fields are the words of each line.
func fields(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestSimulate(t *testing.T) {
	setenv(t, map[string]string{"GLOBAL_LIMIT": "100/30m", "CATEGORY_LIMIT": "2/5m", "LIMITS": "errors=0/1h"})
	file := filepath.Join(t.TempDir(), "events.jsonl")
	testkit.NoError(t, os.WriteFile(file, []byte(pastEvents), 0o600))
	settings := `6 events from 2026-03-01T00:00:00Z to 2026-03-01T00:10:01Z
limits: global=100/30m,category=2/5m,errors=0/1h

category seen sent dropped dropped by duplicate longest silence
payments 5 3 1 category 1 1 10m
errors 1 0 1 errors 1 0 0s
total 6 3 2 category 1, errors 1 1 10m
`
	for name, test := range map[string]struct {
		arguments []string
		want      string
	}{
		"a file":                   {[]string{file}, settings},
		"standard input":           {nil, settings},
		"standard input, named":    {[]string{"-"}, settings},
		"no changes of the limits": {[]string{"--limits", " "}, settings},
		"limits": {[]string{"--limits", "errors=none, global=1/1s,category = 3/5m , payments.*=1/1h"}, `6 events from 2026-03-01T00:00:00Z to 2026-03-01T00:10:01Z
limits: global=1/1s,category=3/5m,errors=none,payments.*=1/1h

category seen sent dropped dropped by duplicate longest silence
payments 5 3 1 global 1 1 9m59s
errors 1 1 0 - 0 0s
total 6 4 1 global 1 1 9m58s
`},
		"the first path": {[]string{"--top", "1"}, `6 events from 2026-03-01T00:00:00Z to 2026-03-01T00:10:01Z
limits: global=100/30m,category=2/5m,errors=0/1h

category seen sent dropped dropped by duplicate longest silence
payments 5 3 1 category 1 1 10m
(1 more) 1 0 1 errors 1 0 -
total 6 3 2 category 1, errors 1 1 10m
`},
		"a comparison": {[]string{"--limits", "errors=none", "--compare", "category=1/1h"}, `6 events from 2026-03-01T00:00:00Z to 2026-03-01T00:10:01Z
a: global=100/30m,category=2/5m,errors=none
b: global=100/30m,category=1/1h,errors=0/1h

category seen sent a sent b b-a dropped a dropped b b-a dropped a by dropped b by duplicate a duplicate b longest silence a longest silence b
payments 5 3 1 -2 1 4 +3 category 1 category 4 1 0 10m 10m1s
errors 1 1 0 -1 0 1 +1 - errors 1 0 0 0s 0s
total 6 4 1 -3 1 5 +4 category 1 category 4, errors 1 1 0 9m58s 10m1s
`},
		"a comparison with the settings": {[]string{"--limits", "category=none", "--compare", ""}, `6 events from 2026-03-01T00:00:00Z to 2026-03-01T00:10:01Z
a: global=100/30m,category=none,errors=0/1h
b: global=100/30m,category=2/5m,errors=0/1h

category seen sent a sent b b-a dropped a dropped b b-a dropped a by dropped b by duplicate a duplicate b longest silence a longest silence b
payments 5 4 3 -1 0 1 +1 - category 1 1 1 9m59s 10m
errors 1 0 0 0 1 1 0 errors 1 errors 1 0 0 0s 0s
total 6 4 3 -1 1 2 +1 errors 1 category 1, errors 1 1 1 9m59s 10m
`},
	} {
		t.Run(name, func(t *testing.T) {
			output, problems, err := execute(t.Context(), pastEvents, append([]string{"simulate"}, test.arguments...)...)
			if err != nil || problems != "" {
				t.Errorf("it complains: %v, %q", err, problems)
			}
			if got := fields(output); got != strings.TrimSuffix(test.want, "\n") {
				t.Errorf("it prints\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestSimulateJSON(t *testing.T) {
	setenv(t, map[string]string{"CATEGORY_LIMIT": "2/5m"})
	one := `{"from":"2026-03-01T00:00:00Z","to":"2026-03-01T00:10:01Z","events":6,"invalid":1,"paths":[` +
		`{"category":"payments","seen":5,"sent":3,"duplicate":1,"dropped":{"category":1},"longest_silence_seconds":599.5},` +
		`{"category":"errors","seen":1,"sent":1,"duplicate":0,"dropped":{},"longest_silence_seconds":0}],` +
		`"total":{"seen":6,"sent":4,"duplicate":1,"dropped":{"category":1},"longest_silence_seconds":598}}`
	other := `{"from":"2026-03-01T00:00:00Z","to":"2026-03-01T00:10:01Z","events":6,"invalid":1,"paths":[` +
		`{"category":"payments","seen":5,"sent":0,"duplicate":0,"dropped":{"global":5},"longest_silence_seconds":601},` +
		`{"category":"errors","seen":1,"sent":0,"duplicate":0,"dropped":{"global":1},"longest_silence_seconds":0}],` +
		`"total":{"seen":6,"sent":0,"duplicate":0,"dropped":{"global":6},"longest_silence_seconds":601}}`
	for want, arguments := range map[string][]string{
		one:                                     {"--json", "--top", "1"},
		`{"a":` + one + `,"b":` + other + `}`:   {"--json", "--compare", "global=0/1h"},
		`{"a":` + other + `,"b":` + other + `}`: {"--json", "--compare", "global=0/1h", "--limits", "global=0/1m"},
	} {
		output, problems, err := execute(t.Context(), pastEvents+"broken", append([]string{"simulate"}, arguments...)...)
		if output != want+"\n" || !json.Valid([]byte(output)) {
			t.Errorf("%q prints\n%s, want\n%s", arguments, output, want)
		}
		if problems != "line 8: not a JSON object\n" || err == nil || err.Error() != "1 of 7 lines could not be used" {
			t.Errorf("%q: %v, %q", arguments, err, problems)
		}
	}
}

// The rest is simulated where some lines cannot be used; they are told, ten of them by their number, and the status is 1.
func TestSimulateUnusableLines(t *testing.T) {
	setenv(t, nil)
	output, problems, err := execute(t.Context(), strings.Repeat("{}\n", 12)+pastEvents, "simulate")
	if err == nil || err.Error() != "12 of 18 lines could not be used" || !strings.Contains(output, "6 events from ") {
		t.Errorf("%v, %q", err, output)
	}
	for _, want := range []string{"line 1: no time", "line 10: no time", "\nand 2 more\n"} {
		if !strings.Contains(problems, want) {
			t.Errorf("it does not say %q:\n%s", want, problems)
		}
	}
	if strings.Contains(problems, "line 11") {
		t.Errorf("it says too much:\n%s", problems)
	}
	if output, problems, err := execute(t.Context(), "", "simulate"); err != nil || problems != "" || !strings.HasPrefix(output, "no events\n") {
		t.Errorf("without events: %v, %q, %q", err, problems, output)
	}
}

// silenced runs a command line as the program does, without what it prints.
func silenced(t *testing.T, arguments ...string) (status int) {
	t.Helper()
	null := testkit.Must(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	defer func() { _ = null.Close() }()
	stdin, stdout, stderr := os.Stdin, os.Stdout, os.Stderr
	defer func() { os.Stdin, os.Stdout, os.Stderr = stdin, stdout, stderr }()
	os.Stdin, os.Stdout, os.Stderr = null, null, null
	return run(arguments)
}

func TestSimulateStatus(t *testing.T) {
	setenv(t, nil)
	dir := t.TempDir()
	files := map[string]string{"good": pastEvents, "bad": pastEvents + "broken"}
	for name, text := range files {
		files[name] = filepath.Join(dir, name)
		testkit.NoError(t, os.WriteFile(files[name], []byte(text), 0o600))
	}
	for name, test := range map[string]struct {
		arguments []string
		status    int
		says      string // "" for any error, or none
	}{
		"a file":                      {[]string{files["good"]}, exitOK, ""},
		"a comparison":                {[]string{files["good"], "--compare", "global=1/1h", "--json"}, exitOK, ""},
		"no input":                    {nil, exitOK, ""},
		"a file with a broken line":   {[]string{files["bad"]}, exitFailure, "1 of 7 lines could not be used"},
		"a file that is not there":    {[]string{files["good"] + "x"}, exitFailure, "no such file"},
		"a folder":                    {[]string{dir}, exitFailure, "directory"},
		"two files":                   {[]string{files["good"], files["bad"]}, exitUsage, "at most one file"},
		"a file and a stream":         {[]string{files["good"], "--from-stream"}, exitUsage, "--from-stream takes no file"},
		"a negative number of paths":  {[]string{files["good"], "--top", "-1"}, exitUsage, "--top is below 0"},
		"an unknown flag":             {[]string{"--limit", "global=1/1h"}, exitUsage, "unknown flag"},
		"a limit that is none":        {[]string{"--limits", "global=lots"}, exitUsage, "--limits: entry \"global=lots\""},
		"a category limit as pattern": {[]string{"--limits", "*=1/1h"}, exitUsage, "use category"},
		"a limit given twice":         {[]string{"--limits", "global=1/1h,global=2/1h"}, exitUsage, "entry \"global=2/1h\": given twice"},
		"a rule given twice":          {[]string{"--limits", "a=1/1h,a=2/1h"}, exitUsage, "entry \"a=2/1h\": given twice"},
		"an entry without a limit":    {[]string{"--compare", "global"}, exitUsage, "--compare: entry \"global\" is not level=limit"},
		"an empty entry":              {[]string{"--compare", "global=1/1h,"}, exitUsage, "--compare: entry \"\" is not level=limit"},
		"a bad path":                  {[]string{"--compare", "Payments=1/1h"}, exitUsage, "--compare: entry \"Payments=1/1h\""},
		"everything wrong at once": {
			[]string{"--limits", "global=lots,a=many", "--compare", "b=few"}, exitUsage,
			"--limits: entry \"global=lots\"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			arguments := append([]string{"simulate"}, test.arguments...)
			if status := silenced(t, arguments...); status != test.status {
				t.Errorf("the exit status is %d, want %d", status, test.status)
			}
			_, _, err := execute(t.Context(), "", arguments...)
			if (err == nil) != (test.status == exitOK) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, want %q", err, test.says)
			}
		})
	}
	_, _, err := execute(t.Context(), "", "simulate", "--limits", "global=lots,a=many", "--compare", "b=few")
	for _, want := range []string{"--limits: entry \"global=lots\"", "--limits: entry \"a=many\"", "--compare: entry \"b=few\""} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want all faults, %s too", err, want)
		}
	}
	setenv(t, map[string]string{"GLOBAL_LIMIT": "lots"})
	testkit.Equal(t, silenced(t, "simulate", files["good"]), exitUsage, "with bad settings the exit status")
}

func TestOverride(t *testing.T) {
	t.Parallel()
	rules, faults := limits.ParseRules("a=1/1h,b.*=2/1h,c=none")
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	inWords := func(plan limits.Plan) string {
		tree := testkit.Must(limits.NewTree(plan))(t)
		return describe(tree)
	}
	plan := limits.Plan{Rules: rules}
	changed, faults := override(plan, "c=3/1h+1/1m,d=4/1h,category=5/1h,b.*=none")
	if got, want := inWords(changed), "global=none,category=5/1h,a=1/1h,b.*=none,c=3/1h+1/1m,d=4/1h"; got != want || len(faults) > 0 {
		t.Errorf("got %s, %v, want %s", got, faults, want)
	}
	if got, want := inWords(plan), "global=none,category=none,a=1/1h,b.*=2/1h,c=none"; got != want {
		t.Errorf("the settings are now %s, want %s", got, want)
	}
}

// What is interrupted ends at once, even while it waits for input that does not come.
func TestSimulateInterrupted(t *testing.T) {
	setenv(t, nil)
	in, producer := io.Pipe()
	defer func() { _ = producer.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	root := newRoot()
	root.SetArgs([]string{"simulate"})
	root.SetIn(in)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	if _, err := io.WriteString(producer, pastEvents); err != nil { // it is being read
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) || out.Len() > 0 {
			t.Errorf("the error is %v, and it prints %q", err, &out)
		}
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}

// The events of the stream are replayed, and a worker gets all of them afterwards.
func TestSimulateFromStream(t *testing.T) {
	server := servertest.StartNATS(t)
	setenv(t, map[string]string{"NATS_URL": server.URL, "CATEGORY_LIMIT": "2/1h"})
	if _, _, err := execute(t.Context(), "", "simulate", "--from-stream"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without a stream: %v, want %v", err, jetstream.ErrStreamNotFound)
	}
	js := servertest.JetStream(t, server.URL)
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		t.Fatal(err)
	}
	stream := testkit.Must(js.CreateStream(t.Context(), names(settings).StreamConfig()))(t)
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "notifier", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		testkit.Must(js.Publish(t.Context(), "notify.payments", fmt.Appendf(nil, "payment %d", i)))(t)
	}
	testkit.Must(js.Publish(t.Context(), "notify.errors", []byte("{broken")))(t)

	output, problems, err := execute(t.Context(), "", "simulate", "--from-stream", "--json")
	var got struct {
		Events, Invalid int
		From, To        time.Time
		Total           struct {
			Seen, Sent int
			Dropped    map[string]int
		}
	}
	testkit.NoError(t, json.Unmarshal([]byte(output), &got))
	if got.Events != 3 || got.Invalid != 1 || got.Total.Seen != 3 || got.Total.Sent != 2 || got.Total.Dropped["category"] != 1 ||
		time.Since(got.From) > patience || got.To.Before(got.From) {
		t.Errorf("it prints %s", output)
	}
	if err == nil || err.Error() != "1 of 4 messages could not be used" || !strings.HasPrefix(problems, "message 4: bad_json: ") {
		t.Errorf("%v, %q, want that message 4 is not JSON", err, problems)
	}
	if info, err := consumer.Info(t.Context()); err != nil || info.NumPending != 4 || info.Delivered.Consumer != 0 {
		t.Errorf("the consumer is %+v, %v, want that nothing was taken from it", info, err)
	}

	setenv(t, map[string]string{"NATS_URL": "nats://" + unused(t)})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := execute(ended, "", "simulate", "--from-stream"); err == nil || !strings.Contains(err.Error(), "connecting to nats") {
		t.Errorf("without NATS: %v, want what was tried", err)
	}
}
