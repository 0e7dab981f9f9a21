package cli

import (
	"bytes"
	"context"
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
