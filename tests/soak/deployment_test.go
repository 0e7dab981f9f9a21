//go:build soak

package soak

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/testing/oracle"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Names that are defaults of settings.
const (
	streamName   = "NOTIFICATIONS"
	consumerName = "notifier"
	deadName     = "NOTIFICATIONS_DLQ"
	journalName  = "NOTIFICATIONS_JOURNAL"
	roomName     = "NOTIFICATIONS_ROOM"
	roomSubject  = "notify-room"
)

const (
	instances     = 4
	ackWait       = 4 * time.Second
	slackTimeout  = time.Second
	historyDelay  = 1500 * time.Millisecond // Slack shows a message late, within NOTIFIER_SLACK_SETTLE
	redisTimeout  = 500 * time.Millisecond
	sendTimeout   = slackTimeout + 2*redisTimeout // the longest that one attempt to post takes
	denyCacheTTL  = time.Second
	maxAge        = time.Hour
	streamAge     = 7 * 24 * time.Hour
	recordsKept   = streamAge + time.Hour // how long a delivery is remembered
	globalWindow  = 10 * time.Second
	inFlightCount = 2
	inFlightFor   = 10 * time.Second
)

// settings are the common settings of all workers. Windows are short, so each limit is full and free again many times.
var settings = map[string]string{
	"NATS_ACK_WAIT": ackWait.String(),
	"REDIS_TIMEOUT": redisTimeout.String(),
	"REDIS_FAILURE": "hold", // every other policy may exceed the limits while Redis is unavailable
	"SLACK_TOKEN":   slacktest.DefaultToken,
	"SLACK_CHANNEL": "#alerts",
	"SLACK_ROUTES":  "flood=#noise,tokens=#noise,pairs=#pairs,groups=#pairs,watched=#watched,hostile=" + hostileChannel,
	"SLACK_TIMEOUT": slackTimeout.String(),
	"SLACK_RATE":    "20/s",
	"SLACK_BURST":   "10",

	"SLACK_WORKSPACE_RATE": "none",
	"SLACK_UPDATE_RATE":    "none",
	"SLACK_LOOKUP_RATE":    "none",
	"SUMMARY_INTERVAL":     "10s",
	"EVENT_MAX_AGE":        maxAge.String(),
	"DENY_CACHE_TTL":       denyCacheTTL.String(),
	"SHUTDOWN_TIMEOUT":     "5s",
	"HTTP_ADDR":            "off",
	"LOG_LEVEL":            "debug",
	"GLOBAL_LIMIT":         "240/10s",
	"CATEGORY_LIMIT":       "10/10s",
	"GUARANTEES":           "vital=30,later=8,watched=120,repeated=10,swings=10",
	"LIMITS": "tokens=token:20/10s;burst=5,spaced=leaky:10/10s,clock=fixed:15/10s,counted=counter:15/10s," +
		"costly=12/10s+5/2s,deep=20/10s,deep.*=8/5s,busy=inflight:2/10s+15/10s,later=8/10s,soon=8/10s,pairs=15/10s," +
		"groups=20/10s,vital=none,watched=none,repeated=none,swings=none,keyed@key=2/10s",
	"FOLD":  ">=off,repeated=1h",
	"FLAP":  "4/" + flapWindow.String(),
	"DELAY": "later=30m,soon=4s",
	// The dead letters of the hostile producer fill their stream. Those of other producers have room in it.
	"STREAM_MAX_AGE": streamAge.String(), "STREAM_MAX_BYTES": "64MiB", "DLQ_MAX_BYTES": "24MiB", "DLQ_MAX_PER_SUBJECT": "100000",
	"NATS_USER": "notifier", "NATS_PASSWORD": natsPassword,
}

