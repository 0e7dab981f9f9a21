package stream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestConnectErrors has faults that no wait can mend. The error comes at once, without a secret.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]ConnectOptions{
		"no file of credentials": {URL: "nats://127.0.0.1:1", CredsFile: filepath.Join(t.TempDir(), "absent.creds")},
		"not a URL":              {URL: "nats://user:canary@127.0.0.1:port"},
	}, func(t *testing.T, o ConnectOptions) {
		log := testkit.NewLog(t)
		o.Logger = log.Logger()
		c, err := Connect(t.Context(), o)
		if err == nil {
			c.Conn.Close()
			t.Fatal("got no error, want one")
		}
		testkit.Check(t, !strings.Contains(err.Error(), "canary") && len(log.Lines("canary")) == 0, "got a secret in %v, want none", err)
	})
}

// TestConnectWaits starts the server after the worker. The log says once that the server is unavailable.
func TestConnectWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.server.Kill()
	c := f.connect(ConnectOptions{URL: f.server.URL})
	f.eventually("the log says that it is unavailable", func() bool { return len(f.log.Lines("cannot reach nats")) > 0 })
	testkit.Fails(t, "Failure", c.Failure(), nil)
	f.server.Restart()
	f.eventually("it is connected", c.Conn.IsConnected)
	f.eventually("the log says so", func() bool { return len(f.log.Lines("nats is connected")) > 0 })
	f.log.WantCount(t, 1, "cannot reach nats")
}

// TestReasonOfTheHandshake restarts a server with a certificate that the worker does not trust. The log says so, and not only that the server was
// away before.
func TestReasonOfTheHandshake(t *testing.T) {
	t.Parallel()
	trusted, key := testkit.Certificate(t, "nats")
	other, otherKey := testkit.Certificate(t, "nats")
	server := servertest.StartNATSProcess(t, fmt.Sprintf("tls {cert_file: %q, key_file: %q}", trusted, key))
	f := newFixture(t)
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(testkit.Must(os.ReadFile(trusted))(t))
	c := f.connect(ConnectOptions{URL: server.URL, TLS: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS13}})
	f.eventually("it is connected", c.Conn.IsConnected)

	server.Kill()
	testkit.NoError(t, os.Rename(other, trusted))
	testkit.NoError(t, os.Rename(otherKey, key))
	server.Restart()
	f.eventually("the log has the reason", func() bool { return len(f.log.Lines("certificate signed by unknown authority")) > 0 })
	testkit.Equal(t, strings.Contains(c.Failure().Error(), "certificate signed by unknown authority"), true, "the failure has the reason")
}

// TestEachServerHasItsReason has two servers that do not run. The error names both.
func TestEachServerHasItsReason(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.connect(ConnectOptions{URL: "nats://user:canary@127.0.0.1:1,nats://127.0.0.1:2"})
	f.eventually("both servers are named", func() bool {
		err := c.Failure()
		return err != nil && strings.Contains(err.Error(), "127.0.0.1:1: ") && strings.Contains(err.Error(), "127.0.0.1:2: ")
	})
	testkit.Equal(t, strings.ContainsAny(c.Failure().Error(), "\n") || strings.Contains(c.Failure().Error(), "canary"), false, "several lines or a secret")
}

