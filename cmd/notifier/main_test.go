package main

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/cli"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) {
	for name, begin := range map[string]func(){twoSignals: sendTwoSignals, goneReader: outliveReader} {
		if os.Getenv(name) != "" {
			begin()
			return
		}
	}
	goleak.VerifyTestMain(m)
}

// twoSignals is set for a process that sends itself a second signal once it has noticed the first.
const twoSignals = "TEST_TWO_SIGNALS"

func sendTwoSignals() {
	ctx, stop := untilSignal()
	defer stop()
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	<-ctx.Done()
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	time.Sleep(testkit.Patience) // until the second signal ends the process
}

// A second signal right after the first ends the program.
func TestSecondSignalAtOnce(t *testing.T) {
	t.Parallel()
	for range 5 {
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = append(os.Environ(), twoSignals+"=yes")
		err := command.Run()
		testkit.Require(t, err != nil && err.Error() == "signal: interrupt", "the program ended with %v, want the second signal", err)
	}
}

// goneReader is set for a process whose standard error has lost its reader before the process is signalled.
const goneReader = "TEST_GONE_READER"

func outliveReader() {
	ctx, stop := untilSignal()
	defer stop()
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	<-ctx.Done()
	_, _ = os.Stderr.WriteString("the notifier shuts down\n")
}

// A log whose reader has ended does not end the program while it shuts down.
func TestReaderOfTheLogHasEnded(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	testkit.NoError(t, err)
	testkit.NoError(t, reader.Close())
	defer func() { _ = writer.Close() }()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env, command.Stderr = append(os.Environ(), goneReader+"=yes"), writer
	testkit.NoError(t, command.Run())
}

// Wrong settings end each command that runs for long with status 2, and so does a wrong command line of the demonstration. The error names all
// faults.
func TestBadSettings(t *testing.T) {
	testkit.SetSettings(t, map[string]string{"SINK": "console", "CONCURRENCY": "many", "GLOBAL_LIMIT": "lots"})
	for _, line := range []string{"", "run", "dev", "page", "ingest"} {
		t.Run(line, func(t *testing.T) { requireUsageError(t, line, "NOTIFIER_CONCURRENCY", "NOTIFIER_GLOBAL_LIMIT") })
	}
	for line, says := range map[string]string{
		"dev now": "now", "dev --storm 10001": "--storm 10001 is not between 0 and 10000", "dev --storm=-1": "--storm -1 is not between", "dev --for soon": "flag: expected a number with a unit, such as 10s or 5m\n",
		"dev --for -1s": "--for -1s is not above 0", "dev --for 0s": "--for 0s is not above 0",
	} {
		t.Run(line, func(t *testing.T) { requireUsageError(t, line, says) })
	}
}

// requireUsageError executes a command line, and looks for texts in the error.
func requireUsageError(t *testing.T, line string, says ...string) {
	t.Helper()
	var problems bytes.Buffer
	err := newExecuted(line).ExecuteContext(t.Context())
	testkit.Equal(t, cli.ExitStatus(err, &problems), cli.Usage, "%s: the exit status", line)
	testkit.Contains(t, "the error of "+line, problems.String(), says...)
}

func newExecuted(line string) *cobra.Command {
	root := newRoot()
	root.SetArgs(strings.Fields(line))
	return root
}

func TestVersion(t *testing.T) {
	setVersion := func(v, r string) { version, revision = v, r }
	defer setVersion(version, revision)

	setVersion("v1.2.3", "abcdef")
	for _, argument := range []string{"version", "--version"} {
		var out bytes.Buffer
		root := newExecuted(argument)
		root.SetOut(&out)
		testkit.NoError(t, root.Execute())
		testkit.Equal(t, out.String(), "notifier v1.2.3 (revision abcdef, "+runtime.Version()+")\n", "%s", argument)
	}
	setVersion("", "")
	if v, r, goVersion := buildInfo(); v == "" || r == "" || goVersion != runtime.Version() {
		t.Errorf("without linked values: got version %q, revision %q and %q, want those of the build", v, r, goVersion)
	}
}