// limits are the limits of settings for package oracle. The history checks the limit of deliveries under way.
var limits = oracle.Deployment{
	Limits: []oracle.Limit{
		{Path: "", Kind: oracle.Log, Count: 240, Window: 10e6},
		{Path: "flood", Kind: oracle.Log, Count: 10, Window: 10e6},
		{Path: hostileCategory, Kind: oracle.Log, Count: 10, Window: 10e6},
		{Path: "tokens", Kind: oracle.Token, Count: 20, Window: 10e6, Burst: 5},
		{Path: "spaced", Kind: oracle.Leaky, Count: 10, Window: 10e6},
		{Path: "clock", Kind: oracle.Fixed, Count: 15, Window: 10e6},
		{Path: "counted", Kind: oracle.Counter, Count: 15, Window: 10e6},
		{Path: "costly", Kind: oracle.Log, Count: 12, Window: 10e6},
		{Path: "costly", Kind: oracle.Log, Count: 5, Window: 2e6},
		{Path: "deep", Kind: oracle.Log, Count: 20, Window: 10e6},
		{Path: "deep.a", Kind: oracle.Log, Count: 8, Window: 5e6},
		{Path: "deep.b", Kind: oracle.Log, Count: 8, Window: 5e6},
		{Path: "busy", Kind: oracle.Log, Count: 15, Window: 10e6},
		{Path: "later", Kind: oracle.Log, Count: 8, Window: 10e6},
		{Path: "soon", Kind: oracle.Log, Count: 8, Window: 10e6},
		{Path: "pairs", Kind: oracle.Log, Count: 15, Window: 10e6},
		{Path: "groups", Kind: oracle.Log, Count: 20, Window: 10e6},
		{Path: "muted", Kind: oracle.Log, Count: 10, Window: 10e6},
		{Path: "keyed", Kind: oracle.Log, Count: 10, Window: 10e6},
		{Path: "keyed.k0", Kind: oracle.Log, Count: 2, Window: 10e6}, // a key has the place of a path below its category
		{Path: "keyed.k1", Kind: oracle.Log, Count: 2, Window: 10e6},
		{Path: "keyed.k2", Kind: oracle.Log, Count: 2, Window: 10e6},
		{Path: "keyed.k3", Kind: oracle.Log, Count: 2, Window: 10e6},
		{Path: "keyed.k4", Kind: oracle.Log, Count: 2, Window: 10e6},
	},
	Guarantees: []oracle.Guarantee{
		{Path: "vital", Slots: 30}, {Path: "later", Slots: 8}, {Path: "watched", Slots: 120}, {Path: "repeated", Slots: 10}, {Path: "swings", Slots: 10},
	},
}

// longestMemory is the longest time for which an admission matters to a limit: two windows of a counter.
const longestMemory = 2 * globalWindow

// deployment has the servers and the workers.
type deployment struct {
	t      *testing.T
	folder string
	nats   *servertest.NATS
	redis  *servertest.Redis
	slack  *slacktest.Server
	stalls *stalls

	toNATS, toRedis, toSlack *servertest.Proxy

	shared  bool // the hostile producer is in the workers' account
	answers *answers
	js      jetstream.JetStream
	workers []*worker

	mu           sync.Mutex
	mishaps      []string             // unexpected ends of processes
	acknowledged map[uint64]time.Time // when workers acknowledged messages of the room, by sequence
}

func deploy(t *testing.T, folder string, seed uint64) *deployment {
	d := &deployment{t: t, folder: folder, stalls: measureStalls(t), shared: newRandom(seed, 5).chance(50), acknowledged: make(map[uint64]time.Time)}
	testkit.NoError(t, os.Mkdir(d.calls(), 0o700))
	d.build()
	d.nats = servertest.StartNATSProcess(t, natsUsers(d.shared))
	d.redis = servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "everysec",
		"--auto-aof-rewrite-percentage", "0", "--maxmemory-policy", "noeviction")
	d.slack = slacktest.New(t, slacktest.WithHistoryDelay(historyDelay))
	d.answers = &answers{seed: seed, asked: make(map[string]uint64), lost: make(map[string][]time.Time)}
	d.slack.Respond(d.answers.to)
	d.slack.RespondTo(slacktest.MethodHistory, d.answers.toLookUp)
	d.slack.RespondTo(slacktest.MethodReplies, d.answers.toLookUp)
	d.toNATS = servertest.StartProxy(t, strings.TrimPrefix(d.nats.URL, "nats://"))
	d.toRedis = servertest.StartProxy(t, d.redis.Addr)
	d.toSlack = servertest.StartProxy(t, d.slack.Address())
	d.js = d.connect("soak")
	d.noteAcks()
	for i := range instances {
		w := &worker{d: d, name: workerName(i), settings: map[string]string{
			"NATS_URL":      "nats://" + d.toNATS.Addr,
			"REDIS_URL":     "redis://" + d.toRedis.Addr + "/0",
			"SLACK_API_URL": "http://" + d.toSlack.Addr + "/api/",
		}}
		if i%2 == 0 && servertest.HasFunctions(d.t) { // beside workers with scripts, as during a change of the setting
			w.settings["REDIS_SCRIPTING"] = "function"
		}
		d.workers = append(d.workers, w)
		d.startWorker(w)
	}
	testkit.Await(d.t, "the consumer", func() error {
		_, err := d.leftInJetStream()
		return err
	})
	return d
}

