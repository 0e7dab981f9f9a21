package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/hostile"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
)

// smallStore has users who may publish events of one category each, one who may do everything, and a file store of 64 MB.
const smallStore = `
	jetstream { max_file_store: 64MB }` + twoTeams

// smallBounds are settings that fit into it.
var smallBounds = []string{"STREAM_MAX_BYTES", "24MiB", "DLQ_MAX_BYTES", "12MiB", "ROOM_MAX", "20000"}

// neighbours are two producers with rights to their own subjects alone: one does harm, the other one's events are watched.
type neighbours struct {
	*deployment
	hostile *hostile.Producer
	victim  *team
	worker  *worker
}

// startNeighbours starts a worker, and a channel of its own for the victim.
func startNeighbours(t testing.TB, changes ...string) *neighbours {
	t.Helper()
	d := deploy(t, nil, servertest.StartRedis(t))
	d.nats = servertest.StartNATSProcess(t, smallStore)
	d.js = connect(t, d.nats.URL, nats.UserInfo("worker", "secret"))
	n := &neighbours{deployment: d}
	changes = append(append([]string{
		"NATS_URL", d.nats.URL, "NATS_USER", "worker", "NATS_PASSWORD", "secret", "SLACK_ROUTES", "security=#security",
	}, smallBounds...), changes...)
	n.worker = d.startReady("worker", changes...)
	payments := d.team("payments")
	n.victim = d.team("security")
	n.hostile = &hostile.Producer{JetStream: payments.js, Subject: payments.subject, Victim: n.victim.subject}
	for i := range 100 {
		n.hostile.IDs = append(n.hostile.IDs, fmt.Sprintf("security-%d", i))
	}
	return n
}

// tell has the victim publish events with IDs of their own, and returns those.
func (n *neighbours) tell(from, count int) (ids []string) {
	n.t.Helper()
	for i := range count {
		id := fmt.Sprintf("security-%d", from+i)
		n.victim.publish(eventBody(id))
		ids = append(ids, id)
	}
	return ids
}

// awaitToVictim waits until each event was posted to the victim's channel, once.
func (n *neighbours) awaitToVictim(ids []string) {
	n.t.Helper()
	await(n.t, "the victim's posts", func() error {
		posted := count(n.toVictim(), "id")
		for _, id := range ids {
			if posted[id] != 1 {
				return fmt.Errorf("%s was posted %d times", id, posted[id])
			}
		}
		return nil
	})
}

func (n *neighbours) toVictim() (posts []slacktest.Post) {
	for _, post := range n.slack.Posts() {
		if post.Channel == "#security" {
			posts = append(posts, post)
		}
	}
	return posts
}

// wantNothingForged checks that nothing but the victim's own events went to its channel.
func (n *neighbours) wantNothingForged() {
	n.t.Helper()
	for _, post := range n.toVictim() {
		if id := origin(post, "id"); !strings.HasPrefix(id, "security-") || strings.Contains(fmt.Sprint(post), "hostile") {
			n.t.Errorf("%q was posted to the victim's channel", fmt.Sprint(post))
		}
	}
}

// TestStreamCommandsOfProducers has a producer command the server by headers while events of another one wait for their slots.
func TestStreamCommandsOfProducers(t *testing.T) {
	t.Parallel()
	n := startNeighbours(t, "CATEGORY_LIMIT", "none", "GLOBAL_LIMIT", "none", "LIMITS", "security.alerts=2/3s", "DELAY", "security.>=5m")
	ids := n.tell(0, 10)
	for _, attack := range []func(context.Context, int) error{n.hostile.RollUp, n.hostile.Schedule, n.hostile.Forge} {
		if err := attack(t.Context(), 200); err != nil {
			t.Fatal(err)
		}
	}
	if n.hostile.Refused() < 300 {
		t.Errorf("%d of the hostile messages were refused, want all that command the server", n.hostile.Refused())
	}
	n.awaitToVictim(ids)
	n.wantNothingForged()
	fleet{n.worker}.awaitSum(10, "notifier_events_total", "category", "security.alerts", "outcome", "sent")
	if vanished := n.worker.scrape().sum("notifier_vanished_total"); vanished != 0 {
		t.Errorf("%d messages have vanished", vanished)
	}
}

