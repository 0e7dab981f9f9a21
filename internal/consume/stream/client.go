package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/oplog"
)

// Options configure a [Client]. [Check] does not use the logger.
type Options struct {
	Connection *Connection
	Names      Names
	Provision  bool          // create absent streams and consumers
	AckWait    time.Duration // of consumers that the client creates
	Longest    time.Duration // maximum duration of a post: an existing consumer with a shorter ack wait is unfit
	Logger     *slog.Logger
}

// Client holds the streams and consumers that a worker uses. Its exported fields do not change.
type Client struct {
	Connection *Connection
	JetStream  jetstream.JetStream
	Names      Names
	Clock      Clock

	options    Options
	consumer   *oplog.Condition // the consumers exist
	unanswered *oplog.Condition // the server answers whether they exist
	configs    *configWatch

	asking  atomic.Int64 // goroutines that ask whether a consumer exists
	finding sync.Mutex   // held during a search
	layout  atomic.Pointer[Layout]
}

// NewClient returns a client that has found nothing yet.
func NewClient(o Options) (*Client, error) {
	js, err := jetstream.New(o.Connection.Conn, jetstream.WithDefaultTimeout(APITimeout), jetstream.WithPublishAsyncTimeout(APITimeout))
	if err != nil {
		return nil, fmt.Errorf("using jetstream: %w", err)
	}
	return &Client{
		Connection: o.Connection, JetStream: js, Names: o.Names, options: o, configs: newConfigWatch(o),
		consumer:   oplog.NewCondition(o.Logger, "consumer not found", "consumer found"),
		unanswered: oplog.NewCondition(o.Logger, "cannot look for the consumer", "looking for the consumer works again"),
	}, nil
}

// Layout returns the streams and consumers as the latest search found them; nil before the first search has succeeded.
func (c *Client) Layout() *Layout { return c.layout.Load() }

// Now returns the present time by the NATS server's clock.
func (c *Client) Now() time.Time { return c.Clock.Now() }

// IsOfReconnect reports whether a time of the server's clock is after the latest reconnect.
func (c *Client) IsOfReconnect(t time.Time) bool {
	reconnect := c.Connection.LastReconnect()
	return !reconnect.IsZero() && t.After(c.Clock.At(reconnect))
}

// Ready returns nil if the client is connected, and its consumers exist and can be used.
func (c *Client) Ready() error {
	if !c.Connection.Conn.IsConnected() {
		return errors.New("nats is not connected")
	}
	var absent error
	if c.Layout() == nil {
		absent = errors.New("the consumer was not found yet")
	}
	return errors.Join(absent, c.consumer.Err(), c.unanswered.Err(), c.configs.unfit())
}

// connectedPoll is the interval at which a client without a connection looks for one.
const connectedPoll = 20 * time.Millisecond

// AwaitConnected waits until the connection is there. The error is the context's cause or [ErrClosed].
func (c *Client) AwaitConnected(ctx context.Context) error {
	for !c.Connection.Conn.IsConnected() {
		if err := c.Connection.Sleep(ctx, connectedPoll); err != nil {
			return err
		}
	}
	return nil
}

// Find searches for the streams and consumers until they exist or creates them. It recreates a deleted stream after a pause. The error is the
// context's cause, [ErrClosed] or [ErrUnfit].
func (c *Client) Find(ctx context.Context) error {
	before := c.layout.Load()
	c.finding.Lock()
	defer c.finding.Unlock()
	if c.layout.Load() != before { // another goroutine has found them meanwhile
		return nil
	}
	for {
		if err := c.AwaitConnected(ctx); err != nil {
			return err
		}
		var found Layout
		asked := time.Now()
		err := c.Connection.Request(ctx, func(ctx context.Context) (err error) {
			if found, err = c.search(ctx); err == nil {
				err = cmp.Or(outlasts(found.Consumer.CachedInfo().Config, c.options.Longest), outlasts(found.Room.Consumer.CachedInfo().Config, c.options.Longest))
			}
			return err
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if denied := c.Connection.Denied(); err != nil && len(denied) > 0 {
			err = fmt.Errorf("%w (%s)", err, denied[0])
		}
		if errors.Is(err, ErrUnfit) { // they exist, and the caller reports the error
			return err
		}
		c.searched(withHint(err))
		switch {
		case err == nil:
			c.layout.Store(&found)
			c.configs.look(found.Consumer.CachedInfo(), asked, found.AckWait())
			c.configs.look(found.Room.Consumer.CachedInfo(), asked, found.AckWait())
			return nil
		case errors.Is(err, nats.ErrDisconnected):
			continue
		}
		if err := c.Connection.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// searched records the result of a search for the consumers. Without an answer, nobody knows whether they exist. Without a connection, the
// server was not asked, and the connection reports its own failures.
func (c *Client) searched(err error) {
	switch {
	case errors.Is(err, nats.ErrDisconnected):
	case err == nil:
		c.unanswered.Note(nil)
		c.consumer.Note(nil)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders), isUnavailable(err):
		c.unanswered.Note(err)
	default:
		c.unanswered.Note(nil)
		c.consumer.Note(err)
	}
}

// isUnavailable reports whether a cluster answered that it cannot answer now, since it has no leader.
func isUnavailable(err error) bool {
	const unavailable = jetstream.ErrorCode(10008)
	answer, answered := errors.AsType[*jetstream.APIError](err)
	return answered && answer.ErrorCode == unavailable
}

// askTimeout bounds one question for a consumer. Nobody answers a question that came before the leader.
const askTimeout = 2 * time.Second

// Exists asks for a consumer until the server answers whether it exists. While a cluster elects the consumer's leader, nobody answers, and the
// client is not ready. The error is the context's cause or [ErrClosed].
func (c *Client) Exists(ctx context.Context, consumer jetstream.Consumer) (exists bool, err error) {
	const pause = 100 * time.Millisecond
	c.asking.Add(1)
	defer func() {
		if c.asking.Add(-1) == 0 && err == nil { // so the log reports an election once
			c.unanswered.Note(nil)
		}
	}()
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		err := c.Connection.Request(asking, func(ctx context.Context) error {
			_, err := consumer.Info(ctx)
			return err
		})
		cancel()
		switch {
		case err == nil:
			c.consumer.Note(nil)
			return true, nil
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
			c.consumer.Note(err)
			return false, nil
		case c.Connection.Conn.IsConnected() && ctx.Err() == nil:
			c.searched(err)
		}
		if err := c.Connection.Sleep(ctx, pause); err != nil {
			return false, err
		}
	}
}

// Restore recreates a deleted stream after a pause, and reports whether the stream exists. It creates none if the options do not allow that.
func (c *Client) Restore(ctx context.Context, config jetstream.StreamConfig) bool {
	if !c.options.Provision {
		return false
	}
	_, err := c.stream(ctx, config)
	return err == nil
}

// Info returns a consumer's state. It learns the server's time, and logs whether the consumer differs from the settings. Find has succeeded.
func (c *Client) Info(ctx context.Context, consumer jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	asked := time.Now()
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking for the state of a consumer: %w", err)
	}
	c.Clock.Learn(asked, time.Now(), info.TimeStamp)
	c.configs.look(info, asked, c.Layout().AckWait())
	return info, nil
}
