package servertest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Connect connects to NATS and closes the connection with the test. It reconnects after a connection loss, without a time limit.
func Connect(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(startTimeout),
	}, options...)
	conn := testkit.Must(nats.Connect(url, options...))(t)
	t.Cleanup(conn.Close)
	return conn
}

// JetStream connects as [Connect] does.
func JetStream(t testing.TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	return testkit.Must(jetstream.New(Connect(t, url, options...)))(t)
}
