package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(twoSignals) != "" {
		sendTwoSignals()
		return
	}
	goleak.VerifyTestMain(m)
}

// twoSignals is set for a process that sends itself a second signal as soon as the first one shows.
const twoSignals = "TEST_TWO_SIGNALS"

func sendTwoSignals() {
	ctx, stop := untilSignal()
	defer stop()
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	<-ctx.Done()
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	time.Sleep(patience) // the second signal ends the process long before
}

// A second signal ends the program, however soon it comes after the first one shows.
func TestSecondSignalAtOnce(t *testing.T) {
	t.Parallel()
	for range 5 {
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = append(os.Environ(), twoSignals+"=yes")
		if err := command.Run(); err == nil || err.Error() != "signal: interrupt" {
			t.Fatalf("the program ended with %v, want the second signal", err)
		}
	}
}

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

// setenv sets the settings to these, and to no others. A variable that is empty counts as not set.
func setenv(t *testing.T, settings map[string]string) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "NOTIFIER_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range settings {
		t.Setenv("NOTIFIER_"+name, value)
	}
}

// execute runs a command line, and returns what it prints.
func execute(ctx context.Context, input string, arguments ...string) (output, problems string, err error) {
	var out, err2 bytes.Buffer
	root := newRoot()
	root.SetArgs(arguments)
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(&err2)
	err = root.ExecuteContext(ctx)
	return out.String(), err2.String(), err
}

// What is wrong with a command line ends it with status 2, and says how to get help.
func TestUsageErrors(t *testing.T) {
	setenv(t, map[string]string{"SINK": "console", "NATS_URL": "nats://127.0.0.1:1"})
	for name, arguments := range map[string][]string{
		"unknown command":              {"bogus"},
		"unknown flag":                 {"--bogus"},
		"unknown flag of a command":    {"check", "--bogus"},
		"argument of run":              {"run", "fast"},
		"argument of version":          {"version", "1"},
		"argument of check":            {"check", "redis"},
		"argument of health":           {"health", "now"},
		"argument of dev":              {"dev", "now"},
		"a storm that is too strong":   {"dev", "--storm", "10001"},
		"a negative storm":             {"dev", "--storm=-1"},
		"a storm that is no number":    {"dev", "--storm", "many"},
		"a negative time":              {"dev", "--for", "soon"},
		"publish without arguments":    {"publish"},
		"publish without a text":       {"publish", "payments"},
		"publish with a bad category":  {"publish", "Pay Ments", "text"},
		"publish with a bad field":     {"publish", "payments", "text", "--field", "novalue"},
		"publish with a bad link":      {"publish", "payments", "text", "--link", "ftp://example.com"},
		"publish with a bad cost":      {"publish", "payments", "text", "--cost", "101"},
		"completion for another shell": {"completion", "bogus"},
		"argument of completion":       {"completion", "bash", "bogus"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Equal(t, run(arguments), exitUsage, "the exit status")
			_, _, err := execute(t.Context(), "", arguments...)
			var usage *usageError
			if !errors.As(err, &usage) || err.Error() == "" {
				t.Errorf("the error is %v, want one of usage", err)
			}
		})
	}
}

// Settings that are wrong end each command that reads them with status 2, and all of them are named.
func TestBadSettings(t *testing.T) {
	setenv(t, map[string]string{"SINK": "console", "CONCURRENCY": "many", "GLOBAL_LIMIT": "lots"})
	for _, arguments := range [][]string{{}, {"run"}, {"check"}, {"check", "--offline"}, {"dev"}, {"health"}, {"publish", "payments", "text"}} {
		t.Run(strings.Join(arguments, " "), func(t *testing.T) {
			testkit.Equal(t, run(arguments), exitUsage, "the exit status")
			_, _, err := execute(t.Context(), "", arguments...)
			var usage *usageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), "NOTIFIER_CONCURRENCY") || !strings.Contains(err.Error(), "NOTIFIER_GLOBAL_LIMIT") {
				t.Errorf("the error is %v, want one that names both settings", err)
			}
		})
	}
}

// A failure is status 1.
func TestFailure(t *testing.T) {
	address := unused(t)
	setenv(t, map[string]string{"HTTP_ADDR": address})
	testkit.Equal(t, run([]string{"health"}), exitFailure, "the exit status")
}

func TestHelp(t *testing.T) {
	t.Parallel()
	out, _, err := execute(t.Context(), "", "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"run", "dev", "check", "publish", "version", "completion"} {
		if !strings.Contains(out, "\n  "+word+" ") {
			t.Errorf("the help does not list %s:\n%s", word, out)
		}
	}
}

func TestCompletion(t *testing.T) {
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	for _, arguments := range [][]string{{"completion"}, {"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}, {"completion", "powershell"}} {
		name := filepath.Join(t.TempDir(), "output")
		file := testkit.Must(os.Create(name))(t)
		os.Stdout = file
		status := run(arguments)
		os.Stdout = stdout
		testkit.NoError(t, file.Close())
		output := testkit.Must(os.ReadFile(name))(t)
		if status != exitOK || !strings.Contains(string(output), "notifier") {
			t.Errorf("%q: exit status %d, %d bytes", arguments, status, len(output))
		}
	}
}

func TestVersion(t *testing.T) {
	setVersion := func(v, r string) { version, revision = v, r }
	defer setVersion(version, revision)

	setVersion("v1.2.3", "abcdef")
	out, _, err := execute(t.Context(), "", "version")
	if want := "notifier v1.2.3 (revision abcdef, " + runtime.Version() + ")\n"; err != nil || out != want {
		t.Errorf("version prints %q, %v; want %q", out, err, want)
	}
	setVersion("", "")
	if v, r, goVersion := buildInfo(); v == "" || r == "" || goVersion != runtime.Version() {
		t.Errorf("without what is linked: version %q, revision %q, %q", v, r, goVersion)
	}
	setVersion("", "abcdef")
	if _, r, _ := buildInfo(); r != "abcdef" {
		t.Errorf("the revision is %q, want the linked one", r)
	}
}

// unused is an address that nobody listens on.
func unused(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(servertest.ReservePort(t))
}
