package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// arena is the servers of one round, fresh for each contestant.
type arena struct {
	b     *testing.B
	nats  *servertest.NATS
	redis *servertest.Redis
	slack *slackCounter
	js    jetstream.JetStream
	anew  bool         // the consumer is made anew before a contestant starts
	sent  atomic.Int64 // number of the newest request of a producer
}

func newArena(b *testing.B) *arena {
	b.Helper()
	return newArenaWith(b, "")
}

// newArenaWith starts NATS with a configuration.
func newArenaWith(b *testing.B, config string) *arena {
	b.Helper()
	a := &arena{b: b, nats: servertest.StartNATSProcess(b, config), redis: servertest.StartRedis(b), slack: newSlackCounter(b)}
	a.js = servertest.JetStream(b, a.nats.URL)
	testkit.Must(a.js.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: stream, Subjects: []string{subject, subject + ".>"}, Retention: jetstream.WorkQueuePolicy,
	}))(b)
	a.createConsumer()
	return a
}

func (a *arena) createConsumer() {
	a.b.Helper()
	testkit.Must(a.js.CreateConsumer(context.Background(), stream, jetstream.ConsumerConfig{
		Durable: consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: -1, MaxAckPending: 20_000,
	}))(a.b)
}

// fill stores events over 20 categories.
func (a *arena) fill(count int) { a.fillWith(count, eventBody) }

func (a *arena) fillWith(count int, body func(i int) []byte) {
	a.b.Helper()
	for i := range count {
		testkit.Must(a.js.PublishAsync(eventSubject(i), body(i)))(a.b)
		if i%4000 == 3999 {
			<-a.js.PublishAsyncComplete()
		}
	}
	<-a.js.PublishAsyncComplete()
}

func eventSubject(i int) string { return fmt.Sprintf("%s.category%d", subject, i%20) }

func eventBody(i int) []byte {
	return fmt.Appendf(nil, `{"title":"disk %d is full","text":"94 %% of /var are used","severity":"error","source":"host%d"}`, i, i%50)
}

func (a *arena) left() int {
	return int(testkit.Must(a.js.Stream(context.Background(), stream))(a.b).CachedInfo().State.Msgs)
}

// drain runs a contestant until the stream is empty: how long that took from the first acknowledgement on, and the most
// memory that the contestant had.
func (a *arena) drain(c contestant, count int) (took time.Duration, mebibytes float64) {
	a.b.Helper()
	if c.body == nil {
		c.body = eventBody
	}
	a.fillWith(count, c.body)
	if a.anew {
		testkit.NoError(a.b, a.js.DeleteConsumer(context.Background(), stream, consumer))
		a.createConsumer()
	}
	process := a.start(c)
	deadline := time.Now().Add(5 * time.Minute)
	for a.left() == count {
		a.mayGoOn(deadline)
	}
	start := time.Now()
	for a.left() > 0 {
		a.mayGoOn(deadline)
	}
	took = time.Since(start)
	return took, peakMemory(a.b, process.Pid)
}

func (a *arena) mayGoOn(deadline time.Time) {
	if time.Now().After(deadline) {
		a.b.Fatal("the contestant does not finish")
	}
	time.Sleep(2 * time.Millisecond) // the benchmark looks seldom, to cost the contestants little
}

// contestant is one way to do the work.
type contestant struct {
	name             string
	global, category int
	concurrency      int
	summaries        string // their interval
	rate             string // of posts to a channel
	noJournal        bool
	environment      []string           // further variables
	commands         [][]string         // of the notifier, that run before it
	body             func(i int) []byte // of its events; nil: eventBody
}

func (c contestant) limited(global, category int) contestant {
	c.global, c.category = global, category
	return c
}

func (c contestant) unlimited() contestant { return c.limited(limits.MaxCount, limits.MaxCount) }

var (
	notifier  = contestant{name: "notifier", concurrency: 64, summaries: "30m", rate: "none"}
	unsummed  = contestant{name: "notifier without summaries", concurrency: 64, summaries: "0", rate: "none"}
	unnoted   = contestant{name: "notifier without journal", concurrency: 64, summaries: "30m", rate: "none", noJournal: true}
	plainPort = contestant{name: "plain"}
	bareLoop  = contestant{name: "bare"}
)