// TestDeadlinesOfProducers has a producer claim that its events may wait. They do not, and the one that may does.
func TestDeadlinesOfProducers(t *testing.T) {
	t.Parallel()
	n := startNeighbours(t, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none", "LIMITS", "security.alerts=1/3s,payments.alerts=1/1h",
		"DELAY", "security.>=5m")
	if err := n.hostile.Forge(t.Context(), 3000); err != nil {
		t.Fatal(err)
	}
	ids := n.tell(0, 4)
	n.awaitToVictim(ids)
	fleet{n.worker}.awaitSum(1999, "notifier_events_total", "category", "payments.alerts", "outcome", "dropped")
	if delayed := n.worker.scrape().sum("notifier_delayed_total"); delayed > 6 {
		t.Errorf("%d events were delayed, want those of the victim alone", delayed)
	}
	n.wantNothingForged()
}

// TestDeadLettersOfProducers has a producer send what becomes dead letters, far more than the store holds.
func TestDeadLettersOfProducers(t *testing.T) {
	t.Parallel()
	n := startNeighbours(t)
	n.victim.publish("{broken by security")
	await(t, "the victim's dead letter", func() error {
		if letters := n.lettersOf("security"); letters != 1 {
			return fmt.Errorf("there are %d", letters)
		}
		return nil
	})
	const bodies, groups = 300, 500
	if err := n.hostile.EmptyAlerts(t.Context(), groups); err != nil {
		t.Fatal(err)
	}
	if err := n.hostile.Garble(t.Context(), bodies); err != nil {
		t.Fatal(err)
	}
	n.awaitToVictim(n.tell(0, 5))
	n.awaitEmpty()
	stored := n.hostile.Stored()
	fleet{n.worker}.awaitSum(int(stored), "notifier_events_total", "category", "payments.alerts", "outcome", "dead")
	if letters := n.lettersOf("security"); letters != 1 {
		t.Errorf("%d dead letters of the victim are left, want 1", letters)
	}
	if status, body := n.worker.get("/readyz"); status != 200 {
		t.Errorf("the worker is not ready: %s", body)
	}
	n.awaitToVictim(n.tell(5, 5))
}

// lettersOf counts the dead letters of a first-level category.
func (n *neighbours) lettersOf(first string) int {
	n.t.Helper()
	stream, err := n.js.Stream(n.t.Context(), deadStreamName)
	if err != nil {
		n.t.Fatal(err)
	}
	info, err := stream.Info(n.t.Context(), jetstream.WithSubjectFilter(">"))
	if err != nil {
		n.t.Fatal(err)
	}
	letters := 0
	for subject, count := range info.State.Subjects {
		if strings.HasSuffix(subject, "."+first) {
			letters += int(count)
		}
	}
	return letters
}

// TestWaitingHoldsUpNobody has a channel rest, and resolves what nobody opened, with 10,000 events each, while another category's
// events go to another channel.
func TestWaitingHoldsUpNobody(t *testing.T) {
	t.Parallel()
	const events = 10_000 // make bench does it with 25,000
	n := startNeighbours(t, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none", "SLACK_RATE", "20/s", "ROOM_MAX", "100000")
	n.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if post.Channel == defaultChannel {
			return slacktest.RateLimited(time.Hour)
		}
		return slacktest.OK()
	})
	told := 0
	for _, attack := range []func(context.Context, int) error{n.hostile.Flood, n.hostile.Resolve} {
		attacked := make(chan error, 1)
		go func() { attacked <- attack(t.Context(), events) }()
		var ids []string
		for range 30 {
			ids = append(ids, n.tell(told, 1)...)
			told++
			time.Sleep(100 * time.Millisecond) // the victim's own pace
		}
		if err := <-attacked; err != nil {
			t.Fatal(err)
		}
		n.awaitToVictim(ids)
	}
	fleet{n.worker}.awaitSum(events, "notifier_events_total", "category", "payments.alerts", "outcome", "dropped")
	n.awaitLeft(streamName, 0)
	fleet{n.worker}.awaitSum(0, "notifier_ack_pending")
	await(t, "the others in the room", func() error {
		if waiting := n.worker.scrape().sum("notifier_room_pending", "reason", "channel"); waiting != events {
			return fmt.Errorf("%d wait for their channel, want %d", waiting, events)
		}
		return nil
	})
	n.worker.awaitReady()
	n.wantNothingForged()
}
