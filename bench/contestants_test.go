package bench

import (
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
	"github.com/slack-go/slack"
)

// The test binary runs a contestant, and no benchmark, when roleVariable is set in its environment.
const (
	roleVariable  = "BENCH_ROLE"
	natsVariable  = "BENCH_NATS"
	redisVariable = "BENCH_REDIS"
	slackVariable = "BENCH_SLACK"
	floorVariable = "BENCH_FLOOR"  // address of the server that stores nothing
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
	case "floor":
		serveNothing()
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

type plainEvent struct{ Title, Text, Severity, Source string }

// message says what the notifier's does, in the same layout, so that both post as much.
func (e plainEvent) message(category string, meta *jetstream.MsgMetadata) []slack.MsgOption {
	headline := fmt.Sprintf("[%s] %s", strings.ToUpper(e.Severity), e.Title)
	text := func(format string, values ...any) slack.MixedElement {
		return slack.NewTextBlockObject(slack.MarkdownType, fmt.Sprintf(format, values...), false, true)
	}
	return []slack.MsgOption{
		slack.MsgOptionText(headline, true),
		slack.MsgOptionBlocks(slack.NewHeaderBlock(slack.NewTextBlockObject(slack.PlainTextType, headline, false, false))),
		slack.MsgOptionAttachments(slack.Attachment{Color: "#dc2626", Fallback: headline + "\n" + e.Text, Blocks: slack.Blocks{BlockSet: []slack.Block{
			slack.NewSectionBlock(slack.NewTextBlockObject(slack.MarkdownType, e.Text, false, true), nil, nil),
			slack.NewContextBlock("", text("category: %s", category), text("source: %s", e.Source),
				text("<!date^%d^{date_short_pretty} {time_secs}|%s>", meta.Timestamp.Unix(), meta.Timestamp.Format(time.RFC3339)),
				text("id: %s:%d", stream, meta.Sequence.Stream)),
		}}}),
		slack.MsgOptionDisableMarkdown(), slack.MsgOptionDisableLinkUnfurl(), slack.MsgOptionDisableMediaUnfurl(),
	}
}

// plain is the plain port: what someone writes who has the same libraries, and nothing in mind but the limits. Its
// connections to Slack are used again, as the notifier's are.
func plain() {
	const workers = 64
	window := (30 * time.Minute).Microseconds()
	var global, category int
	must(fmt.Sscan(os.Getenv(limitVariable), &global, &category))
	nc := must(nats.Connect(os.Getenv(natsVariable)))
	client := redis.NewClient(&redis.Options{Addr: os.Getenv(redisVariable), PoolSize: workers})
	post := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}, Timeout: 10 * time.Second}
	api := slack.New("xoxb-bench", slack.OptionHTTPClient(&post), slack.OptionAPIURL(os.Getenv(slackVariable)))
	messages := must(consumerOf(nc).Messages(jetstream.PullMaxMessages(1000)))
	work := make(chan jetstream.Msg)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for m := range work {
				var e plainEvent
				_ = json.Unmarshal(m.Data(), &e)
				name := strings.TrimPrefix(m.Subject(), subject+".")
				meta := must(m.Metadata())
				denied, err := plainScript.Run(context.Background(), client, []string{"{plain}:log", "{plain}:log:" + name},
					global, category, fmt.Sprintf("%s:%d", stream, meta.Sequence.Stream), window).Int()
				if err != nil {
					panic(err)
				}
				if denied == 0 {
					if _, _, err := api.PostMessage("C1", e.message(name, meta)...); err != nil {
						panic(err)
					}
				}
				_ = m.Ack()
			}
		})
	}
	for {
		work <- must(messages.Next())
	}
}
