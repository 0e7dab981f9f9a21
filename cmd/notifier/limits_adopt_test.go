package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// inForce has Redis know a state of the limits, as after calls that were made with it.
func inForce(t *testing.T, redisServer *servertest.Redis, p limits.Position) {
	t.Helper()
	redisServer.CLI("set", "{notifier}:limits", fmt.Sprintf("%d %d 1766000000000000", p.Generation, p.Revision), "px", "3600000")
}

// wantInForce asks Redis which state is.
func wantInForce(t *testing.T, want limits.Position) {
	t.Helper()
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		t.Fatal(err)
	}
	tree := testkit.Must(limits.NewTree(settings.Limits.Plan()))(t)
	client := testkit.Must(newRedisClient(settings.Redis, slog.New(slog.DiscardHandler)))(t)
	defer func() { _ = client.Close() }()
	if got, _, err := newStore(client, settings.Redis, throttle.Settings{Tree: tree}).InForce(t.Context()); err != nil || got != want {
		t.Errorf("in force is %v, %v; want %v", got, err, want)
	}
}

var (
	aTime       = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
	aGeneration = regexp.MustCompile(`of generation \d+ \(\S+\)`)
)

// withoutTimes replaces what differs between runs.
func withoutTimes(text string) string {
	text = aGeneration.ReplaceAllString(aTime.ReplaceAllString(text, "then"), "of a generation")
	return strings.TrimSuffix(fields(text), "\n")
}

func TestLimitsAdopt(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"SINK": "console"})
	mustLimits(t, "set", "payments", "5/1h", "--as", "ann")
	mustLimits(t, "set", "errors", "6/1h", "--shadow")
	adopt := func(want ...string) {
		t.Helper()
		requireLimits(t, "adopt", withoutTimes(mustLimits(t, "adopt", "--yes")), want...)
	}
	adopt("nothing to adopt: the bucket holds revision 2 of a generation, in force is none")
	wantInForce(t, limits.Position{})

	inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 7})
	if shown := withoutTimes(mustLimits(t)); !strings.Contains(shown, "\nworkers that read this take no events, since newer limits are in force: revision 7 of a generation; see limits adopt") {
		t.Errorf("limits prints\n%s", shown)
	}
	out, _, err := execute(t.Context(), "", "check")
	if !errors.Is(err, errReported) || !strings.Contains(withoutTimes(out), "FAIL live limits: bucket notifier-limits holds revision 2 of a generation, which is older than what is in force, revision 7 of a generation:") {
		t.Errorf("check prints %v\n%s", err, out)
	}
	adopt(
		"in force: revision 7 of a generation, since then",
		"in the bucket: revision 2 of a generation",
		"LEVEL LIMIT SET BY",
		"payments 5/1h then ann",
		"shadow errors 6/1h then -",
		"in force is revision 3 of a generation, in the place of revision 7 of a generation",
	)
	adopt("nothing to adopt: the bucket holds revision 3 of a generation, in force is revision 3 of a generation")
	history := strings.Split(withoutTimes(mustLimits(t, "history")), "\n")
	testkit.Equal(t, history[len(history)-1], "3 then - (adopted) in the place of revision 7 of a generation", "the history ends with")
	out, _, err = execute(t.Context(), "", "check")
	if strings.Contains(out, "FAIL  live limits") || !strings.Contains(withoutTimes(out), "ok live limits: bucket notifier-limits holds revision 3 of a generation") {
		t.Errorf("check prints %v\n%s", err, out)
	}
	if shown := mustLimits(t); strings.Contains(shown, "take no events") {
		t.Errorf("limits prints\n%s", shown)
	}

	// The overrides that there are after a rollback are still those of the limits alone.
	requireLimits(t, "rollback 1", mustLimits(t, "rollback", "1"), "changed: shadow errors")
}

// A person is asked, and only a yes changes anything.
func TestLimitsAdoptAsks(t *testing.T) {
	_, redisServer := limitsServers(t, nil)
	mustLimits(t)
	newer := limits.Position{Generation: 1 << 50, Revision: 7}
	inForce(t, redisServer, newer)
	asked := func(answer string) (out, problems string) {
		t.Helper()
		var o, p strings.Builder
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(answer))
		cmd.SetOut(&o)
		cmd.SetErr(&p)
		if err := adoptLimits(cmd, "ann", false); err != nil {
			t.Error(err)
		}
		return withoutTimes(o.String()), p.String()
	}
	for _, no := range []string{"", "\n", "n\n", "maybe\n"} {
		out, problems := asked(no)
		if problems != "Put the bucket's state in force? [y/N] " || !strings.HasSuffix(out, "the bucket overrides no limit") {
			t.Errorf("it prints %q and asks %q", out, problems)
		}
		wantInForce(t, newer)
	}
	if out, _ := asked("y\n"); !strings.HasSuffix(out, "\nin force is revision 1 of a generation, in the place of revision 7 of a generation") {
		t.Errorf("it prints %q", out)
	}
	if history := withoutTimes(mustLimits(t, "history")); !strings.Contains(history, "1 then ann (adopted)") {
		t.Errorf("the history is\n%s", history)
	}
}

