package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const (
	mostWorse  = 250 * time.Millisecond // by which an attack may delay a neighbour's event, at the 99th percentile
	mostMemory = 200 << 20              // of a worker under attack, in bytes
)

// TestNeighbours has a hostile producer attack in each way, while its neighbour publishes at a steady pace. The neighbour's events are posted
// once each. The worker's memory stays below its bound, without GOMEMLIMIT. A forced test bounds the delay of the neighbour's events, too. If
// NATS itself delivers the attack later than that, the bound is mostWorse more than twice the delay in a loop that only acknowledges: a worker
// stores a large message a second time.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	for _, attack := range hostile.Attacks {
		t.Run(attack.Name, func(t *testing.T) {
			t.Parallel()
			n := startAttacked(t, "GLOBAL_LIMIT", "none", "LIMITS", "security=none,security.alerts=none")
			least, pace := hostile.Times(t, 10, 20), 50*time.Millisecond
			times := hostile.Times(t, max(1, attack.Seen/40), attack.Seen)
			do := func() error { return attack.Do(n.hostile, t.Context(), times) }
			during := func(attack func() error) []time.Duration { // from the confirmation that an event of the victim is stored to its post
				return n.took(n.during(attack, least, 0, pace), n.acked)
			}
			alone := during(func() error { return nil })
			attacked := during(do)
			n.wantNothingForged()
			memory := n.worker.peakMemory()
			t.Logf("p99 alone %v, under attack %v; worst %v; worker's memory %d MiB; of the attack's %d messages %d were stored, %d refused and %d "+
				"not answered; %d times an event of the victim was refused", percentile(alone, 99), percentile(attacked, 99), percentile(attacked, 100),
				memory>>20, times, n.hostile.Stored(), n.hostile.Refused(), n.hostile.Unanswered(), n.refused)
			testkit.AtMost(t, memory, mostMemory, "bytes of memory")
			if allowed := percentile(alone, 99) + mostWorse; hostile.Forced() && percentile(attacked, 99) > allowed {
				n.worker.stop()
				arrived := n.acknowledgeAll()
				ids := n.publishDuring(do, least, 0, pace)
				bare := delays(ids, n.acked, arrived())
				t.Logf("p99 of a loop that only acknowledges %v", percentile(bare, 99))
				testkit.AtMost(t, percentile(attacked, 99), max(allowed, 2*percentile(bare, 99)+mostWorse), "delay under attack, at the 99th percentile")
			}
		})
	}
}

// acknowledgeAll takes the messages of the worker's consumer and does nothing but acknowledge them. It returns a function that ends this and
// returns when each event of the victim arrived.
func (n *neighbours) acknowledgeAll() (arrived func() map[string]time.Time) {
	n.t.Helper()
	const bytesAtOnce = 4 << 20      // as a worker requests
	at := make(map[string]time.Time) // by body
	taking, err := testkit.Must(n.js.Consumer(n.t.Context(), streamName, consumerName))(n.t).Consume(func(m jetstream.Msg) {
		if m.Subject() == n.victim.subject {
			at[string(m.Data())] = time.Now()
		}
		_ = m.Ack()
	}, jetstream.PullMaxMessagesWithBytesLimit(500, bytesAtOnce))
	testkit.NoError(n.t, err)
	return func() map[string]time.Time {
		taking.Drain()
		<-taking.Closed()
		arrived := make(map[string]time.Time)
		for id := range n.acked {
			arrived[id] = at[eventBody(id)]
		}
		return arrived
	}
}

// startAttacked starts a worker for one attack. A forced attack meets the default bounds of the streams: a small stream would refuse most of
// its messages.
func startAttacked(t *testing.T, changes ...string) *neighbours {
	t.Helper()
	if !hostile.Forced() {
		return startNeighbours(t, changes...)
	}
	d := deploy(t, servertest.StartNATSProcess(t, twoTeams), nats.UserInfo("worker", "secret"))
	return startNeighboursWith(t, d, "#security", append([]string{"NATS_USER", "worker", "NATS_PASSWORD", "secret", "SLACK_ROUTES", "security=#security"}, changes...)...)
}

// took returns how long each event took from a time of its own to the post, the fastest first.
func (n *neighbours) took(ids []string, since map[string]time.Time) []time.Duration {
	posted := make(map[string]time.Time)
	for _, post := range n.toVictim() {
		posted[post.Origin("id")] = post.Received
	}
	return delays(ids, since, posted)
}

// delays returns how long each event took, the fastest first.
func delays(ids []string, since, until map[string]time.Time) []time.Duration {
	took := make([]time.Duration, 0, len(ids))
	for _, id := range ids {
		took = append(took, until[id].Sub(since[id]))
	}
	slices.Sort(took)
	return took
}

func percentile(took []time.Duration, percent int) time.Duration {
	return took[(len(took)*percent+99)/100-1].Round(time.Millisecond)
}
