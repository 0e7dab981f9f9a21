package servertest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// OldRedis starts what passes for a Redis of a version. It knows PING and INFO alone, and listens on the address that it returns.
func OldRedis(t testing.TB, version string) (addr string) {
	t.Helper()
	info := "# Server\r\nredis_version:" + version + "\r\n"
	addr, _ = serveLines(t, "", func(line string) string {
		switch strings.ToLower(line) { // a command is a line for its number of words, then two for each word
		case "ping":
			return "+PONG\r\n"
		case "info":
			return fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
		case "hello", "evalsha", "eval", "client", "fcall", "function":
			return "-ERR unknown command '" + line + "'\r\n"
		}
		return ""
	})
	return addr
}

// OldNATS starts what passes for a NATS server of a version, without JetStream. It listens on the URL that it returns.
func OldNATS(t testing.TB, version string) (url string) {
	t.Helper()
	url, _ = fakeNATS(t, version)
	return url
}

// ClosingNATS starts what passes for a NATS server without JetStream. A call of violate sends every client the error about a message above
// max_payload. A real server sends it after a reload with a lower max_payload. The clients then close their connections for good.
func ClosingNATS(t testing.TB) (url string, violate func()) {
	t.Helper()
	url, send := fakeNATS(t, server.VERSION)
	return url, func() { send("-ERR 'Maximum Payload Violation'\r\n") }
}

// fakeNATS starts what passes for a NATS server. It answers pings alone. A call of send writes a text to all clients.
func fakeNATS(t testing.TB, version string) (url string, send func(text string)) {
	t.Helper()
	greeting := `INFO {"server_id":"old","version":"` + version + `","proto":1,"max_payload":1048576,"headers":true}` + "\r\n"
	addr, send := serveLines(t, greeting, func(line string) string {
		if line == "PING" {
			return "PONG\r\n"
		}
		return ""
	})
	return "nats://" + addr, send
}

// serveLines greets every connection, and answers each line that it reads. A call of send writes a text to all connections.
func serveLines(t testing.TB, greeting string, answer func(line string) string) (addr string, send func(text string)) {
	t.Helper()
	listener := testkit.Must((&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0"))(t)
	var serving sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, connection := range open {
			_ = connection.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, connection)
			mu.Unlock()
			serving.Go(func() {
				_, _ = connection.Write([]byte(greeting))
				for lines := bufio.NewScanner(connection); lines.Scan(); {
					_, _ = connection.Write([]byte(answer(lines.Text())))
				}
			})
		}
	})
	return listener.Addr().String(), func(text string) {
		mu.Lock()
		defer mu.Unlock()
		for _, connection := range open {
			_, _ = connection.Write([]byte(text)) // a client may have left
		}
	}
}
