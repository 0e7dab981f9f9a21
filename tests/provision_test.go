package tests

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// provisionedNames are what notifier provision names, in the order of its lines.
var provisionedNames = []string{
	"stream NOTIFICATIONS", "consumer notifier of stream NOTIFICATIONS", "stream NOTIFICATIONS_ROOM",
	"consumer notifier-room of stream NOTIFICATIONS_ROOM", "stream NOTIFICATIONS_DLQ", "stream NOTIFICATIONS_JOURNAL", "bucket notifier-limits",
}

// words returns the first words of all lines, and checks what the lines name.
func words(t *testing.T, p *process) (all []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(p.stdout.String()), "\n")
	testkit.Equal(t, len(lines), len(provisionedNames), "lines")
	for i, line := range lines {
		word, rest, _ := strings.Cut(line, "  ")
		name, _, _ := strings.Cut(strings.TrimSpace(rest), ":")
		testkit.Equal(t, name, provisionedNames[i], "named in line %d", i+1)
		all = append(all, word)
	}
	return all
}

// TestProvision installs the notifier for the first time with the users of the sample: a worker that may not create anything is not ready
// until notifier provision has run. Then the settings change.
func TestProvision(t *testing.T) {
	running := servertest.StartSampleNATS(t, "../configs/nats/notifier.conf")
	as := func(user string) []string {
		return []string{"NATS_USER", user, "NATS_PASSWORD", "secret", "NATS_INBOX", "_INBOX_" + user, "NATS_PROVISION", "false"}
	}
	d := &deployment{
		t: t, nats: running, redis: servertest.StartRedis(t), slack: slacktest.New(t),
		js: servertest.JetStream(t, running.URL, nats.UserInfo("operator", "secret"), nats.CustomInboxPrefix("_INBOX_operator")),
	}
	w := d.startWorker("worker", as("notifier")...)
	w.awaitStatus("/readyz", 503, "stream not found")

	provision := func(status int, did string, arguments ...string) *process {
		t.Helper()
		p := run(t, d.settings(as("provisioner")...), append([]string{"provision"}, arguments...)...)
		p.want(status)
		testkit.EqualSlices(t, words(t, p), slices.Repeat([]string{did}, len(provisionedNames)), "done")
		return p
	}
	provision(3, "would create", "--dry-run")
	for name := range d.js.StreamNames(t.Context()).Name() {
		t.Errorf("got the stream %s after a dry run, want none", name)
	}
	provision(0, "created")
	w.awaitReady()
	provision(0, "unchanged")
	provision(0, "unchanged", "--dry-run")
	d.publish("notify.payments", "after the installation")
	d.awaitPosts(1)

	// Changed settings of a deployment that runs.
	changed := d.settings(as("provisioner")...).with("STREAM_MAX_BYTES", "2GiB", "NATS_ACK_WAIT", "40s", "DLQ_MAX_AGE", "10d")
	for _, test := range []struct {
		arguments []string
		status    int
		did       string
	}{{[]string{"provision", "--dry-run"}, 3, "would update  "}, {[]string{"provision"}, 0, "updated       "}} {
		run(t, changed, test.arguments...).want(test.status,
			test.did+"stream NOTIFICATIONS: max_bytes 2GiB, was 1GiB\n",
			test.did+"consumer notifier of stream NOTIFICATIONS: ack_wait 40s, was 30s\n",
			test.did+"stream NOTIFICATIONS_DLQ: max_age 10d, was 30d\n",
			"unchanged     bucket notifier-limits\n")
	}
}

// TestProvisionFails wants a line for each failure, and the status 1.
func TestProvisionFails(t *testing.T) {
	t.Parallel()
	d, user := withRights(t, `publish: { deny: ["$JS.API.STREAM.CREATE.NOTIFICATIONS_DLQ"] }`)
	run(t, d.settings(user...), "provision").want(1,
		"created       stream NOTIFICATIONS_ROOM", "FAILED        stream NOTIFICATIONS_DLQ: ", `"$JS.API.STREAM.CREATE.NOTIFICATIONS_DLQ"`,
		"created       bucket notifier-limits")
}
