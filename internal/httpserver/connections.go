package httpserver

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

// ConnectionMetrics counts connections.
type ConnectionMetrics interface {
	Connections(delta int) // the number of connections changes
	Evicted()              // a connection was closed to make room for a newer one
}

// guard is a listener that bounds the number of connections, as [Server.Bound] describes.
type guard struct {
	net.Listener
	most    int
	metrics ConnectionMetrics // nil: nobody counts

	mu                         sync.Mutex
	open                       int
	strangers, clients, atWork list.List // of *Connection, the longest wait in front
}

// Connection is a connection of a bounded server. Its methods may be called on nil, which is a connection of a server without a bound.
type Connection struct {
	net.Conn
	guard   *guard
	in      *list.List // guarded by guard.mu, like the next two
	element *list.Element
	closed  bool
}

// Bound bounds the number of open connections. A further connection closes the connection that has waited longest for its client, and
// connections without an [Connection.Answered] request first. It is closed itself only if all other connections are at work. A connection
// at work is never closed. Slow or silent clients therefore take no connection from active ones. Metrics may be nil.
func (s *Server) Bound(most int, metrics ConnectionMetrics) {
	s.Listener = &guard{Listener: s.Listener, most: most, metrics: metrics}
}

// Accept returns the next connection. If the system has no room for it, the connection that has waited longest is closed too. A closed
// listener needs no room: the server stops, and its clients may finish.
func (g *guard) Accept() (net.Conn, error) {
	accepted, err := g.Listener.Accept()
	conn := &Connection{Conn: accepted, guard: g}
	g.mu.Lock()
	var evicted *Connection
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
		if g.metrics != nil {
			g.metrics.Evicted()
		}
		_ = evicted.Close() // its client loses the connection in any case
	}
	if err != nil {
		return nil, err
	}
	g.count(1)
	return conn, nil
}

func (g *guard) count(delta int) {
	if g.metrics != nil {
		g.metrics.Connections(delta)
	}
}

// longestWaiting returns nil if all connections are at work.
func (g *guard) longestWaiting() *Connection {
	for _, waiting := range []*list.List{&g.strangers, &g.clients} {
		if front := waiting.Front(); front != nil {
			return front.Value.(*Connection) //nolint:errcheck // the lists hold nothing else
		}
	}
	return nil
}

// put moves a connection to the end of a list. The caller holds the guard's lock.
func (c *Connection) put(to *list.List) {
	if c.in != nil {
		c.in.Remove(c.element)
	}
	c.in, c.element = to, to.PushBack(c)
}

// Close ends the connection. The server and the guard may both close it.
func (c *Connection) Close() error {
	c.guard.mu.Lock()
	first := !c.closed
	if first {
		c.closed = true
		c.guard.open--
		c.in.Remove(c.element)
	}
	c.guard.mu.Unlock()
	if first {
		c.guard.count(-1)
	}
	return c.Conn.Close()
}

func (c *Connection) move(to *list.List) {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	if !c.closed {
		c.put(to)
	}
}

// Work protects the connection until Answered is called.
func (c *Connection) Work() {
	if c != nil {
		c.move(&c.guard.atWork)
	}
}

// Answered records the answer to a request that the server accepted.
func (c *Connection) Answered() {
	if c != nil {
		c.move(&c.guard.clients)
	}
}

// Working returns a handler whose requests protect their connections until their answers.
func Working(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := ConnectionOf(r.Context())
		conn.Work()
		defer conn.Answered()
		handler.ServeHTTP(w, r)
	})
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

// ConnectionOf returns the connection of a request, nil if its server has no bound.
func ConnectionOf(ctx context.Context) *Connection {
	conn, _ := ctx.Value(connectionKey{}).(*Connection)
	return conn
}
