package stream

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// dialTimeout bounds the attempt to reach one address of a server. A host name may have several.
const dialTimeout = 2 * time.Second

var errInterrupted = errors.New("interrupted before the first connection")

// firstDialer dials for nats.go, which holds its lock during an attempt to connect: whoever asks for the state of the connection waits. So
// interrupt ends the attempt. Once a connection was established, interrupt does nothing: a worker that shuts down needs its connection. One
// attempt runs at a time.
type firstDialer struct {
	mu            sync.Mutex
	attempt       []func() // each ends a part of the attempt under way
	established   bool
	isInterrupted bool
}

// Dial implements nats.CustomDialer.
func (d *firstDialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	d.begin()
	if !d.mayGoOn(cancel) {
		return nil, errInterrupted
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil && !d.mayGoOn(func() { _ = conn.Close() }) { // nats.go waits for the first words of the server
		return nil, errInterrupted
	}
	return conn, err
}

func (d *firstDialer) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attempt = nil
}

// mayGoOn reports whether the attempt goes on. If it is interrupted, now or later, end is called.
func (d *firstDialer) mayGoOn(end func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isInterrupted {
		end()
		return false
	}
	if !d.established {
		d.attempt = append(d.attempt, end)
	}
	return true
}

// interrupt ends the attempt under way and all later ones, unless a connection was established.
func (d *firstDialer) interrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.established {
		return
	}
	d.isInterrupted = true
	for _, end := range d.attempt {
		end()
	}
}

// succeeded records that a connection is established.
func (d *firstDialer) succeeded() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attempt, d.established = nil, true
}
