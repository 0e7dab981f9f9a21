package consume

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// programName is the name of the connections of workers and commands, but not of those who publish for producers.
const programName = "notifier"

// ConnectOptions say which NATS to use, and as whom.
type ConnectOptions struct {
	Name      string // of the connection, as NATS lists it; "" for that of a worker or a command
	URL       string // comma separated
	CredsFile string // "" for none, and so on
	User      string
	Password  string
	Token     string
	TLS       *tls.Config
	Inbox     string // prefix of the subjects on which replies and events come, so that permissions can keep others from listening there
	Logger    *slog.Logger
}

// Connection is a connection to NATS. While it is lost, it is tried again without end.
type Connection struct {
	Conn *nats.Conn

	closed chan struct{}

	mu        sync.Mutex
	reconnect time.Time // the latest time at which the connection was there again
	present   context.Context
	renew     context.CancelFunc // ends present
	failure   error              // why the latest attempt to connect failed; nil if none did
	reported  []string           // the reasons that were logged since the connection was lost
	denied    []string           // each once, in the order in which it came up
}

// The worker tries to reconnect every reconnectWait and up to reconnectJitter more, however long the server has been away: the first event after
// a restart of the server is to be posted within half a second.
const (
	reconnectWait   = 100 * time.Millisecond
	reconnectJitter = 100 * time.Millisecond
)

// Connect starts connecting and does not wait. It fails only where waiting does not help, such as at an unreadable file of
// credentials.
func Connect(o ConnectOptions) (*Connection, error) {
	c := &Connection{closed: make(chan struct{})}
	c.present, c.renew = context.WithCancel(context.Background())
	options := []nats.Option{
		nats.Name(cmp.Or(o.Name, programName)),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.IgnoreAuthErrorAbort(), // credentials are rotated; the log says what is wrong
		nats.Timeout(5 * time.Second),
		nats.PingInterval(5 * time.Second), // a server that hangs is noticed within 15 s
		nats.MaxPingsOutstanding(2),
		nats.ConnectHandler(func(nc *nats.Conn) {
			c.connected(time.Time{})
			o.Logger.Info("nats is connected", "server", nc.ConnectedUrlRedacted())
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.connected(time.Now())
			o.Logger.Info("nats is connected again", "server", nc.ConnectedUrlRedacted())
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Logger.Warn("nats is disconnected", "error", err)
			}
		}),
		nats.ReconnectErrHandler(c.reconnectFailed(o.Logger)),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { c.asyncError(o.Logger, sub, err) }),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
	}
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
	conn, err := nats.Connect(o.URL, options...)
	if _, unread := errors.AsType[*url.Error](err); unread { // it quotes the URL, which may hold a password
		return nil, errors.New("connecting to nats: not a URL")
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to nats: %w", err)
	}
	c.Conn = conn
	return c, nil
}

// Closed is closed when the connection has ended for good.
func (c *Connection) Closed() <-chan struct{} { return c.closed }

// lastReconnect is the zero time if the connection was never lost.
func (c *Connection) lastReconnect() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reconnect
}

// connected forgets why the server could not be reached. It notes when a lost connection was there again; zero: it was never lost.
func (c *Connection) connected(again time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure, c.reported, c.reconnect = nil, nil, again
	if !again.IsZero() {
		c.renew()
		c.present, c.renew = context.WithCancel(context.Background())
	}
}

// untilReconnect returns a context that ends when the connection has been lost and is there again.
func (c *Connection) untilReconnect() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.present
}

// request calls a function that makes requests to the server. When the connection was lost meanwhile and is there again, nobody answers these
// requests: request cancels the function's context and returns [nats.ErrDisconnected].
func (c *Connection) request(ctx context.Context, ask func(context.Context) error) error {
	present := c.untilReconnect()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(present, cancel)()
	if err := ask(ctx); err == nil || present.Err() == nil {
		return err
	}
	return nats.ErrDisconnected
}

// reconnectFailed logs why the server cannot be reached: each reason once per outage. That no server is left to try is no reason.
func (c *Connection) reconnectFailed(logger *slog.Logger) nats.ConnErrHandler {
	return func(_ *nats.Conn, err error) {
		if err == nil {
			return
		}
		nobodyLeft := errors.Is(err, nats.ErrNoServers)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.failure == nil || !nobodyLeft {
			c.failure = err
		}
		if !nobodyLeft && isNew(&c.reported, err.Error(), mostReasons) {
			logger.Warn("nats cannot be reached", "error", err)
		}
	}
}

// mostReasons bounds what is reported of one outage.
const mostReasons = 10

// isNew notes a text among others, up to a number of them, and tells whether it was noted.
func isNew(noted *[]string, text string, most int) bool {
	if len(*noted) == most || slices.Contains(*noted, text) {
		return false
	}
	*noted = append(*noted, text)
	return true
}

// Failure is why the latest attempt to connect failed, or nil if none did.
func (c *Connection) Failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// acknowledged matches the subject of an acknowledgement. Behind the consumer's name it differs from message to message.
var acknowledged = regexp.MustCompile(`(\$JS\.ACK\.[^."]+\.[^."]+)[^"]*`)

// deniedText names the right that is missing, of a denial.
func deniedText(denial error) string { return acknowledged.ReplaceAllString(denial.Error(), "$1.>") }

// asyncError logs what the server complains about. A denied request looks like a timeout to its caller, so each denied subject is
// logged here, once.
func (c *Connection) asyncError(logger *slog.Logger, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		text := deniedText(err)
		c.mu.Lock()
		defer c.mu.Unlock()
		if isNew(&c.denied, text, mostDenied) {
			logger.Error("nats permission is missing", "error", text)
		}
		return
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	logger.Warn("nats reports an error", "subject", subject, "error", err)
}

// mostDenied bounds the denials that are remembered.
const mostDenied = 100

// Denied lists what the server denied so far, in that order.
func (c *Connection) Denied() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.denied)
}
