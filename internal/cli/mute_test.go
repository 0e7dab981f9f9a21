package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// interrupting is an output that interrupts its command.
type interrupting struct {
	bytes.Buffer
	interrupt func()
}

func (o *interrupting) Write(text []byte) (int, error) {
	o.interrupt()
	return o.Buffer.Write(text)
}

// A mute that is interrupted while it waits for posts that have begun prints that it is in force.
func TestMuteInterrupted(t *testing.T) {
	limitsServers(t, nil)
	ctx, interrupt := context.WithCancel(t.Context())
	out := &interrupting{interrupt: interrupt}
	root := newRoot()
	root.SetArgs([]string{"mute", "payments", "--for", "1h", "--reason", "x"})
	root.SetOut(out)
	testkit.Fails(t, "the interrupted command", root.ExecuteContext(ctx), context.Canceled, "the mute is in force")
	testkit.Contains(t, "it prints", out.String(), "payments is muted until ")
	testkit.Contains(t, "mutes", mustRun(t, "", "mutes"), "payments")
}

// If the bucket is deleted, workers keep the mutes that they know. The commands do not claim that nothing is muted.
func TestMutesWithoutTheirBucket(t *testing.T) {
	natsServer, _ := limitsServers(t, nil)
	mustRun(t, "", "provision")
	mustRun(t, "", "mute", "payments", "--for", "1h", "--reason", "upgrade")
	mustRun(t, "", "publish", "payments", "card declined")
	js := servertest.JetStream(t, natsServer.URL)
	testkit.NoError(t, js.DeleteKeyValue(t.Context(), "notifier-limits"))
	testkit.Contains(t, "mutes without a worker", mustRun(t, "", "mutes"), "nothing is muted")
	output, _, _ := execute(t.Context(), "", "why", "payments")
	testkit.Contains(t, "why", output, "the limits cannot be asked: the live limits cannot be read, and revision 1 of generation ")
	testkit.Lacks(t, "why", output, "would be sent now")

	muting := status.Mute{Path: "payments", Reason: "upgrade", By: "ann", Until: time.Now().Add(time.Hour)}
	reports(t, natsServer.URL, status.Report{
		Worker: status.Worker{Name: "pod-1", Instance: "one", Settings: loadSettings(t).Shared}, Mutes: []status.Mute{muting},
	})
	testkit.Eventually(t, "the worker answers in time", func() bool {
		output, _, err := execute(t.Context(), "", "mutes")
		return err != nil && output == "" && strings.Contains(err.Error(), "the limits bucket is absent: notifier-limits (notifier provision creates it); "+
			"the workers keep 1 mute, which notifier status shows")
	})
}

// A mute prints what is muted even if Redis does not know of it yet: the mute is stored.
func TestMuteWithoutRedis(t *testing.T) {
	_, redisServer := limitsServers(t, map[string]string{"REDIS_TIMEOUT": "200ms"})
	redisServer.Kill()
	for flags, want := range map[string]string{
		"--for 1h":                      "payments is muted until ",
		"--every daily 02:00-04:00 UTC": "payments is muted daily 02:00-04:00 UTC, next at ",
	} {
		flag, value, _ := strings.Cut(flags, " ")
		output, _, err := execute(t.Context(), "", "mute", "payments", flag, value, "--reason", "x")
		testkit.Fails(t, flags, err, nil, "is stored, and workers apply it")
		testkit.Contains(t, "it prints", output, want)
	}
}