// command runs a command of the program as the workers' user, and returns what it prints.
func (d *deployment) command(arguments ...string) string {
	command := exec.Command(filepath.Join(d.folder, workerName(0)), arguments...)
	command.Env = append(environment(settings, d.workers[0].settings), d.recording()...)
	output, err := command.CombinedOutput()
	testkit.Check(d.t, err == nil, "notifier %s: %v: %s", strings.Join(arguments, " "), err, output)
	return string(output)
}

// workerName returns the name of a worker. The name is also the version in the user agent, which names the worker of a post.
func workerName(i int) string { return fmt.Sprintf("soak-worker-%d", i+1) }

// build links the program once, and makes a copy with another version for each worker. The versions have one length, so build replaces them
// in the binary.
func (d *deployment) build() {
	const linked = "soak-worker-X"
	path := filepath.Join(d.folder, linked)
	command := exec.Command("go", "build", "-tags", "histories", "-ldflags", "-X main.version="+linked, "-o", path, "../../cmd/notifier")
	output, err := command.CombinedOutput()
	testkit.Require(d.t, err == nil, "build the program: %v\n%s", err, output)
	program := testkit.Must(os.ReadFile(path))(d.t)
	testkit.NoError(d.t, os.Remove(path))
	for i := range instances {
		path := filepath.Join(d.folder, workerName(i))
		testkit.NoError(d.t, os.WriteFile(path, bytes.ReplaceAll(program, []byte(linked), []byte(workerName(i))), 0o700))
		d.t.Cleanup(func() { _ = os.Remove(path) })
	}
}

// connect connects as a user, without the proxy.
func (d *deployment) connect(user string) jetstream.JetStream {
	conn := servertest.Connect(d.t, d.nats.URL, nats.UserInfo(user, natsPassword), nats.CustomInboxPrefix("_INBOX_"+user),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // ignores missing rights
	return testkit.Must(jetstream.New(conn, jetstream.WithPublishAsyncTimeout(2*time.Second)))(d.t) // NATS does not answer a publish without a right
}

// noteAcks notes when workers acknowledge messages of the room: what is left in the end was acknowledged, or the server never delivered it again.
func (d *deployment) noteAcks() {
	acks := testkit.Must(d.js.Conn().Subscribe("$JS.ACK."+roomName+".>", func(m *nats.Msg) {
		const place = 5 // of the sequence: $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.…
		sequence, err := strconv.ParseUint(strings.Split(m.Subject, ".")[place], 10, 64)
		if err == nil && bytes.HasPrefix(m.Data, []byte("+ACK")) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.acknowledged[sequence] = time.Now()
		}
	}))(d.t)
	testkit.NoError(d.t, acks.SetPendingLimits(-1, -1))
}

// mishap notes a failure that no fault excuses.
func (d *deployment) mishap(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	say("MISHAP: %s", text)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mishaps = append(d.mishaps, text)
}

// worker is one instance. Faults stop it, and it starts again.
type worker struct {
	d        *deployment
	name     string
	settings map[string]string
	command  *exec.Cmd
	exited   <-chan struct{}
	expected *atomic.Bool // set before a wanted end
}

