package servertest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Connect connects to NATS and closes the connection with the test. It reconnects after a connection loss, without a time limit, and does not
// print the errors that a server sends unasked, such as a missing right.
func Connect(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(startTimeout),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, options...)
	conn := testkit.Must(nats.Connect(url, options...))(t)
	t.Cleanup(conn.Close)
	return conn
}

// AwaitAnswer returns when JetStream answers after a restart of the server. Until the connection has noticed the restart it looks connected, and
// a request is lost. Each request therefore waits for a second alone.
func AwaitAnswer(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	testkit.Await(t, "JetStream to answer after the restart", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.AccountInfo(ctx)
		return err
	})
}

// JetStream connects as [Connect] does.
func JetStream(t testing.TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	return testkit.Must(jetstream.New(Connect(t, url, options...)))(t)
}
