package tests

import (
	"testing"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestOtherLayout starts workers beside a worker of another layout, and after it has gone.
func TestOtherLayout(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.startReady("first").stop()
	testkit.Equal(t, d.redis.CLI("GET", "{notifier}:layout"), "1", "layout in redis")
	check := func() string { return run(t, d.settings("HTTP_ADDR", "off"), "check").all() }
	wantShown(t, check(), "ok    layout: 1, and no worker of another layout is running")

	d.redis.CLI("SET", "{notifier}:layout", "999")
	conn := servertest.Connect(t, d.nats.URL)
	other, err := micro.AddService(conn, micro.Config{
		Name: "notifier", Version: "9.9.9", Metadata: map[string]string{"deployment": "notifier", "layout": "999"},
	})
	testkit.NoError(t, err)
	testkit.NoError(t, conn.FlushTimeout(testkit.Patience))
	const refusal = "workers of another layout are running: "
	wantShown(t, check(), "FAIL  layout: this program stores its state in layout 1, and "+refusal, "(layout 999, version 9.9.9)")
	refused := run(t, d.settings("HTTP_ADDR", "off"), "run")
	refused.want(1, refusal)
	testkit.Equal(t, d.redis.CLI("GET", "{notifier}:layout"), "999", "layout in redis after the refusal")

	testkit.NoError(t, other.Stop())
	testkit.NoError(t, conn.FlushTimeout(testkit.Patience))
	next := d.startReady("next")
	awaitNumber(t, 1, "lines about the layout", func() (int, error) { return next.logLines("no worker of the layout before is left"), nil })
	testkit.Equal(t, d.redis.CLI("GET", "{notifier}:layout"), "1", "layout in redis at the end")
	d.wantEvaluated(1, "payments", "1")
}