// TestReasonsOfAttempts has servers of another kind. Each is logged once, whatever differs between the attempts.
func TestReasonsOfAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	address := strings.TrimPrefix(f.server.URL, "nats://")
	webSocket := f.connect(ConnectOptions{URL: "ws://" + address})
	f.eventually("the reason", func() bool { return webSocket.Failure() != nil })
	testkit.Equal(t, webSocket.Failure().Error(), "the server does not speak WebSocket", "reason")

	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4222}
	handler := webSocket.reconnectFailed(f.log.Logger())
	for port := range 3 {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50_000 + port}
		handler(webSocket.Conn, fmt.Errorf("connecting: %w", &net.OpError{Op: "read", Net: "tcp", Source: from, Addr: at, Err: os.ErrDeadlineExceeded}))
	}
	f.log.WantCount(t, 1, "connecting: read tcp 127.0.0.1:4222: i/o timeout")
	testkit.Fails(t, "Failure", webSocket.Failure(), os.ErrDeadlineExceeded)

	file, _ := testkit.Certificate(t, "nats")
	block, _ := pem.Decode(testkit.Must(os.ReadFile(file))(t))
	expired := testkit.Must(x509.ParseCertificate(block.Bytes))(t)
	for seconds := range 3 {
		_, err := expired.Verify(x509.VerifyOptions{CurrentTime: expired.NotAfter.Add(time.Duration(1+seconds) * time.Second)})
		handler(webSocket.Conn, fmt.Errorf("connecting: %w", err))
	}
	f.log.WantCount(t, 1, "connecting: x509: certificate has expired or is not yet valid: the current time is after ")
	f.log.WantCount(t, 1, "certificate has expired")
}

// TestInterruptedBeforeTheFirstConnection ends the context of an attempt to connect to a server that says nothing. A connection that was
// established goes on.
func TestInterruptedBeforeTheFirstConnection(t *testing.T) {
	t.Parallel()
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = silent.Close() }()
	ctx, interrupt := context.WithCancel(t.Context())
	dialer := &firstDialer{ctx: ctx}
	conn := testkit.Must(dialer.Dial("tcp", silent.Addr().String()))(t)
	interrupt()
	_, err := conn.Read(make([]byte, 1))
	testkit.Fails(t, "reading", err, net.ErrClosed)
	_, err = dialer.Dial("tcp", silent.Addr().String())
	testkit.Fails(t, "dialling again", err, errInterrupted)

	ctx, interrupt = context.WithCancel(t.Context())
	dialer = &firstDialer{ctx: ctx}
	conn = testkit.Must(dialer.Dial("tcp", silent.Addr().String()))(t)
	dialer.established.Store(true)
	interrupt()
	testkit.NoError(t, conn.Close())
	again := testkit.Must(dialer.Dial("tcp", silent.Addr().String()))(t)
	testkit.NoError(t, again.Close())

	f := newFixture(t)
	c := testkit.Must(Connect(ctx, ConnectOptions{URL: f.server.URL, Logger: f.log.Logger()}))(t)
	testkit.Equal(t, c.Conn.IsConnected(), false, "connected after the end")
	c.Conn.Close()
	<-c.Closed()
	f.log.WantCount(t, 0, "cannot reach nats")
}

// TestLostAtOnce has a connection that is lost before the log has a line about it.
func TestLostAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn := servertest.Connect(t, f.server.URL)
	logConnected(f.log.Logger(), "nats is connected", conn)
	f.log.WantCount(t, 1, "nats is connected")
	conn.Close()
	logConnected(f.log.Logger(), "nats is connected", conn)
	f.log.WantCount(t, 1, "nats is connected")
}

// TestBlockedWrite looks for the longest time of a write to a server that reads nothing. The client sends no ping meanwhile, so the write has
// to end before the pings would.
func TestBlockedWrite(t *testing.T) {
	t.Parallel()
	c := newFixture(t).connect(ConnectOptions{URL: "nats://127.0.0.1:1"})
	testkit.AtMost(t, c.Conn.Opts.FlusherTimeout, c.Conn.Opts.PingInterval, "longest write")
}

// TestClosedByServer sends what the server answers by the end of the connection. The error has the server's reason.
func TestClosedByServer(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATS(t, func(o *server.Options) { o.MaxControlLine = 512 }))
	c := f.connect(ConnectOptions{URL: f.server.URL})
	f.eventually("it is connected", c.Conn.IsConnected)
	testkit.NoError(t, c.Conn.Publish(strings.Repeat("a", 1024), nil))
	testkit.Fails(t, "Sleep", c.Sleep(t.Context(), time.Hour), ErrClosed, "maximum control line exceeded")
}

