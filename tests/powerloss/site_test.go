//go:build powerloss

package powerloss

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/testing/powerfs"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Names that are defaults of settings.
const (
	streamName = "NOTIFICATIONS"
	roomName   = "NOTIFICATIONS_ROOM"
	deadName   = "NOTIFICATIONS_DLQ"
	bucketName = "KV_notifier-limits"
)

const (
	workers = 2

	// categoryLimit is longer than a failure is measured, so every admission of a category counts until the end.
	categoryLimit = 5

	// slackTakes is how long a post takes: some events always wait, and others are under way.
	slackTakes = 200 * time.Millisecond

	// drainPatience bounds the time until everything is settled after a failure.
	drainPatience = time.Minute
)

// machine is a server with its disk.
type machine struct {
	disk    *powerfs.Disk
	kill    func()
	restart func()
}

// site is the deployment of one row.
type site struct {
	t           *testing.T
	row         row
	nats        []*machine
	redis       *machine
	slack       *slacktest.Server
	js          jetstream.JetStream
	environment []string
}

func build(t *testing.T, r row) *site {
	s := &site{t: t, row: r, slack: slacktest.New(t)}
	s.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if strings.Contains(post.Text, "reject me") {
			return slacktest.Code("invalid_blocks")
		}
		return slacktest.Delay(slackTakes, slacktest.OK())
	})
	natsURL := s.startNATS(fmt.Sprintf("jetstream { sync_interval: %s }", cmp.Or(r.syncInterval, "always")))
	disk := powerfs.Mount(t)
	redis := servertest.StartRedis(t, "--dir", disk.Folder, "--appendonly", "yes", "--appendfsync", cmp.Or(r.appendfsync, "everysec"),
		"--maxmemory-policy", "noeviction")
	s.redis = &machine{disk, redis.Kill, redis.Restart}
	s.js = servertest.JetStream(t, natsURL)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "NOTIFIER_") {
			s.environment = append(s.environment, variable)
		}
	}
	for name, value := range map[string]string{
		"NATS_URL": natsURL, "NATS_ACK_WAIT": "5s", "REDIS_URL": redis.URL(), "REDIS_FAILURE": "hold",
		"SLACK_API_URL": s.slack.APIURL(), "SLACK_TOKEN": slacktest.DefaultToken, "SLACK_CHANNEL": "#alerts", "SLACK_RATE": "none", "SLACK_WORKSPACE_RATE": "none", "SLACK_LOOKUP_RATE": "none",
		"SLACK_TIMEOUT": "2s", "SUMMARY_INTERVAL": "0", "HTTP_ADDR": "off",
		"GLOBAL_LIMIT": "none", "CATEGORY_LIMIT": fmt.Sprintf("%d/1h", categoryLimit), "LIMITS": "vital=none,doomed=none",
		"STREAM_MAX_BYTES": "64MiB", "DLQ_MAX_BYTES": "64MiB", "JOURNAL_MAX_BYTES": "64MiB",
	} {
		s.environment = append(s.environment, "NOTIFIER_"+name+"="+value)
	}
	for i := range workers {
		s.startWorker(i)
	}
	testkit.Await(t, "the workers' consumers", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := s.js.Consumer(ctx, streamName, "notifier")
		return err
	})
	return s
}

// startNATS starts one server or a cluster. The servers begin on an ordinary disk, and move to their own before they store anything.
func (s *site) startNATS(config string) (url string) {
	var nodes []*servertest.NATS
	var cluster *servertest.NATSCluster
	if s.row.servers == 1 {
		nodes = []*servertest.NATS{servertest.StartNATSProcess(s.t, config)}
		url = nodes[0].URL
	} else {
		cluster = servertest.StartNATSCluster(s.t, s.row.servers, config)
		nodes, url = cluster.Nodes, cluster.URL
	}
	for _, node := range nodes {
		node.Kill()
	}
	for _, node := range nodes {
		disk := powerfs.Mount(s.t)
		s.t.Cleanup(node.Kill) // before the disk is unmounted
		node.Dir = disk.Folder
		node.Restart()
		s.nats = append(s.nats, &machine{disk, node.Kill, node.Restart})
	}
	if cluster != nil {
		cluster.AwaitReady()
	}
	return url
}