// What changed after it was shown is not adopted.
func TestLimitsAdoptOfAnotherState(t *testing.T) {
	_, redisServer := limitsServers(t, nil)
	mustLimits(t)
	newer := limits.Position{Generation: 1 << 50, Revision: 7}
	for name, change := range map[string]func(){
		"the bucket": func() { mustLimits(t, "set", "payments", "5/1h") },
		"redis":      func() { inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 8}) },
	} {
		inForce(t, redisServer, newer)
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(readerFunc(func(p []byte) (int, error) { change(); return copy(p, "y\n"), nil }))
		cmd.SetOut(&strings.Builder{})
		cmd.SetErr(&strings.Builder{})
		if err := adoptLimits(cmd, "", false); !errors.Is(err, errChangedMeanwhile) {
			t.Errorf("%s: %v, want that it was changed meanwhile", name, err)
		}
	}
	setenv(t, map[string]string{"NATS_URL": os.Getenv("NOTIFIER_NATS_URL"), "REDIS_URL": "redis://" + unused(t)})
	if _, _, err := execute(t.Context(), "", "limits", "adopt", "--yes"); err == nil || !strings.Contains(err.Error(), "NOTIFIER_REDIS_URL") {
		t.Errorf("without Redis: %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Without a bucket there is nothing to adopt, and check says what that means.
func TestCheckOfLimitsWithoutBucket(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"NATS_PROVISION": "false", "SINK": "console"})
	check := func(want string) {
		t.Helper()
		if out, _, _ := execute(t.Context(), "", "check"); !strings.Contains(withoutTimes(out), want) {
			t.Errorf("check prints\n%s\nwant %q in it", out, want)
		}
	}
	check("warn live limits: looking for bucket \"notifier-limits\": the limits bucket is absent; limits that are changed")
	inForce(t, redisServer, limits.Position{Generation: 1, Revision: 7})
	check("FAIL live limits: looking for bucket \"notifier-limits\": the limits bucket is absent; others use revision 7 of a generation")
	if _, _, err := execute(t.Context(), "", "limits", "adopt", "--yes"); err == nil || !strings.Contains(err.Error(), "NOTIFIER_NATS_PROVISION") {
		t.Errorf("adopt: %v", err)
	}
	t.Setenv("NOTIFIER_NATS_PROVISION", "true")
	check("ok live limits: bucket notifier-limits is absent, the worker creates it")
}

func TestNATSUser(t *testing.T) {
	creds := filepath.Join(t.TempDir(), "user.creds")
	jwt := "eyJhbGciOiJlZDI1NTE5In0." + "eyJuYW1lIjoiYW5uIn0" + ".c2lnbmF0dXJl" // {"name":"ann"}
	text := "-----BEGIN NATS USER JWT-----\n" + jwt + "\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\nSU\n------END USER NKEY SEED------\n"
	broken := filepath.Join(t.TempDir(), "broken.creds")
	for file, content := range map[string]string{creds: text, broken: "no credentials"} {
		testkit.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	for name, test := range map[string]struct {
		settings map[string]string
		want     string
	}{
		"nobody":           {nil, ""},
		"a user":           {map[string]string{"NATS_USER": "bob", "NATS_PASSWORD": "p"}, "bob"},
		"in a URL":         {map[string]string{"NATS_URL": "nats://h1:4222,nats://bob:p@h2:4222"}, "bob"},
		"a token in a URL": {map[string]string{"NATS_URL": "nats://secret@h1:4222"}, ""},
		"a token":          {map[string]string{"NATS_TOKEN": "secret"}, ""},
		"credentials":      {map[string]string{"NATS_CREDS_FILE": creds}, "ann"},
		"bad credentials":  {map[string]string{"NATS_CREDS_FILE": broken}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, test.settings)
			settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
			if err != nil {
				t.Fatal(err)
			}
			testkit.Equal(t, natsUser(settings.NATS), test.want, "the user")
		})
	}
}
