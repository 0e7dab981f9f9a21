package simulation

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"
)

// random draws from a seed. Its methods may be called concurrently.
type random struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newRandom(seed, use uint64) *random { return &random{r: rand.New(rand.NewPCG(seed, use))} }

func (r *random) intN(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.r.IntN(n)
}

func (r *random) chance(percent int) bool { return r.intN(100) < percent }

func (r *random) between(least, most time.Duration) time.Duration {
	return least + time.Duration(r.intN(int(most-least)+1))
}

// manner is how a server answers at present.
type manner int32

const (
	well manner = iota
	late
	twice
	never
)

// scripted is how Redis answers one worker.
type scripted struct {
	manner atomic.Int32
	gone   func() bool
	clock  func() // sets the clock of the scripts
	seen   func() // looks at the limits after each call
	random *random
}

// DialHook implements [redis.Hook].
func (s *scripted) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (s *scripted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		return s.process(ctx, func() error { return next(ctx, commands) }, commands...)
	}
}

// ProcessHook implements [redis.Hook].
func (s *scripted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		return s.process(ctx, func() error { return next(ctx, command) }, command)
	}
}

// process sends commands in the present manner.
func (s *scripted) process(ctx context.Context, send func() error, commands ...redis.Cmder) error {
	call := func() error {
		s.clock()
		err := send()
		s.seen()
		return err
	}
	fail := func(err error) error {
		for _, command := range commands {
			command.SetErr(err)
		}
		return err
	}
	now := manner(s.manner.Load())
	if s.gone() {
		now = never
	}
	switch now {
	case late:
		sleep(ctx, s.random.between(time.Millisecond, 700*time.Millisecond))
	case twice:
		_ = call()
	case never:
		if s.random.chance(50) && !s.gone() {
			_ = call()
		}
		sleep(ctx, time.Second)
		return fail(&net.OpError{Op: "read", Err: errors.New("the reply is lost")})
	}
	if ctx.Err() != nil || s.gone() {
		return fail(context.DeadlineExceeded)
	}
	return call()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// wire connects one worker with NATS.
type wire struct {
	server *server.Server
	gone   func() bool

	mu      sync.Mutex
	current net.Conn
	stalled time.Time // what arrives on the current connection before waits until then
}

// Dial implements [nats.CustomDialer].
func (w *wire) Dial(string, string) (net.Conn, error) {
	if w.gone() {
		return nil, net.ErrClosed
	}
	conn, err := w.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// The client holds a lock until the new connection is ready, and the simulated time stands still while a goroutine waits for a lock.
	w.stalled = time.Time{}
	w.current = conn
	return &stallable{conn, w}, nil
}

// SkipTLSHandshake implements an extension of [nats.CustomDialer].
func (w *wire) SkipTLSHandshake() bool { return true }

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != nil {
		_ = w.current.Close()
	}
}

func (w *wire) stall(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stalled = time.Now().Add(d)
}

func (w *wire) wait() {
	w.mu.Lock()
	until := w.stalled
	w.mu.Unlock()
	time.Sleep(time.Until(until))
}

// stallable is a connection whose bytes may arrive late.
type stallable struct {
	net.Conn
	wire *wire
}

func (c *stallable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wire.wait()
	return n, err
}
