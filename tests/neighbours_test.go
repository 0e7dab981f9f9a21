package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// smallStore is a file store of 64 MB.
const smallStore = `
	jetstream { max_file_store: 64MB }`

// deploySmall starts servers with smallStore and the users of accounts, and returns settings of a worker that fit into the store.
func deploySmall(t testing.TB, accounts string) (*deployment, []string) {
	t.Helper()
	return deploy(t, servertest.StartNATSProcess(t, smallStore+accounts), nats.UserInfo("worker", "secret")),
		[]string{"NATS_USER", "worker", "NATS_PASSWORD", "secret", "STREAM_MAX_BYTES", "24MiB", "DLQ_MAX_BYTES", "12MiB", "ROOM_MAX", "20000"}
}

// neighbours are a hostile producer and a victim. Each may publish to its own subjects alone.
type neighbours struct {
	*deployment
	hostile *hostile.Producer
	victim  *team
	worker  *worker
	changes []string             // to the worker's settings
	channel string               // the victim's
	stored  map[string]time.Time // when the victim published each of its events
	acked   map[string]time.Time // when the server had confirmed that it is stored
	refused int                  // how often the server refused one of them
}

// startNeighbours starts a worker that posts the victim's events to another channel.
func startNeighbours(t testing.TB, changes ...string) *neighbours {
	t.Helper()
	return startNeighboursOn(t, twoTeams, "#security", append([]string{"SLACK_ROUTES", "security=#security"}, changes...)...)
}

// startNeighboursOn starts a worker on NATS with accounts. The worker posts the victim's events to a channel.
func startNeighboursOn(t testing.TB, accounts, channel string, changes ...string) *neighbours {
	t.Helper()
	d, settings := deploySmall(t, accounts)
	return startNeighboursWith(t, d, channel, append(settings, changes...)...)
}

func startNeighboursWith(t testing.TB, d *deployment, channel string, changes ...string) *neighbours {
	t.Helper()
	n := &neighbours{deployment: d, channel: channel, changes: changes, stored: make(map[string]time.Time), acked: make(map[string]time.Time)}
	n.worker = d.startReady("worker", n.changes...)
	payments := d.team("payments")
	n.victim = d.team("security")
	n.hostile = &hostile.Producer{JetStream: payments.js, Subject: payments.subject, Victim: n.victim.subject}
	for i := range 100 {
		n.hostile.IDs = append(n.hostile.IDs, fmt.Sprintf("security-%d", i))
	}
	return n
}

// publishAsVictim publishes events of the victim, again after each refusal of a full stream, and returns the IDs.
func (n *neighbours) publishAsVictim(count int) (ids []string) {
	n.t.Helper()
	for range count {
		id := fmt.Sprintf("security-%d", len(n.stored))
		testkit.Await(n.t, "room for the victim's event in the stream", func() error {
			n.stored[id] = time.Now()
			_, err := n.victim.js.Publish(n.t.Context(), n.victim.subject, []byte(eventBody(id)))
			if err != nil {
				n.refused++
			}
			n.acked[id] = time.Now()
			return err
		})
		ids = append(ids, id)
	}
	return ids
}

// during publishes as publishDuring does, and waits until each event of the victim is posted once.
func (n *neighbours) during(attack func() error, least, left int, pace time.Duration) (ids []string) {
	n.t.Helper()
	ids = n.publishDuring(attack, least, left, pace)
	n.awaitToVictim(ids)
	return ids
}

// publishDuring has the victim publish at a pace until an attack has ended, at most so many messages are left in the stream, and the victim has
// published the least number of events.
func (n *neighbours) publishDuring(attack func() error, least, left int, pace time.Duration) (ids []string) {
	n.t.Helper()
	const longest = 15 * time.Minute
	ended := make(chan error, 1)
	go func() { ended <- attack() }()
	began := time.Now()
	waiting := func() int { return testkit.Must(n.left(streamName))(n.t) }
	for done := false; !done || len(ids) < least || waiting() > left; time.Sleep(pace) {
		ids = append(ids, n.publishAsVictim(1)...)
		select {
		case err := <-ended:
			testkit.NoError(n.t, err)
			done = true
		default:
		}
		if time.Since(began) > longest {
			n.t.Fatalf("%d messages are left in the stream %v after the attack began", waiting(), longest)
		}
	}
	return ids
}

// wantUnharmed has the hostile producer attack. Each event of the victim is posted once and in time. An event waits for earlier messages of the
// stream, so the bound grows with the factor harder.
func (n *neighbours) wantUnharmed(attack func(context.Context, int) error, times, harder int) {
	n.t.Helper()
	n.wantInTime(n.during(func() error { return attack(n.t.Context(), times) }, 30, 30, 100*time.Millisecond), harder)
}

// wantInTime bounds the time of events from the accepted publish to the post. Forced attacks run on an idle machine, and have bounds of
// seconds, multiplied by times.
func (n *neighbours) wantInTime(ids []string, times int) {
	n.t.Helper()
	median, worst := patience/2, patience
	if hostile.Forced() {
		median, worst = time.Duration(times)*time.Second, time.Duration(times)*3*time.Second
	}
	took := n.took(ids, n.stored)
	middle, last := took[len(took)/2], took[len(took)-1]
	n.t.Logf("%d events of the victim took %v at the median and %v at the worst; %d times one was refused by the server", len(ids), middle, last, n.refused)
	testkit.AtMost(n.t, middle, median, "time of the victim's events at the median")
	testkit.AtMost(n.t, last, worst, "time of the victim's events at the worst")
}

// awaitToVictim waits until the victim's channel has one post of each event.
func (n *neighbours) awaitToVictim(ids []string) {
	n.t.Helper()
	testkit.Await(n.t, "the victim's posts", func() error {
		posted := count(n.toVictim(), "id")
		for _, id := range ids {
			if posted[id] != 1 {
				return fmt.Errorf("%s was posted %d times", id, posted[id])
			}
		}
		return nil
	})
}

func (n *neighbours) toVictim() []slacktest.Post { return postsTo(n.slack.Posts(), n.channel) }

// wantNothingForged wants the victim's channel to have one post of each event of the victim, and no other post.
func (n *neighbours) wantNothingForged() {
	n.t.Helper()
	for _, post := range n.toVictim() {
		if id := post.Origin("id"); n.stored[id].IsZero() || strings.Contains(fmt.Sprint(post), "hostile") {
			n.t.Errorf("%q was posted to the victim's channel", fmt.Sprint(post))
		}
	}
	testkit.Equal(n.t, len(n.toVictim()), len(n.stored), "posts to the victim's channel")
	n.worker.alone().awaitEvents(len(n.stored), "category", "security.alerts", "outcome", "sent")
}

func (n *neighbours) awaitLettersOf(first string, want int) {
	n.t.Helper()
	awaitNumber(n.t, want, "dead letters of "+first, func() (int, error) { return n.onSubjects(deadStreamName, "notify-dlq.*."+first) })
}
