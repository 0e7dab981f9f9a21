package ingest

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
)

// guard is a listener that bounds the number of connections. A further connection closes the connection that has waited longest for its
// client, and connections that never had a valid token first. It is closed itself only if all other connections are at work. A connection
// with a complete request is never closed. Slow or silent clients therefore take no connection from active ones.
type guard struct {
	net.Listener
	most    int
	metrics ConnectionMetrics

	mu                         sync.Mutex
	open                       int
	strangers, clients, atWork list.List // of *guarded, the longest wait in front
}

// guarded is a connection of a guard.
type guarded struct {
	net.Conn
	guard   *guard
	in      *list.List // guarded by guard.mu, like the next two
	element *list.Element
	closed  bool
}

// Accept returns the next connection. If the system has no room for it, the connection that has waited longest is closed too. A closed
// listener needs no room: the server stops, and its clients may finish.
func (g *guard) Accept() (net.Conn, error) {
	accepted, err := g.Listener.Accept()
	conn := &guarded{Conn: accepted, guard: g}
	g.mu.Lock()
	var evicted *guarded
	if err == nil && g.open >= g.most || err != nil && !errors.Is(err, net.ErrClosed) {
		evicted = g.longestWaiting()
	}
	// The new connection joins the strangers after the choice. If it joined them before, it would be the only stranger among connections with
	// good tokens, and these would keep out every new client.
	if err == nil {
		g.open++
		conn.put(&g.strangers)
		if evicted == nil && g.open > g.most {
			evicted = conn // all other connections are at work
		}
	}
	g.mu.Unlock()
	if evicted != nil {
		g.metrics.Evicted()
		_ = evicted.Close() // its client loses the connection in any case
	}
	if err != nil {
		return nil, err
	}
	g.metrics.Connections(1)
	return conn, nil
}

// longestWaiting returns nil if all connections are at work.
func (g *guard) longestWaiting() *guarded {
	for _, waiting := range []*list.List{&g.strangers, &g.clients} {
		if front := waiting.Front(); front != nil {
			return front.Value.(*guarded) //nolint:errcheck // the lists hold nothing else
		}
	}
	return nil
}

// put moves a connection to the end of a list. The caller holds the guard's lock.
func (c *guarded) put(to *list.List) {
	if c.in != nil {
		c.in.Remove(c.element)
	}
	c.in, c.element = to, to.PushBack(c)
}

// Close ends the connection. The server and the guard may both close it.
func (c *guarded) Close() error {
	c.guard.mu.Lock()
	first := !c.closed
	if first {
		c.closed = true
		c.guard.open--
		c.in.Remove(c.element)
	}
	c.guard.mu.Unlock()
	if first {
		c.guard.metrics.Connections(-1)
	}
	return c.Conn.Close()
}

func (c *guarded) move(to *list.List) {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	if !c.closed {
		c.put(to)
	}
}

// work protects the connection until answered is called. A nil connection belongs to no guard.
func (c *guarded) work() {
	if c != nil {
		c.move(&c.guard.atWork)
	}
}

// answered records the answer to a request with a valid token.
func (c *guarded) answered() {
	if c != nil {
		c.move(&c.guard.clients)
	}
}

type connectionKey struct{}

// withConnection makes the connection available to handlers.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	for {
		wrapper, is := conn.(interface{ NetConn() net.Conn })
		if !is {
			return context.WithValue(ctx, connectionKey{}, conn)
		}
		conn = wrapper.NetConn()
	}
}

// connectionOf returns the connection of a request, nil if no guard has it.
func connectionOf(ctx context.Context) *guarded {
	conn, _ := ctx.Value(connectionKey{}).(*guarded)
	return conn
}
