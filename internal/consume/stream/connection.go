package stream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// programName is the connection name of workers and commands. Connections that publish for producers have other names.
const programName = "notifier"

// ConnectOptions configure the connection: the servers and the credentials.
type ConnectOptions struct {
	Name      string // the connection's name in NATS; "" for a worker or a command
	URL       string // comma separated
	CredsFile string // "" for none, as in the fields below
	User      string
	Password  string
	Token     string
	TLS       *tls.Config
	Inbox     string            // prefix of the reply subjects, so permissions can keep other clients from listening there
	Dialer    nats.CustomDialer // nil: the network
	Logger    *slog.Logger
}

// Connection is a connection to NATS. After a loss it reconnects without end.
type Connection struct {
	Conn *nats.Conn

	closed chan struct{}

	mu        sync.Mutex
	reconnect time.Time // time of the latest reconnect
	present   context.Context
	renew     context.CancelFunc // ends present
	failures  reasons            // of failed attempts since the connection was lost
	denied    []string           // distinct denials, in the order of their occurrence
}

// The worker tries to reconnect after reconnectWait plus up to reconnectJitter, however long the server has been away: the first event
// after a restart of the server has to be posted within half a second.
const (
	reconnectWait   = 100 * time.Millisecond
	reconnectJitter = 100 * time.Millisecond
)

// writeTimeout bounds one write to the server. Whoever calls the connection waits while a write blocks, and no ping is sent.
const writeTimeout = 5 * time.Second

// Connect starts connecting: it makes the first attempt, and leaves the further ones to the background. It fails only if waiting does not help, for
// example if a credentials file is unreadable. The end of the context ends the attempts, unless a connection was established before.
func Connect(ctx context.Context, o ConnectOptions) (*Connection, error) {
	c, dialer := &Connection{closed: make(chan struct{})}, &firstDialer{ctx: ctx}
	c.present, c.renew = context.WithCancel(context.Background())
	if o.Dialer == nil {
		o.Dialer = dialer
	}
	attemptFailed, made := c.reconnectFailed(o.Logger), make(chan struct{})
	options := []nats.Option{
		nats.Name(cmp.Or(o.Name, programName)),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(func(int) time.Duration {
			c.handshakeFailed(made, attemptFailed)
			return reconnectWait + rand.N(reconnectJitter) //nolint:gosec // no secret depends on it
		}),
		nats.IgnoreAuthErrorAbort(), // credentials are rotated; the log reports the error
		nats.Timeout(5 * time.Second),
		nats.PingInterval(5 * time.Second), // a server that hangs is noticed within 15 s
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(writeTimeout),
		nats.ConnectHandler(func(nc *nats.Conn) {
			dialer.established.Store(true)
			c.connected(time.Time{})
			logConnected(o.Logger, "nats is connected", nc)
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.connected(time.Now())
			logConnected(o.Logger, "nats is connected again", nc)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Logger.Warn("nats is disconnected", "error", err)
			}
		}),
		nats.ReconnectErrHandler(attemptFailed),
		nats.ErrorHandler(func(conn *nats.Conn, sub *nats.Subscription, err error) {
			isAttempt := sub == nil && !conn.IsConnected() && !errors.Is(err, nats.ErrPermissionViolation) // such as a refused login
			if isAttempt {
				attemptFailed(conn, err)
				return
			}
			c.asyncError(o.Logger, sub, err)
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.SetCustomDialer(o.Dialer),
	}
	conn, err := nats.Connect(o.URL, append(options, o.login()...)...)
	if _, unread := errors.AsType[*url.Error](err); unread { // the error quotes the URL, which may hold a password
		return nil, errors.New("connecting to nats: not a URL")
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to nats: %w", err)
	}
	c.Conn = conn
	close(made)
	return c, nil
}

func (o ConnectOptions) login() (options []nats.Option) {
	if o.Inbox != "" {
		options = append(options, nats.CustomInboxPrefix(o.Inbox))
	}
	if o.CredsFile != "" {
		options = append(options, nats.UserCredentials(o.CredsFile))
	}
	if o.User != "" {
		options = append(options, nats.UserInfo(o.User, o.Password))
	}
	if o.Token != "" {
		options = append(options, nats.Token(o.Token))
	}
	if o.TLS != nil {
		options = append(options, nats.Secure(o.TLS))
	}
	return options
}

// Closed is closed when the connection has ended for good.
func (c *Connection) Closed() <-chan struct{} { return c.closed }

// LastReconnect returns the time of the latest reconnect; zero if the connection was never lost.
func (c *Connection) LastReconnect() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reconnect
}

// ErrClosed means that the connection is closed for good.
var ErrClosed = errors.New("the connection to nats is closed")

// ClosedError returns [ErrClosed] with the server's reason, such as a message above a max_payload that was lowered meanwhile.
func (c *Connection) ClosedError() error {
	if reason := c.Conn.LastError(); reason != nil {
		return fmt.Errorf("%w: %w", ErrClosed, reason)
	}
	return ErrClosed
}

// Sleep waits for a time. It returns early, with the context's cause or [ErrClosed], if the context or the connection ends.
func (c *Connection) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.closed:
		return c.ClosedError()
	}
}

// connected clears the reasons of the outage. It records the time of the reconnect; zero: the connection was never lost.
func (c *Connection) connected(again time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.reconnect = nil, again
	if !again.IsZero() {
		c.renew()
		c.present, c.renew = context.WithCancel(context.Background())
	}
}

// UntilReconnect returns a context that ends at the next reconnect.
func (c *Connection) UntilReconnect() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.present
}