func (d *deployment) startWorker(w *worker) {
	log := testkit.Must(os.OpenFile(filepath.Join(d.folder, w.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(d.t)
	command := exec.Command(filepath.Join(d.folder, w.name))
	defer func() { _ = log.Close() }() // the worker has its own descriptor
	command.Stdout, command.Stderr = log, log
	command.Env = append(environment(settings, w.settings), d.recording()...)
	exited, expected := testkit.Must(servertest.StartChild(command))(d.t), new(atomic.Bool)
	w.command, w.exited, w.expected = command, exited, expected
	go func() {
		<-exited
		if !expected.Load() {
			d.mishap("%s ended by itself: %v", w.name, command.ProcessState)
		}
	}()
	d.t.Cleanup(w.kill)
}

func environment(sets ...map[string]string) []string {
	variables := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOTIFIER_") })
	for _, set := range sets {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			variables = append(variables, "NOTIFIER_"+name+"="+set[name])
		}
	}
	return variables
}

func (w *worker) kill() {
	w.expected.Store(true)
	_ = w.command.Process.Signal(syscall.SIGKILL)
	<-w.exited
}

func (w *worker) signal(signal syscall.Signal) {
	if err := w.command.Process.Signal(signal); err != nil {
		w.d.mishap("%s took no signal %v: %v", w.name, signal, err)
	}
}

// stopPatience bounds the time of a stop.
const stopPatience = 20 * time.Second

// stopWorker ends a worker with SIGTERM, and wants status 0.
func (d *deployment) stopWorker(w *worker) {
	w.expected.Store(true)
	w.signal(syscall.SIGTERM)
	select {
	case <-w.exited:
		if status := w.command.ProcessState.ExitCode(); status != 0 {
			d.mishap("%s ended with status %d after SIGTERM", w.name, status)
		}
	case <-time.After(stopPatience):
		d.mishap("%s still ran %v after SIGTERM", w.name, stopPatience)
		w.kill()
	}
}

// left counts the unfinished work in JetStream and Redis.
type left struct {
	messages    uint64 // in the producers' stream
	inRoom      uint64 // in the room
	waiting     uint64 // of them, those that wait for their slots
	queued      uint64 // of them, those that wait for their channels
	pending     uint64 // not delivered to a worker yet
	unsettled   int    // delivered, not acknowledged
	outstanding int    // channels whose drops are to be reported, in Redis
}

func (l left) none() bool { return l == left{} }

func (l left) String() string {
	return fmt.Sprintf("%d messages, %d in the room (%d wait for slots, %d for channels), %d pending, %d unacknowledged, %d digests",
		l.messages, l.inRoom, l.waiting, l.queued, l.pending, l.unsettled, l.outstanding)
}

func (d *deployment) leftInJetStream() (left, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*time.Second)
	defer cancel()
	consumer, err := d.js.Consumer(ctx, streamName, consumerName)
	if err != nil {
		return left{}, err
	}
	stream, err := d.js.Stream(ctx, streamName)
	if err != nil {
		return left{}, err
	}
	room, err := d.js.Stream(ctx, roomName)
	if err != nil {
		return left{}, err
	}
	info, err := room.Info(ctx, jetstream.WithSubjectFilter(roomSubject+".>"))
	if err != nil {
		return left{}, err
	}
	state := consumer.CachedInfo()
	l := left{
		messages: stream.CachedInfo().State.Msgs, inRoom: info.State.Msgs, pending: state.NumPending, unsettled: state.NumAckPending,
	}
	for subject, n := range info.State.Subjects {
		switch {
		case strings.HasPrefix(subject, roomSubject+".slot."):
			l.waiting += n
		case strings.HasPrefix(subject, roomSubject+".channel."):
			l.queued += n
		}
	}
	return l, nil
}

// drain waits until nothing is left, for drainPatience at most, and returns what is left.
func (d *deployment) drain() left {
	deadline := time.Now().Add(drainPatience)
	var last left
	for time.Now().Before(deadline) {
		l, err := d.leftInJetStream()
		if err == nil {
			l.outstanding = d.digestsToCome()
			if last = l; l.none() {
				time.Sleep(2 * time.Second) // workers record the last posts meanwhile, which cannot be seen from outside
				say("everything is settled")
				return l
			}
		}
		time.Sleep(200 * time.Millisecond) // testkit.Await would end the soak without a verdict
	}
	say("not everything is settled after %v: %v", drainPatience, last)
	d.listLeft()
	return last
}

// listLeft prints the messages that are left.
func (d *deployment) listLeft() {
	for _, name := range []string{streamName, roomName} {
		messages, err := d.read(d.t.Context(), name)
		if err != nil {
			say("  (%v)", err)
		}
		for _, m := range messages[:min(len(messages), 20)] {
			d.mu.Lock()
			at, isAcknowledged := d.acknowledged[m.Sequence]
			d.mu.Unlock()
			say("  left: %d, stored %v, acknowledged %t at %v, %s %v %.100s", m.Sequence, clock(m.Time), isAcknowledged && name == roomName, clock(at), m.Subject, m.Header, m.Data)
		}
	}
}

// read returns all messages of a stream.
func (d *deployment) read(ctx context.Context, stream string) ([]*jetstream.RawStreamMsg, error) {
	return streamscan.Read(ctx, d.js, stream,
		func(m *jetstream.RawStreamMsg) (*jetstream.RawStreamMsg, bool) { return m, true }, func(int64, int64) {})
}

// digestsToCome counts the channels with a digest to come.
func (d *deployment) digestsToCome() int {
	return testkit.Must(strconv.Atoi(d.redis.CLI("ZCARD", keyPrefix+"drops:due")))(d.t)
}
