package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const (
	mostWorse  = 250 * time.Millisecond // by which an attack may delay a neighbour's event, at the 99th percentile
	mostMemory = 200 << 20              // of a worker under attack, in bytes
)

// TestNeighbours has a hostile producer attack in each way, while its neighbour publishes at a steady pace. The neighbour's events are posted
// once each. The worker's memory stays below its bound, without GOMEMLIMIT. A forced test bounds the delay of the neighbour's events, too.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	for _, attack := range hostile.Attacks {
		t.Run(attack.Name, func(t *testing.T) {
			t.Parallel()
			n := startAttacked(t, "GLOBAL_LIMIT", "none", "LIMITS", "security=none,security.alerts=none")
			during := func(attack func() error) []time.Duration { // from the confirmation that an event of the victim is stored to its post
				return n.took(n.during(attack, hostile.Times(t, 10, 20), 0, 50*time.Millisecond), n.acked)
			}
			alone := during(func() error { return nil })
			times := hostile.Times(t, max(1, attack.Seen/40), attack.Seen)
			attacked := during(func() error { return attack.Do(n.hostile, t.Context(), times) })
			n.wantNothingForged()
			memory := n.worker.peakMemory()
			t.Logf("p99 alone %v, under attack %v; worst %v; worker's memory %d MiB; of the attack's %d messages %d were stored, %d refused and %d "+
				"not answered; %d times an event of the victim was refused", percentile(alone, 99), percentile(attacked, 99), percentile(attacked, 100),
				memory>>20, times, n.hostile.Stored(), n.hostile.Refused(), n.hostile.Unanswered(), n.refused)
			testkit.AtMost(t, memory, mostMemory, "bytes of memory")
			if hostile.Forced() {
				testkit.AtMost(t, percentile(attacked, 99)-percentile(alone, 99), mostWorse, "delay by the attack, at the 99th percentile")
			}
		})
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
	arrived := make(map[string]time.Time)
	for _, post := range n.toVictim() {
		arrived[post.Origin("id")] = post.Received
	}
	took := make([]time.Duration, 0, len(ids))
	for _, id := range ids {
		took = append(took, arrived[id].Sub(since[id]))
	}
	slices.Sort(took)
	return took
}

func percentile(took []time.Duration, percent int) time.Duration {
	return took[(len(took)*percent+99)/100-1].Round(time.Millisecond)
}