// Request calls a function that makes requests to the server. After a reconnect nobody answers these requests, so Request cancels the
// function's context and returns [nats.ErrDisconnected].
func (c *Connection) Request(ctx context.Context, ask func(context.Context) error) error {
	present := c.UntilReconnect()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(present, cancel)()
	if err := ask(ctx); err == nil || present.Err() == nil {
		return err
	}
	return nats.ErrDisconnected
}

// logConnected logs a connection, unless it is lost already: that has a line of its own.
func logConnected(logger *slog.Logger, message string, conn *nats.Conn) {
	if server := conn.ConnectedUrlRedacted(); server != "" {
		logger.Info(message, "server", server) //nolint:sloglint // a constant of the caller
	}
}

// reconnectFailed logs why the server cannot be reached: each reason once per outage. That no server is left to try is not logged.
func (c *Connection) reconnectFailed(logger *slog.Logger) nats.ConnErrHandler {
	return func(_ *nats.Conn, err error) {
		if err == nil || errors.Is(err, nats.ErrNoServers) || errors.Is(err, errInterrupted) {
			return
		}
		err = withoutNoise(err)
		c.mu.Lock()
		defer c.mu.Unlock()
		isKnown := func(known error) bool { return known.Error() == err.Error() }
		if len(c.failures) == mostReasons || slices.ContainsFunc(c.failures, isKnown) {
			return
		}
		c.failures = append(c.failures, err)
		logger.Warn("cannot reach nats", "error", err)
	}
}

// handshakeFailed reports why the newest attempt failed, if the server was reached. The client keeps such a reason to itself, for example a
// certificate that has expired. Without an attempt since the connection was lost, there is no reason yet.
func (c *Connection) handshakeFailed(made <-chan struct{}, report nats.ConnErrHandler) {
	select {
	case <-made:
		report(c.Conn, c.Conn.LastError())
	default: // Connect has not returned; the next round reports it
	}
}

// attemptTime matches the time of the attempt in the error about a certificate that has expired or is not valid yet.
var attemptTime = regexp.MustCompile(`: current time \S+ is `)

// withoutNoise removes what differs between attempts from an error, so that each reason is logged once: the local port, the time, and the greeting
// of a server that does not speak WebSocket.
func withoutNoise(err error) error {
	text := attemptTime.ReplaceAllString(err.Error(), ": the current time is ")
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Source != nil {
		text = strings.ReplaceAll(text, failed.Source.String()+"->", "")
	}
	if strings.HasPrefix(text, "malformed HTTP ") {
		text = "the server does not speak WebSocket"
	}
	return attempt{error: err, text: text}
}

// attempt is the error of an attempt to connect, with a text of its own.
type attempt struct {
	error
	text string
}

func (a attempt) Error() string { return a.text }

// Unwrap returns the error.
func (a attempt) Unwrap() error { return a.error }

const mostReasons = 10

// reasons are errors that are shown in one line.
type reasons []error

func (r reasons) Error() string {
	texts := make([]string, len(r))
	for i, err := range r {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (r reasons) Unwrap() []error { return r }

// Failure returns why attempts to connect have failed since the connection was lost, perhaps a reason for each server; nil: none has failed.
func (c *Connection) Failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failures) == 0 {
		return nil
	}
	return slices.Clone(c.failures)
}

// acknowledged matches the subject of an acknowledgement. The part after the consumer's name differs from message to message.
var acknowledged = regexp.MustCompile(`(\$JS\.ACK\.[^."]+\.[^."]+)[^"]*`)

func deniedText(denial error) string { return acknowledged.ReplaceAllString(denial.Error(), "$1.>") }

// asyncError logs the server's errors. A denied request looks like a timeout to its caller, so asyncError logs each denied subject once.
func (c *Connection) asyncError(logger *slog.Logger, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		text := deniedText(err)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.denied) < mostDenied && !slices.Contains(c.denied, text) {
			c.denied = append(c.denied, text)
			logger.Error("nats permission is missing", "error", text)
		}
		return
	}
	if errors.Is(err, nats.ErrBadHeaderMsg) {
		return // a producer's message, which is received without its headers
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	logger.Warn("nats reports an error", "subject", subject, "error", err)
}

const mostDenied = 100

// Denied returns what the server has denied so far, in order.
func (c *Connection) Denied() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.denied)
}

// dialTimeout bounds the attempt to reach one address of a server. A host name may have several.
const dialTimeout = 2 * time.Second

var errInterrupted = errors.New("interrupted before the first connection")

// firstDialer dials for nats.go, which holds its lock during an attempt to connect: whoever asks for the state of the connection waits. So the
// end of a context ends the attempt under way and all later ones. Once a connection is established, the context no longer counts: a worker that
// shuts down needs its connection. One attempt runs at a time.
type firstDialer struct {
	ctx         context.Context
	established atomic.Bool
	forget      func() bool // stops watching the connection of the previous attempt; nil: there is none
}

// Dial implements nats.CustomDialer.
func (d *firstDialer) Dial(network, address string) (net.Conn, error) {
	if d.forget != nil {
		d.forget()
	}
	until := d.ctx
	if d.established.Load() {
		until = context.WithoutCancel(until)
	}
	ctx, cancel := context.WithTimeout(until, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil { // nats.go waits for the first words of the server
		d.forget = context.AfterFunc(until, func() {
			if !d.established.Load() {
				_ = conn.Close()
			}
		})
	}
	if until.Err() != nil {
		return nil, errInterrupted
	}
	return conn, err
}
