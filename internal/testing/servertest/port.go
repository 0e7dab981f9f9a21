package servertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
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
	return reservePorts(t, firstPort, 0)
}

// reservePorts returns a port, first or higher, such that all ports at the offsets from it are free.
func reservePorts(t testing.TB, first int, offsets ...int) int {
	t.Helper()
	for range 1000 {
		port := first + rand.IntN(lastPort-firstPort)
		if !slices.ContainsFunc(offsets, func(offset int) bool { return !reserve(t, port+offset) }) {
			return port
		}
	}
	t.Fatalf("reserve a port: none of 1000 tries from %d on was free", first)
	return 0
}

// reserve reserves a port until the test ends, and reports that it is free. The UDP port of the same number is the reservation: the servers
// do not use it, it is visible to every process, and the system drops it however this process ends.
func reserve(t testing.TB, port int) bool {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	reservation, err := net.ListenPacket("udp4", address)
	if err != nil {
		return false
	}
	t.Cleanup(func() { _ = reservation.Close() })
	return free(address)
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
	if !testkit.Soon(func() bool { return free(address) }) {
		t.Errorf("close the listener on %s: it still accepts connections", address)
	}
}
