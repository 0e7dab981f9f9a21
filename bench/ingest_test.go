package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// producers is how many producers send at once, each over a connection of its own, and each one event after the other.
const producers = 64

// send stores event number i, and returns when it is stored.
type send func(i int) error

// batch is how many events a batch has.
const batch = 100

// BenchmarkIngest measures how many events producers store over HTTP, one by one and in batches, beside what they store with the client
// library of NATS alone: over a connection for each, as over HTTP, and over one for all of them.
func BenchmarkIngest(b *testing.B) {
	const length = 3 * time.Second
	best := make(map[string]float64) // events a second
	for range rounds {
		for _, c := range []struct {
			name   string
			events int // of each send
			open   func(a *arena) []send
		}{
			{"HTTP", 1, func(a *arena) []send { return a.overHTTP(oneEvent) }},
			{"HTTP in batches", batch, func(a *arena) []send { return a.overHTTP(batchOfEvents) }},
			{"NATS", 1, func(a *arena) []send { return a.overNATS(producers) }},
			{"NATS over one connection", 1, func(a *arena) []send { return a.overNATS(1) }},
		} {
			b.Run(c.name, func(b *testing.B) {
				a := newArena(b)
				rate := a.flat(c.open(a), length) * float64(c.events)
				best[c.name] = max(best[c.name], rate)
				b.ReportMetric(rate, "events/s")
				once(b)
			})
		}
	}
	over, batches, direct, shared := best["HTTP"], best["HTTP in batches"], best["NATS"], best["NATS over one connection"]
	conclude("events from %d producers: over HTTP %.0f/s, in batches of %d %.0f/s, directly %.0f/s, directly over one connection %.0f/s",
		producers, over, batch, batches, direct, shared)
	conclude("events over HTTP: %.2f of what is published directly, %.2f of that over one connection; in batches %.2f and %.2f",
		over/direct, over/shared, batches/direct, batches/shared)
	b.Run("latency", func(b *testing.B) {
		a := newArena(b)
		latencies := a.paced(a.overHTTP(oneEvent), over/2, 2*length)
		p50, p99 := percentile(latencies, 50), percentile(latencies, 99)
		b.ReportMetric(float64(p99.Microseconds()), "µs-p99")
		conclude("events over HTTP at half of that rate: p50 %v, p99 %v (the bar is 10 ms)", p50, p99)
		once(b)
	})
}

// flat has all producers send as fast as they can, and returns how often they sent in a second.
func (a *arena) flat(producers []send, length time.Duration) float64 {
	a.b.Helper()
	var stored atomic.Int64
	var running sync.WaitGroup
	began := time.Now()
	for number, publish := range producers {
		running.Go(func() {
			for i := number; time.Since(began) < length; i += len(producers) {
				if err := publish(i); err != nil {
					a.b.Error(err)
					return
				}
				stored.Add(1)
			}
		})
	}
	running.Wait()
	return float64(stored.Load()) / time.Since(began).Seconds()
}

// paced has the producers send so many events a second together, and returns how long each took from the time at which it was due.
func (a *arena) paced(producers []send, rate float64, length time.Duration) []time.Duration {
	a.b.Helper()
	gap := time.Duration(float64(time.Second) * float64(len(producers)) / rate)
	took := make([][]time.Duration, len(producers))
	var running sync.WaitGroup
	began := time.Now()
	for number, publish := range producers {
		running.Go(func() {
			due := began.Add(gap * time.Duration(number) / time.Duration(len(producers)))
			for i := number; due.Sub(began) < length; i += len(producers) {
				time.Sleep(time.Until(due)) // the pace
				if err := publish(i); err != nil {
					a.b.Error(err)
					return
				}
				took[number] = append(took[number], time.Since(due))
				due = due.Add(gap)
			}
		})
	}
	running.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all
}

// overNATS are producers that publish with the client library, over so many connections.
func (a *arena) overNATS(connections int) []send {
	a.b.Helper()
	streams := make([]jetstream.JetStream, connections)
	for i := range streams {
		streams[i] = servertest.JetStream(a.b, a.nats.URL)
	}
	sends := make([]send, producers)
	for number := range sends {
		js := streams[number%connections]
		sends[number] = func(i int) error {
			_, err := js.Publish(context.Background(), eventSubject(i), eventBody(i))
			return err
		}
	}
	return sends
}

// overHTTP are producers that send to `notifier ingest`, which runs as a process until the benchmark ends. They write and read no more HTTP
// than they need, to leave the processors to the server.
func (a *arena) overHTTP(content func(i int) (contentType string, body []byte)) []send {
	a.b.Helper()
	token, line, err := ingest.NewToken("bench", ">")
	testkit.NoError(a.b, err)
	file := filepath.Join(a.b.TempDir(), "tokens")
	testkit.NoError(a.b, os.WriteFile(file, []byte(line+"\n"), 0o600))
	address := "127.0.0.1:" + strconv.Itoa(servertest.ReservePort(a.b))
	command := exec.Command(notifierBinary, "ingest")
	command.Env = append(os.Environ(), "NOTIFIER_NATS_URL="+a.nats.URL, "NOTIFIER_INGEST_ADDR="+address, "NOTIFIER_INGEST_TOKENS_FILE="+file,
		"NOTIFIER_INGEST_RATE=none", "NOTIFIER_HTTP_ADDR=off", "NOTIFIER_LOG_LEVEL=error")
	command.Stderr = os.Stderr
	exited := testkit.Must(servertest.StartChild(command))(a.b)
	a.b.Cleanup(func() {
		_ = command.Process.Kill()
		<-exited
	})
	sends := make([]send, producers)
	for number := range sends {
		var connection net.Conn
		testkit.Await(a.b, "a connection to ingest", func() (err error) {
			connection, err = net.Dial("tcp", address)
			return err
		})
		a.b.Cleanup(func() { _ = connection.Close() })
		sends[number] = sender(connection, token, content)
	}
	testkit.Await(a.b, "an event over HTTP", func() error { return sends[0](0) }) // NATS is connected then
	return sends
}

// oneEvent is the event of a number.
func oneEvent(i int) (contentType string, body []byte) { return "application/json", eventBody(i) }

// batchOfEvents is a batch of CloudEvents.
func batchOfEvents(i int) (contentType string, body []byte) {
	body = append(body, '[')
	for n := range batch {
		body = fmt.Appendf(body, `{"specversion":"1.0","id":"%d-%d","source":"bench","type":"bench","data":%s},`, i, n, eventBody(i))
	}
	body[len(body)-1] = ']'
	return "application/cloudevents-batch+json", body
}

// sender sends events over one connection.
func sender(connection net.Conn, token string, content func(i int) (contentType string, body []byte)) send {
	answers := bufio.NewReader(connection)
	var request []byte
	return func(i int) error {
		contentType, body := content(i)
		request = fmt.Appendf(request[:0], "POST /v1/events/category%d HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n",
			i%20, token, contentType, len(body))
		request = append(request, body...)
		if _, err := connection.Write(request); err != nil {
			return err
		}
		status, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		length := 0
		for {
			line, err := answers.ReadSlice('\n')
			if err != nil {
				return err
			}
			if value, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
			}
			if len(line) == len("\r\n") {
				break
			}
		}
		answer := make([]byte, length)
		if _, err := io.ReadFull(answers, answer); err != nil {
			return err
		}
		if status != "HTTP/1.1 202 Accepted\r\n" {
			return fmt.Errorf("answered %s%s", status, answer)
		}
		return nil
	}
}