// TestWrongPassword has the server refuse the password. The connection stays open for a repair. The log does not show the password.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "user", "right" })
	f := newFixtureOn(t, n, nats.UserInfo("user", "right"))
	c := f.connect(ConnectOptions{URL: n.URL, User: "user", Password: "canary"})
	f.eventually("the log says so", func() bool { return len(f.log.Lines("Authorization Violation")) > 0 })
	testkit.Check(t, !c.Conn.IsConnected() && !c.Conn.IsClosed(), "connected %t, closed %t; want neither", c.Conn.IsConnected(), c.Conn.IsClosed())
	f.log.WantCount(t, 0, "canary")
}

// TestChangedPassword has a server come back with another password. The log says once that it refuses the old password, however often the
// connection tries.
func TestChangedPassword(t *testing.T) {
	t.Parallel()
	password := "before"
	n := servertest.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "user", password })
	f := newFixtureOn(t, n, nats.UserInfo("user", "before"))
	attempts := new(countingDialer)
	c := f.connect(ConnectOptions{URL: n.URL, User: "user", Password: "before", Dialer: attempts})
	f.eventually("it is connected", c.Conn.IsConnected)
	n.Kill()
	password = "after"
	n.Restart()
	f.eventually("the refusal is known", func() bool { return errors.Is(c.Failure(), nats.ErrAuthorization) })
	seen := attempts.Load()
	f.eventually("it has tried again, and again", func() bool { return attempts.Load() > seen+3 })
	f.log.WantCount(t, 1, "authorization violation")
}

// countingDialer counts attempts to connect.
type countingDialer struct{ atomic.Int64 }

func (d *countingDialer) Dial(network, address string) (net.Conn, error) {
	d.Add(1)
	return net.Dial(network, address)
}

// TestDenied repeats denials. The connection remembers each subject once, in order, up to a bound.
func TestDenied(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	c := &Connection{}
	deny := func(subject string) {
		c.asyncError(log.Logger(), nil, fmt.Errorf("%w: Permissions Violation for Publish to %q", nats.ErrPermissionViolation, subject))
	}
	for _, subject := range []string{"b", "$JS.ACK.S.C.1.2.3.4.5", "a", "b", "$JS.ACK.S.C.6.7.8.9.0"} {
		deny(subject)
	}
	denied := c.Denied()
	if len(denied) != 3 || !strings.Contains(denied[0], `"b"`) || !strings.Contains(denied[1], `"$JS.ACK.S.C.>"`) || !strings.Contains(denied[2], `"a"`) {
		t.Errorf("denials: got %q, want those of b, of the acks and of a", denied)
	}
	log.WantCount(t, 3, "nats permission is missing")
	for i := range 2 * mostDenied {
		deny(fmt.Sprint(i))
	}
	testkit.Equal(t, len(c.denied), mostDenied, "remembered denials")
}

// TestReconnectsSoon bounds the time without an attempt to reconnect. An event is to be posted within half a second after the server is back.
func TestReconnectsSoon(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := f.connect(ConnectOptions{URL: f.server.URL}).Conn.Opts
	for round := range 100 {
		wait := o.CustomReconnectDelayCB(1 + round)
		testkit.Require(t, wait <= 200*time.Millisecond, "wait before attempt %d to reconnect: got %v, want at most 200ms", 1+round, wait)
	}
}

// TestDenialIsNamed denies a subject. The log and Ready name it. Without the name the denial looks like a timeout.
func TestDenialIsNamed(t *testing.T) {
	t.Parallel()
	const info = "$JS.API.CONSUMER.INFO.EVENTS.notifier"
	f := limited(t, info)
	f.provision()
	client := testkit.Must(NewClient(Options{Connection: f.connectLimited(), Names: testNames, AckWait: ackWait, Logger: f.log.Logger()}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	prepared := make(chan error, 1)
	go func() { prepared <- client.Find(ctx) }()
	f.eventually("the probe names it", func() bool { err := client.Ready(); return err != nil && strings.Contains(err.Error(), info) })
	cancel()
	testkit.Fails(t, "error of Find", <-prepared, context.Canceled)
	lines := f.log.Lines("nats permission is missing")
	testkit.Check(t, len(lines) == 1 && strings.Contains(lines[0], info), "lines: got %q, want one with %s", lines, info)
}
