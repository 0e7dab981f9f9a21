package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// inForce writes a state of the limits to Redis, as a worker's calls do.
func inForce(t *testing.T, redisServer *servertest.Redis, p limits.Position) {
	t.Helper()
	redisServer.CLI("set", "{notifier}:limits", fmt.Sprintf("%d %d 1766000000000000", p.Generation, p.Revision), "px", "3600000")
}

func wantInForce(t *testing.T, want limits.Position) {
	t.Helper()
	l := &limitsCommand{settings: loadSettings(t)}
	err := l.withStore(testkit.Must(limits.NewTree(l.settings.Limits.Plan()))(t), func(shared *store.Redis) error {
		got, _, err := shared.Positions.InForce(t.Context())
		testkit.Equal(t, got, want, "in force")
		return err
	})
	testkit.NoError(t, err)
}

var (
	aTime       = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (UTC|[+-]\d\d:\d\d)`)
	aGeneration = regexp.MustCompile(`of generation \d+ \(\S+\)`)
)

// withoutTimes replaces times and generations, which differ between runs.
func withoutTimes(text string) string {
	text = strings.ReplaceAll(text, setup.UserAtHost(), "me")
	text = aGeneration.ReplaceAllString(aTime.ReplaceAllString(text, "then"), "of a generation")
	return strings.TrimSuffix(fields(text), "\n")
}

func TestLimitsAdopt(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"SINK": "console"})
	mustLimits(t, "set payments 5/1h --as ann")
	mustLimits(t, "set errors 6/1h --shadow")
	requireLimits(t, "adopt --yes", "nothing to adopt: the bucket holds revision 2 of a generation, in force is revision 2 of a generation")

	inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 7})
	const stale = "\nworkers that read this take no events, since newer limits are in force: revision 7 of a generation; see limits adopt"
	testkit.Contains(t, "limits", withoutTimes(mustLimits(t, "")), stale)
	requireCheck(t, "FAIL live limits: bucket notifier-limits holds revision 2 of a generation, which is older than what is in force, "+
		"revision 7 of a generation:")
	requireLimits(t, "adopt --yes",
		"in force: revision 7 of a generation, since then",
		"in the bucket: revision 2 of a generation",
		"LEVEL LIMIT SET BY",
		"payments 5/1h then ann",
		"shadow errors 6/1h then me",
		"in force is revision 3 of a generation, replacing revision 7 of a generation",
	)
	requireLimits(t, "adopt --yes", "nothing to adopt: the bucket holds revision 3 of a generation, in force is revision 3 of a generation")
	testkit.Contains(t, "limits history", withoutTimes(mustLimits(t, "history")), "\n3 then me (adopted) replacing revision 7 of a generation")
	requireCheck(t, "ok live limits: bucket notifier-limits holds revision 3 of a generation")
	testkit.Lacks(t, "limits", mustLimits(t, ""), "take no events")

	requireLimits(t, "rollback 1", "shadow errors: 6/1h -> (unset) (revision 4)")
	inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 7})
	for _, line := range []string{"limits set payments 7/1h", "mute payments --for 1h --reason upgrade"} {
		requireFailure(t, Failure, line, "of the bucket notifier-limits is stored and not in force, since newer limits are: revision 7 of ")
	}
}

// Operators who change limits at once do not take each other's changes for those of a bucket before a restore.
func TestLimitsSetAtOnce(t *testing.T) {
	limitsServers(t, map[string]string{"SINK": "console", "REDIS_TIMEOUT": "4s"}) // the operators keep the machine busy
	mustLimits(t, "set payments 5/1h")
	var setting sync.WaitGroup
	for operator := range 16 {
		setting.Go(func() {
			for range 4 {
				if _, _, err := execute(t.Context(), "", "limits", "set", fmt.Sprint("path", operator), "6/1h"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	setting.Wait()
	testkit.Lacks(t, "limits", mustLimits(t, ""), "take no events")
}

// requireCheck looks for a line of what check prints.
func requireCheck(t *testing.T, want string) {
	t.Helper()
	out, _, _ := execute(t.Context(), "", "check")
	testkit.Contains(t, "check", "\n"+withoutTimes(out), "\n"+want)
}

// answered adopts the limits with this input from the person at the terminal.
func answered(t *testing.T, answer io.Reader) (out, problems string, err error) {
	t.Helper()
	var o, p strings.Builder
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetIn(answer)
	cmd.SetOut(&o)
	cmd.SetErr(&p)
	err = (&limitsCommand{limitsFlags: limitsFlags{by: "ann"}}).adopt(cmd, nil)
	return withoutTimes(o.String()), p.String(), err
}

// adopt asks for confirmation. Only a yes changes the state in force.
func TestLimitsAdoptAsks(t *testing.T) {
	_, redisServer := limitsServers(t, nil)
	mustRun(t, "", "provision")
	newer := limits.Position{Generation: 1 << 50, Revision: 7}
	inForce(t, redisServer, newer)
	out, problems, err := answered(t, strings.NewReader("n\n"))
	testkit.Check(t, err == nil && problems == "Put the bucket's state in force? [y/N] " && strings.HasSuffix(out, "the bucket overrides no limit"),
		"got %q, the question %q and %v, want no change", out, problems, err)
	wantInForce(t, newer)
	out, _, err = answered(t, strings.NewReader("y\n"))
	testkit.Check(t, err == nil && strings.HasSuffix(out, "\nin force is revision 1 of a generation, replacing revision 7 of a generation"),
		"got %q and %v, want the state in force", out, err)
	testkit.Contains(t, "limits history", withoutTimes(mustLimits(t, "history")), "1 then ann (adopted)")
}

// A state that changed after it was shown is not adopted.
func TestLimitsAdoptOfAnotherState(t *testing.T) {
	_, redisServer := limitsServers(t, nil)
	mustRun(t, "", "provision")
	newer := limits.Position{Generation: 1 << 50, Revision: 7}
	for name, change := range map[string]func(){
		"the bucket": func() { requireFailure(t, Failure, "limits set payments 5/1h", "not in force") },
		"redis":      func() { inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 8}) },
	} {
		inForce(t, redisServer, newer)
		_, _, err := answered(t, readerFunc(func(p []byte) (int, error) { change(); return copy(p, "y\n"), nil }))
		testkit.Fails(t, name, err, errChangedMeanwhile)
	}
	redisServer.Kill()
	requireFailure(t, Failure, "limits adopt --yes", "NOTIFIER_REDIS_URL")
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestCheckOfLimitsWithoutBucket(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"NATS_PROVISION": "false", "SINK": "console"})
	const absent = "live limits: looking for bucket \"notifier-limits\": the limits bucket is absent; "
	requireCheck(t, "warn "+absent+"limits that are changed")
	inForce(t, redisServer, limits.Position{Generation: 1, Revision: 7})
	requireCheck(t, "FAIL "+absent+"others use revision 7 of a generation")
	t.Setenv("NOTIFIER_NATS_PROVISION", "true")
	requireCheck(t, "warn live limits: bucket notifier-limits is absent; the worker creates it, and its limits replace revision 7 of a generation")
}

func TestNATSUser(t *testing.T) {
	account, user := testkit.Must(nkeys.CreateAccount())(t), testkit.Must(nkeys.CreateUser())(t)
	claims := jwt.NewUserClaims(testkit.Must(user.PublicKey())(t))
	claims.Name = "ann"
	token := testkit.Must(claims.Encode(account))(t)
	creds, broken := filepath.Join(t.TempDir(), "user.creds"), filepath.Join(t.TempDir(), "broken.creds")
	testkit.NoError(t, os.WriteFile(creds, testkit.Must(jwt.FormatUserConfig(token, testkit.Must(user.Seed())(t)))(t), 0o600))
	testkit.NoError(t, os.WriteFile(broken, []byte("no credentials"), 0o600))
	for _, test := range []struct {
		settings map[string]string
		want     string
	}{
		{nil, ""},
		{map[string]string{"NATS_USER": "bob", "NATS_PASSWORD": "p"}, "bob"},
		{map[string]string{"NATS_URL": "nats://h1:4222,nats://bob:p@h2:4222"}, "bob"},
		{map[string]string{"NATS_URL": "nats://secret@h1:4222"}, ""}, // a token
		{map[string]string{"NATS_TOKEN": "secret"}, ""},
		{map[string]string{"NATS_CREDS_FILE": creds}, "ann"},
		{map[string]string{"NATS_CREDS_FILE": broken}, ""},
	} {
		testkit.SetSettings(t, test.settings)
		testkit.Equal(t, setup.NATSUser(loadSettings(t).NATS), test.want, "the user of %v", test.settings)
	}
}
