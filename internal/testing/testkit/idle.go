package testkit

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// IdleConnections opens as many silent connections to a server as it keeps, and calls ask, which opens another one. The server must close the
// oldest silent connection.
func IdleConnections(t *testing.T, address string, most int, ask func()) {
	t.Helper()
	connections := make([]net.Conn, most)
	for i := range connections {
		connections[i] = Must(net.Dial("tcp", address))(t)
		defer func() { _ = connections[i].Close() }()
	}
	ask()
	NoError(t, connections[0].SetReadDeadline(time.Now().Add(5*time.Second))) // shorter than a server's patience with silent clients
	if _, err := connections[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest connection: %v, want the end of the connection", err)
	}
}
