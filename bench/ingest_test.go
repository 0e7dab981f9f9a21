package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// mostProducers is how many producers send at once at the most, each over its own connection, and each one request after the other.
const mostProducers = 64

// send stores the events of request number i, and returns when they are stored.
type send func(i int) error

// batch is how many events a batch has.
const batch = 100

// BenchmarkIngest measures how many events producers store over HTTP, one by one and in batches, beside what they store with the client
// library of NATS, which has a connection for each producer too. The floor is a server of net/http that reads a body and stores nothing. The
// contestants take many short turns, and the best turn of each counts.
func BenchmarkIngest(b *testing.B) {
	const turns, length = 20, 250 * time.Millisecond
	var over float64 // events a second of mostProducers
	for _, producers := range []int{1, 16, mostProducers} {
		b.Run(fmt.Sprintf("%d connections", producers), func(b *testing.B) {
			a := newArena(b)
			contestants := []struct {
				name   string
				events int // of each send
				sends  []send
			}{
				{"HTTP", 1, a.overHTTP(producers, a.ingest, oneEvent)},
				{"NATS", 1, a.overNATS(producers, publishEvent)},
				{"floor", 1, a.overHTTP(producers, a.floor, oneEvent)},
				{"HTTP-in-batches", batch, a.overHTTP(producers, a.ingest, batchOfEvents)},
				{"NATS-in-batches", batch, a.overNATS(producers, publishBatch)},
			}
			best := make(map[string]float64) // events a second
			for range turns {
				for _, c := range contestants {
					best[c.name] = max(best[c.name], a.flat(c.sends, length)*float64(c.events))
				}
			}
			for _, c := range contestants {
				b.ReportMetric(best[c.name], c.name+"/s")
			}
			conclude("ingest, %d connections: over HTTP %.0f/s, directly %.0f/s: %.2f of direct publishing; a server that stores nothing answers %.0f/s",
				producers, best["HTTP"], best["NATS"], best["HTTP"]/best["NATS"], best["floor"])
			conclude("ingest, %d connections: in batches of %d over HTTP %.0f/s, directly %.0f/s: %.2f of direct batches",
				producers, batch, best["HTTP-in-batches"], best["NATS-in-batches"], best["HTTP-in-batches"]/best["NATS-in-batches"])
			over = best["HTTP"]
			once(b)
		})
	}
	b.Run("latency", func(b *testing.B) {
		a := newArena(b)
		latencies := a.paced(a.overHTTP(mostProducers, a.ingest, oneEvent), over/2, 6*time.Second)
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
	for _, publish := range producers {
		running.Go(func() {
			for time.Since(began) < length {
				if err := publish(int(a.sent.Add(1))); err != nil {
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
			for due.Sub(began) < length {
				time.Sleep(time.Until(due)) // the pace
				if err := publish(int(a.sent.Add(1))); err != nil {
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

// overNATS are producers that publish with the client library, each over its own connection.
func (a *arena) overNATS(producers int, publish func(js jetstream.JetStream, i int) error) []send {
	a.b.Helper()
	sends := make([]send, producers)
	for number := range sends {
		js := servertest.JetStream(a.b, a.nats.URL)
		sends[number] = func(i int) error { return publish(js, i) }
	}
	return sends
}

func publishEvent(js jetstream.JetStream, i int) error {
	_, err := js.Publish(context.Background(), eventSubject(i), eventBody(i))
	return err
}

// publishBatch publishes the events of a batch at once, and waits for all of them.
func publishBatch(js jetstream.JetStream, i int) error {
	var futures [batch]jetstream.PubAckFuture
	for n := range futures {
		future, err := js.PublishMsgAsync(&nats.Msg{
			Subject: eventSubject(i), Data: eventBody(i), Header: nats.Header{nats.MsgIdHdr: {fmt.Sprintf("%d-%d", i, n)}},
		})
		if err != nil {
			return err
		}
		futures[n] = future
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		}
	}
	return nil
}

// ingest is the command of `notifier ingest`.
func (a *arena) ingest(address, token, line string) *exec.Cmd {
	file := filepath.Join(a.b.TempDir(), "tokens")
	testkit.NoError(a.b, os.WriteFile(file, []byte(line+"\n"), 0o600))
	command := exec.Command(notifierBinary, "ingest")
	command.Env = append(os.Environ(), "NOTIFIER_NATS_URL="+a.nats.URL, "NOTIFIER_INGEST_ADDR="+address, "NOTIFIER_INGEST_TOKENS_FILE="+file,
		"NOTIFIER_INGEST_RATE=none", "NOTIFIER_HTTP_ADDR=off", "NOTIFIER_LOG_LEVEL=error")
	return command
}

// floor is the command of a server that stores nothing.
func (a *arena) floor(address, _, _ string) *exec.Cmd {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), roleVariable+"=floor", floorVariable+"="+address)
	return command
}

// serveNothing reads each request and answers as if its event was stored.
func serveNothing() {
	answer := []byte(`{"id":"NOTIFICATIONS:1","stream":"NOTIFICATIONS","sequence":1,"duplicate":false}`)
	panic(http.ListenAndServe(os.Getenv(floorVariable), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(answer)
	})))
}

// overHTTP are producers that send to a server, which runs as a process until the benchmark ends. They write and read no more HTTP than they
// need, to leave the processors to the server.
func (a *arena) overHTTP(producers int, server func(address, token, line string) *exec.Cmd, content func(i int) (contentType string, body []byte)) []send {
	a.b.Helper()
	token, line, err := ingest.NewToken("bench", ">")
	testkit.NoError(a.b, err)
	address := "127.0.0.1:" + strconv.Itoa(servertest.ReservePort(a.b))
	command := server(address, token, line)
	command.Stderr = os.Stderr
	exited := testkit.Must(servertest.StartChild(command))(a.b)
	a.b.Cleanup(func() {
		_ = command.Process.Kill()
		<-exited
	})
	sends := make([]send, producers)
	for number := range sends {
		var connection net.Conn
		testkit.Await(a.b, "a connection to the server", func() (err error) {
			connection, err = net.Dial("tcp", address)
			return err
		})
		a.b.Cleanup(func() { _ = connection.Close() })
		sends[number] = sender(connection, token, content)
	}
	testkit.Await(a.b, "an answer", func() error { return sends[0](0) }) // NATS is connected then
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
