package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// The test binary runs a contestant, and no benchmark, when roleVariable is set in its environment.
const (
	roleVariable  = "BENCH_ROLE"
	natsVariable  = "BENCH_NATS"
	redisVariable = "BENCH_REDIS"
	slackVariable = "BENCH_SLACK"
	limitVariable = "BENCH_LIMITS" // global and category count
)

const (
	stream   = "NOTIFICATIONS"
	consumer = "notifier"
	subject  = "notify"
)

var notifierBinary string

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "bare":
		bare()
		return
	case "plain":
		plain()
		return
	}
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		return m.Run() // there is nothing to build for
	}
	folder, err := os.MkdirTemp("", "notifier-bench-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	notifierBinary = filepath.Join(folder, "notifier")
	build := exec.Command("go", "build", "-tags", "nodev", "-o", notifierBinary, "../cmd/notifier")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building the notifier:", err)
		return 1
	}
	status := m.Run()
	for _, conclusion := range conclusions {
		fmt.Println(conclusion)
	}
	return status
}

// conclusions are printed together at the end.
var conclusions []string

func conclude(format string, values ...any) {
	conclusions = append(conclusions, fmt.Sprintf(format, values...))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func consumerOf(nc *nats.Conn) jetstream.Consumer {
	js := must(jetstream.New(nc))
	return must(js.Consumer(context.Background(), stream, consumer))
}

// bare takes messages and acknowledges them, as fast as nats.go does it.
func bare() {
	nc := must(nats.Connect(os.Getenv(natsVariable)))
	must(consumerOf(nc).Consume(func(m jetstream.Msg) { _ = m.Ack() }))
	select {}
}

// plainScript counts in two sorted sets, and nothing else.
var plainScript = redis.NewScript(`
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for i = 1, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', string.format('%.0f', now - ARGV[4]))
  if redis.call('ZCARD', KEYS[i]) >= tonumber(ARGV[i]) then
    return i
  end
end
for i = 1, 2 do
  redis.call('ZADD', KEYS[i], string.format('%.0f', now), ARGV[3])
  redis.call('PEXPIRE', KEYS[i], math.ceil(ARGV[4] / 1000))
end
return 0`)

// plain is the plain port.
func plain() {
	const workers = 64
	window := (30 * time.Minute).Microseconds()
	var global, category int
	must(fmt.Sscan(os.Getenv(limitVariable), &global, &category))
	nc := must(nats.Connect(os.Getenv(natsVariable)))
	client := redis.NewClient(&redis.Options{Addr: os.Getenv(redisVariable), PoolSize: workers})
	transport := &http.Transport{MaxIdleConnsPerHost: workers}
	post := http.Client{Transport: transport, Timeout: 10 * time.Second}
	messages := must(consumerOf(nc).Messages(jetstream.PullMaxMessages(1000)))
	work := make(chan jetstream.Msg)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for m := range work {
				var e struct{ Title, Text string }
				_ = json.Unmarshal(m.Data(), &e)
				name := strings.TrimPrefix(m.Subject(), subject+".")
				meta := must(m.Metadata())
				denied, err := plainScript.Run(context.Background(), client, []string{"{plain}:log", "{plain}:log:" + name},
					global, category, fmt.Sprintf("%s:%d", stream, meta.Sequence.Stream), window).Int()
				if err != nil {
					panic(err)
				}
				if denied == 0 {
					body := must(json.Marshal(map[string]string{"channel": "C1", "text": e.Title + "\n" + e.Text}))
					response, err := post.Post(os.Getenv(slackVariable)+"chat.postMessage", "application/json", bytes.NewReader(body))
					if err != nil {
						panic(err)
					}
					_ = response.Body.Close()
				}
				_ = m.Ack()
			}
		})
	}
	for {
		work <- must(messages.Next())
	}
}
