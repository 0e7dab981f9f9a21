package servertest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections to a server, and breaks them as networks do. All of its methods may run at once.
type Proxy struct {
	Addr string // 127.0.0.1:port, to be used in the place of the server's

	t      testing.TB
	target string
	done   chan struct{} // closed when the test ends
	work   sync.WaitGroup

	mu          sync.Mutex
	listener    net.Listener // nil while connections are refused
	links       map[*link]struct{}
	delay       time.Duration
	dropReplies bool
	cut         *cutAfter // the next request to lose the reply of; nil if there is none
	closed      bool
}

// link is one client's connection together with its connection to the server.
type link struct {
	client, server net.Conn
	losing         *cutAfter // set once the request went by; guarded by the proxy's lock
}

type cutAfter struct {
	containing []byte
	happened   chan struct{}
}

// StartProxy starts a proxy to host:port, and ends it with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", ReservePort(t))
	p := &Proxy{Addr: address, t: t, target: target, done: make(chan struct{}), links: make(map[*link]struct{})}
	t.Cleanup(p.close)
	p.Refuse(false)
	return p
}

// Cut breaks every connection that is open now. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset()
}

func (p *Proxy) reset() {
	for l := range p.links {
		l.reset()
	}
}

// Refuse sets whether the proxy refuses new connections, like a machine without a listening server. Open connections break, as by [Proxy.Cut].
func (p *Proxy) Refuse(refuse bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case refuse && p.listener != nil:
		_ = p.listener.Close()
		p.listener = nil
		p.reset()
		waitFree(p.t, p.Addr)
	case !refuse && p.listener == nil && !p.closed:
		listener, err := net.Listen("tcp4", p.Addr)
		if err != nil {
			p.t.Errorf("listen as a proxy: %v", err)
			return
		}
		p.listener = listener
		p.work.Go(func() { p.accept(listener) })
	}
}

// DropReplies says whether all that the server sends from now on is lost, while requests go on to reach it.
func (p *Proxy) DropReplies(drop bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropReplies = drop
}

// CutAfterRequest loses one reply: the next request that contains the text reaches the server, and when the
// server answers, the connection is broken in place of passing the answer on. Upper and lower case differ; the
// empty text is in every request. The channel is closed when it has happened.
func (p *Proxy) CutAfterRequest(containing string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = &cutAfter{containing: []byte(containing), happened: make(chan struct{})}
	return p.cut.happened
}

// Delay holds up everything that comes from now on, in both directions, for this long. Zero ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

func (p *Proxy) close() {
	p.Refuse(true)
	p.mu.Lock()
	p.closed = true
	close(p.done)
	p.mu.Unlock()
	p.Cut()
	p.work.Wait()
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.work.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	server, err := net.DialTimeout("tcp4", p.target, startTimeout)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		l.close()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { p.pass(l, client, server, p.request) })
	both.Go(func() { p.pass(l, server, client, p.reply) })
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pass copies until either side ends, and then ends both. The function decides on each piece.
func (p *Proxy) pass(l *link, from, to net.Conn, allow func(l *link, piece []byte) bool) {
	defer l.close()
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			p.wait()
			if allow(l, piece[:n]) {
				if _, err := to.Write(piece[:n]); err != nil {
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) request(l *link, piece []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut != nil && bytes.Contains(piece, p.cut.containing) {
		l.losing, p.cut = p.cut, nil
	}
	return true
}

func (p *Proxy) reply(l *link, _ []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.losing != nil {
		l.reset()
		close(l.losing.happened)
		l.losing = nil
		return false
	}
	return !p.dropReplies
}

func (p *Proxy) wait() {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-p.done:
		}
	}
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// reset breaks both connections as a failing network would: without an orderly end, and with what is unsent lost.
func (l *link) reset() {
	for _, connection := range []net.Conn{l.client, l.server} {
		if tcp, ok := connection.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	l.close()
}
