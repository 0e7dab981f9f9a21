package servertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"
)

// Ports are drawn from below 32768, where the ephemeral ports of Linux begin, so that no outgoing
// connection takes the port of a server that is down for a moment.
const (
	firstPort = 20000
	lastPort  = 32000
)

// ReservePort returns a TCP port of 127.0.0.1 that is free, and that no other caller gets before the test ends.
func ReservePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		address := fmt.Sprintf("127.0.0.1:%d", port)
		// The UDP port of the same number is the reservation: the servers do not use it, it is
		// visible to every process, and the system drops it when this process ends in whatever way.
		reservation, err := net.ListenPacket("udp4", address)
		if err != nil {
			continue
		}
		if !free(address) {
			_ = reservation.Close()
			continue
		}
		t.Cleanup(func() { _ = reservation.Close() })
		return port
	}
	t.Fatalf("reserve a port: none of 1000 tries between %d and %d was free", firstPort, lastPort)
	return 0
}

// free reports that nobody listens on the address. It asks as a client does: a listener opened to find out would
// live on in any child that is being started at that moment, and be in the way.
func free(address string) bool {
	connection, err := net.DialTimeout("tcp4", address, startTimeout)
	if err == nil {
		_ = connection.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// waitFree returns when a listener of this process that was closed has gone. A child that is being started may
// hold it for a moment longer.
func waitFree(t testing.TB, address string) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); !free(address); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("close the listener on %s: it still accepts connections after %v", address, startTimeout)
			return
		}
	}
}
