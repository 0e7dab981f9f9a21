package tests

import (
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// escape begins a command of a terminal.
const escape = "\x1b"

// notification matches a line of the console sink about an event of the storm.
var notification = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d (INFO|WARNING|ERROR|CRITICAL) +[a-z]+ .+ \([a-z]+: .+\)`)

// suggested returns the command of dev's guide that contains a text, behind the settings that it needs.
func (p *process) suggested(text string) string {
	p.t.Helper()
	out := p.stdout.String()
	command := regexp.MustCompile(`(?m)^  .*` + text + `.*$`).FindString(out)
	testkit.Require(p.t, command != "", "the guide suggests no %q:\n%s", text, out)
	return strings.Join(append(regexp.MustCompile(`(?m)^  export .*$`).FindAllString(out, -1), command), "\n")
}

// paste runs a command in a shell without settings of the notifier, and returns the output.
func paste(t *testing.T, command string) string {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "sh", "-c", command)
	shell.Env = settings{}.environment()
	output, err := shell.CombinedOutput()
	testkit.Check(t, err == nil, "%s: %v\n%s", command, err, output)
	return string(output)
}

// TestDev runs dev with a storm and its own servers and limits.
func TestDev(t *testing.T) {
	t.Parallel()
	p := start(t, "dev", settings{"HTTP_ADDR": "127.0.0.1:0", "REDIS_TIMEOUT": "4s"}, "dev", "--storm", "50") // the machine may be busy
	p.awaitOutput(" RESOLVED after ")
	p.awaitOutput(" was muted: ")
	p.awaitOutput(" steady since ") // a key has flapped
	testkit.Contains(t, "shown", paste(t, p.suggested(" limits$")), "30/30s", " of 30", "6/30s")
	paste(t, p.suggested(" publish "))
	testkit.Contains(t, "shown", paste(t, p.suggested("curl -d ")), `"duplicate":false}`)
	p.signal(os.Interrupt)
	p.want(0, "notifier dev --storm 50 ", "limits: global 30/30s, each category 6/30s, deploys@key 1/30s, 3 slots for uplinks, a digest every 15s\n",
		"/metrics | grep", " database FIRING Replica is 41 s behind")
	out := p.stdout.String()
	testkit.Lacks(t, "output in a pipe", out, escape)
	length := regexp.MustCompile(`(?m)^\d+ events in (\S+)$`).FindStringSubmatch(out)
	testkit.Require(t, length != nil, "it does not say how long it ran:\n%s", out)
	windows := 1 + int(testkit.Must(time.ParseDuration(length[1]))(t)/(30*time.Second)) // of the global limit; a busy machine makes the run longer
	testkit.Between(t, len(notification.FindAllString(out, -1)), 25, 36*windows, "notifications of the storm in %d windows, most of the 30 that the limits allow at once", windows)
	table := regexp.MustCompile(`(?s)\d+ events in \S+\nCATEGORY +EVENTS +SENT +DROPPED +DUPLICATE +DEAD +EXPIRED +FOLDED +DROPPED BY\n` +
		`payments  .*\ndeploys .*\nall +(\d+ +){3}[1-9]\d* +[1-9]\d* +0 +[1-9]\d* +(category \d+, )?deploys@key \d+, global \d+, mute \d+`)
	testkit.Check(t, table.MatchString(out), "it does not end with the table:\n%s", out)
	testkit.Lacks(t, "log", p.stderr.String(), "ERROR", "WARN")
}

// TestDevWithServersOfTheSettings runs dev with the servers of the settings.
func TestDevWithServersOfTheSettings(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	p := start(t, "dev", d.settings("HTTP_ADDR", "127.0.0.1:0", "CATEGORY_LIMIT", "1/30m", "SUMMARY_INTERVAL", "0"), "dev", "--storm", "50")
	testkit.Eventually(t, "a post", func() bool { return len(d.slack.Accepted()) > 0 })
	p.signal(os.Interrupt)
	p.want(0, "limits: global 100/30m, each category 1/30m\n", "  export NOTIFIER_NATS_URL="+d.nats.URL+"\n")
	posts := slices.DeleteFunc(d.slack.Accepted(), func(p slacktest.Post) bool { return strings.Contains(p.Message.Text, "RESOLVED") })
	slots := len(d.log(rootLog)) // events that were on their way keep theirs
	testkit.AtMost(t, len(posts), slots, "posts")
	testkit.AtMost(t, slots, 21, "slots, one of each category")
	testkit.Must(d.left(streamName))(t)
}

// TestDevInAClosedTerminal sends dev the signals of a terminal that closes. It ends, and removes its folder of JetStream. With nohup it goes on.
func TestDevInAClosedTerminal(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) { // the tests run with nohup; dev gets the default of a signal that the tests catch
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(caught) })
	}
	closed := exec.Command(program, "dev", "--storm", "1")
	kept := exec.Command("nohup", program, "dev", "--storm", "1")
	for _, command := range []*exec.Cmd{closed, kept} {
		folder := t.TempDir()
		command.Env = append(settings{"HTTP_ADDR": "127.0.0.1:0"}.environment(), "TMPDIR="+folder) // the last one counts
		p := launch(t, strings.Join(command.Args, " "), command)
		p.awaitOutput(" CRITICAL ")
		testkit.Equal(t, len(testkit.Must(os.ReadDir(folder))(t)), 1, "folders while %s runs", p.name)
		for range 2 { // of the shell, and of the kernel
			p.signal(syscall.SIGHUP)
		}
		if command == kept {
			shown := len(p.stdout.String())
			testkit.Eventually(t, "further notifications", func() bool { return len(p.stdout.String()) > shown })
			p.signal(os.Interrupt)
		}
		p.want(0, " events in ")
		testkit.Equal(t, len(testkit.Must(os.ReadDir(folder))(t)), 0, "folders that %s left", p.name)
	}
}

// TestDevWithoutAReader ends dev when nobody reads its output any more. It removes its folder of JetStream.
func TestDevWithoutAReader(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	shell := exec.CommandContext(t.Context(), "sh", "-c", program+" dev --storm 50 | head -n 1")
	shell.Env = append(settings{"HTTP_ADDR": "127.0.0.1:0"}.environment(), "TMPDIR="+folder)
	testkit.NoError(t, shell.Run())
	testkit.Equal(t, len(testkit.Must(os.ReadDir(folder))(t)), 0, "folders that dev left")
}

// TestDevForATime runs dev for a time that a flag says.
func TestDevForATime(t *testing.T) {
	t.Parallel()
	run(t, settings{"HTTP_ADDR": "127.0.0.1:0"}, "dev", "--storm", "50", "--for", "1s").want(0, "notifier dev --storm 50 ", " events in ")
}

// leanest bounds the size of the program without dev, in bytes. text/template calls methods by name, so the linker keeps about 10 MB of
// exported methods, most of them of go-redis. The program of the image has neither fail points nor the paths of this machine: it is 180 KiB smaller,
// and below 31 MiB.
const leanest = 31<<20 + 180<<10

// TestWithoutDev runs a program that has no command dev, as that of the image. Neither help nor errors name dev.
func TestWithoutDev(t *testing.T) {
	t.Parallel()
	lean := testkit.Must(withFailPoints())(t)
	testkit.AtMost(t, testkit.Must(os.Stat(lean))(t).Size(), leanest, "bytes of the program without dev")
	for _, test := range []struct {
		command string
		status  int
		says    string
	}{{"dev", 2, `unknown command "dev"`}, {"--help", 0, "publish"}, {"run", 2, "NOTIFIER_SINK"}} {
		command := exec.CommandContext(t.Context(), lean, test.command)
		command.Env = settings{}.environment()
		p := launch(t, "without dev", command)
		p.want(test.status, test.says)
		if test.command != "dev" && regexp.MustCompile(`\bdev\b`).MatchString(p.all()) {
			t.Errorf("%s names dev:\n%s", test.command, p.all())
		}
	}
}
