package stream

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

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