// start runs a contestant as a process until the benchmark ends.
func (a *arena) start(c contestant) *os.Process {
	a.b.Helper()
	var command *exec.Cmd
	if c.summaries != "" {
		environment := append(os.Environ(),
			"NOTIFIER_NATS_URL="+a.nats.URL,
			"NOTIFIER_REDIS_URL="+a.redis.URL(),
			"NOTIFIER_SLACK_TOKEN=xoxb-bench", "NOTIFIER_SLACK_CHANNEL="+defaultChannel, "NOTIFIER_SLACK_ROUTES=security=CSECURITY", "NOTIFIER_SLACK_API_URL="+a.slack.url,
			"NOTIFIER_CONCURRENCY="+strconv.Itoa(c.concurrency),
			"NOTIFIER_SLACK_RATE="+c.rate, "NOTIFIER_SLACK_WORKSPACE_RATE=none", "NOTIFIER_SUMMARY_INTERVAL="+c.summaries,
			fmt.Sprintf("NOTIFIER_GLOBAL_LIMIT=%d/30m", c.global),
			fmt.Sprintf("NOTIFIER_CATEGORY_LIMIT=%d/30m", c.category),
			"NOTIFIER_HTTP_ADDR=off", "NOTIFIER_LOG_LEVEL=error")
		if c.noJournal {
			environment = append(environment, "NOTIFIER_JOURNAL_AGE=0")
		}
		environment = append(environment, c.environment...)
		for _, arguments := range append(c.commands, []string{"run"}) {
			if command != nil {
				testkit.NoError(a.b, command.Run())
			}
			command = exec.Command(notifierBinary, arguments...)
			command.Env = environment
		}
	} else {
		command = exec.Command(os.Args[0])
		command.Env = append(os.Environ(), roleVariable+"="+c.name,
			natsVariable+"="+a.nats.URL, redisVariable+"="+a.redis.Addr, slackVariable+"="+a.slack.url,
			limitVariable+"="+fmt.Sprintf("%d %d", c.global, c.category))
	}
	command.Stderr = os.Stderr
	exited := testkit.Must(servertest.StartChild(command))(a.b)
	a.b.Cleanup(func() {
		_ = command.Process.Kill()
		<-exited
	})
	return command.Process
}

// peakMemory is the most memory that a process had resident, in MiB; 0 where the system does not report it.
func peakMemory(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			var kibibytes float64
			if _, err := fmt.Sscan(value, &kibibytes); err != nil {
				b.Fatal(err)
			}
			return kibibytes / 1024
		}
	}
	return 0
}

// defaultChannel takes what has no route.
const defaultChannel = "C1"

// eventNumber finds the event in a message, whether it came as a form or as JSON.
var eventNumber = regexp.MustCompile(`disk(?:\+|%20| )(\d+)`)

// slackCounter takes every message at once and notes when each came.
type slackCounter struct {
	url   string
	timed bool // note arrivals; else messages are only taken
	rests bool // the default channel takes nothing

	mu      sync.Mutex
	arrived map[string]time.Time // by the number in the title
}

func newSlackCounter(b *testing.B) *slackCounter {
	b.Helper()
	s := &slackCounter{arrived: make(map[string]time.Time)}
	server := httptest.NewServer(http.HandlerFunc(s.answer))
	b.Cleanup(server.Close)
	s.url = server.URL + "/api/"
	return s
}

func (s *slackCounter) answer(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	if !s.timed {
		_, _ = io.Copy(io.Discard, r.Body)
	} else if body, err := io.ReadAll(r.Body); err != nil {
		return
	} else if s.rests && bytes.Contains(body, []byte("channel="+defaultChannel)) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	} else if match := eventNumber.FindSubmatch(body); match != nil {
		s.mu.Lock()
		if _, again := s.arrived[string(match[1])]; !again {
			s.arrived[string(match[1])] = now
		}
		s.mu.Unlock()
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"ok":true,"channel":"C1","ts":"1700000000.000100"}`)
}
