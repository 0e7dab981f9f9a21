package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

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
