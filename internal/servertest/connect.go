package servertest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Connect connects to NATS and closes the connection with the test. A connection that is lost is made again, however long that takes.
func Connect(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(startTimeout),
	}, options...)
	conn, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatalf("connect to NATS: %v", err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// JetStream connects as [Connect] does.
func JetStream(t testing.TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(Connect(t, url, options...))
	if err != nil {
		t.Fatalf("use JetStream: %v", err)
	}
	return js
}
