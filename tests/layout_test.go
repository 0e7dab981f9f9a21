package tests

import (
	"testing"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const refusal = "workers of another layout are running: "

// announceOther announces a worker of another layout until stop is called.
func (d *deployment) announceOther() (stop func()) {
	d.t.Helper()
	conn := servertest.Connect(d.t, d.nats.URL)
	other, err := micro.AddService(conn, micro.Config{
		Name: "notifier", Version: "9.9.9", Metadata: map[string]string{"deployment": "notifier", "layout": "999"},
	})
	testkit.NoError(d.t, err)
	testkit.NoError(d.t, conn.FlushTimeout(testkit.Patience))
	return func() {
		testkit.NoError(d.t, other.Stop())
		testkit.NoError(d.t, conn.FlushTimeout(testkit.Patience))
	}
}

// TestOtherLayout starts workers beside a worker of another layout, and after it has gone.
func TestOtherLayout(t *testing.T) {
	t.Parallel()
	const own = "3"
	d := newDeployment(t)
	d.startReady("first").stop()
	testkit.Equal(t, d.redis.CLI("GET", "{notifier}:layout"), own, "layout in redis")
	check := func() string { return run(t, d.settings("HTTP_ADDR", "off"), "check").all() }
	testkit.Contains(t, "shown", check(), "ok    layout: "+own+", and no worker of another layout is running")

	d.redis.CLI("SET", "{notifier}:layout", "999")
	stop := d.announceOther()
	testkit.Contains(t, "shown", check(), "FAIL  layout: this program stores its state in layout "+own+", and "+refusal, "(layout 999, version 9.9.9)")
	refused := run(t, d.settings("HTTP_ADDR", "off"), "run")
	refused.want(1, refusal)
	testkit.Equal(t, d.redis.CLI("GET", "{notifier}:layout"), "999", "layout in redis after the refusal")

	stop()
	next := d.startReady("next")
	awaitNumber(t, 1, "lines about the layout", func() (int, error) { return next.logLines("no worker of the previous layout is running"), nil })
	testkit.Equal(t, d.redis.CLI("GET", "{notifier}:layout"), own, "layout in redis at the end")
	d.wantEvaluated(1, "payments", "1")
}

// TestRedisStoresNothing starts a worker while Redis answers and refuses to store the layout. The worker becomes ready when Redis stores again.
func TestRedisStoresNothing(t *testing.T) {
	t.Parallel()
	for name, commands := range map[string]struct{ refuse, store []string }{
		"a replica":     {[]string{"REPLICAOF", "127.0.0.1", "1"}, []string{"REPLICAOF", "NO", "ONE"}},
		"a full server": {[]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			d.redis.CLI(commands.refuse...)
			w := d.startWorker("a worker")
			w.awaitUnready("redis")
			d.redis.CLI(commands.store...)
			w.awaitReady()
		})
	}
}

// TestOtherLayoutComesLater has another layout take over while a worker waits for its streams, or while Redis does not answer. The worker ends
// with one sentence.
func TestOtherLayoutComesLater(t *testing.T) {
	t.Parallel()
	t.Run("before the streams exist", func(t *testing.T) {
		t.Parallel()
		d := newDeployment(t)
		w := d.startWorker("waiting", "NATS_PROVISION", "false")
		w.awaitUnready("stream")
		d.announceOther()
		d.redis.CLI("SET", "{notifier}:layout", "999")
		run(t, d.settings("HTTP_ADDR", "off"), "provision").want(0)
		w.want(1, refusal)
	})
	t.Run("without redis", func(t *testing.T) {
		t.Parallel()
		d := newDeployment(t)
		d.redis.CLI("SET", "{notifier}:layout", "999")
		d.redis.Pause()
		w := d.startWorker("without redis")
		w.awaitUnready("redis")
		d.announceOther()
		run(t, d.settings("HTTP_ADDR", "off"), "run").want(1, refusal)
		d.redis.Resume()
		w.want(1, refusal)
	})
}