// startWorker starts a worker, which runs until the end of the test.
func (s *site) startWorker(i int) {
	log := testkit.Must(os.Create(filepath.Join(s.t.TempDir(), "worker.log")))(s.t)
	command := exec.Command(program, "run")
	command.Stdout, command.Stderr, command.Env = log, log, s.environment
	exited, stopping := testkit.Must(servertest.StartChild(command))(s.t), new(atomic.Bool)
	go func() {
		<-exited
		if !stopping.Load() {
			s.t.Errorf("worker %d ended by itself: %v\n%s", i, command.ProcessState, testkit.Text(s.t, log.Name()))
		}
	}()
	s.t.Cleanup(func() {
		stopping.Store(true)
		_ = command.Process.Signal(syscall.SIGKILL)
		<-exited
		_ = log.Close()
	})
}

// down returns the machines whose power fails at a failure. The NATS servers take turns.
func (s *site) down(failure int) (machines []*machine) {
	for i := range s.row.fails.nats {
		machines = append(machines, s.nats[(failure+i)%len(s.nats)])
	}
	if s.row.fails.redis {
		machines = append(machines, s.redis)
	}
	return machines
}

// failPower ends the servers at once, and discards what their disks have not synced.
func failPower(machines []*machine) {
	var ending sync.WaitGroup
	for _, m := range machines {
		ending.Go(m.kill)
	}
	ending.Wait()
	for _, m := range machines {
		m.disk.Fail()
	}
}

// sync writes what is not on the disks yet.
func (s *site) sync() {
	for _, m := range append(s.nats, s.redis) {
		m.disk.Sync()
	}
}

// drain waits until everything is settled. If Redis knows newer limits than NATS, which has lost them, it adopts the limits of NATS, as
// docs/limits.md has an operator do: until then workers take no events.
func (s *site) drain() (settled, adopted bool) {
	for deadline := time.Now().Add(drainPatience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		output, err := s.command("limits", "adopt", "--yes")
		if err != nil {
			continue // a server is not ready yet
		}
		if !strings.Contains(output, "nothing to adopt") {
			adopted = true
			continue
		}
		if left, err := s.left(); err == nil && left == 0 {
			time.Sleep(2 * time.Second) // workers store the last dead letters
			return true, adopted
		}
	}
	say("%s: not settled after %v", s.row.name(), drainPatience)
	for _, name := range []string{streamName, roomName} {
		s.describe(name)
	}
	return false, adopted
}

// command runs a command of the program as the operator.
func (s *site) command(arguments ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, program, arguments...)
	command.Env = s.environment
	text, err := command.Output()
	return string(text), err
}

// describe prints what a stream and its consumers have.
func (s *site) describe(name string) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		say("  %s: %v", name, err)
		return
	}
	state := stream.CachedInfo().State
	say("  %s: %d messages from %d to %d", name, state.Msgs, state.FirstSeq, state.LastSeq)
	consumers := stream.ListConsumers(ctx)
	for c := range consumers.Info() {
		say("  %s: delivered up to %d, acknowledged up to %d, %d pending, %d unacknowledged", c.Name, c.Delivered.Stream, c.AckFloor.Stream, c.NumPending, c.NumAckPending)
	}
}

// left counts the messages that are not settled.
func (s *site) left() (uint64, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
	defer cancel()
	var sum uint64
	for _, name := range []string{streamName, roomName} {
		stream, err := s.js.Stream(ctx, name)
		if err != nil {
			return 0, err
		}
		sum += stream.CachedInfo().State.Msgs
	}
	return sum, nil
}

// stored returns all messages of a stream.
func (s *site) stored(stream string) (messages []*jetstream.RawStreamMsg, err error) {
	for deadline := time.Now().Add(drainPatience); time.Now().Before(deadline); time.Sleep(time.Second) {
		ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
		messages, err = streamscan.Read(ctx, s.js, stream,
			func(m *jetstream.RawStreamMsg) (*jetstream.RawStreamMsg, bool) { return m, true }, func(int64, int64) {})
		cancel()
		if err == nil {
			break
		}
	}
	return messages, err
}
