package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestStreamCommandsOfProducers has a producer send headers that command NATS, while events of another producer wait for slots.
func TestStreamCommandsOfProducers(t *testing.T) {
	t.Parallel()
	events, attacks := hostile.Times(t, 10, 22), hostile.Times(t, 200, 200)
	n := startNeighbours(t, "CATEGORY_LIMIT", "none", "GLOBAL_LIMIT", "none", "LIMITS", fmt.Sprintf("security.alerts=%d/3s", events/5),
		"DELAY", "security.>=5m")
	ids := n.publishAsVictim(events)
	for _, attack := range []func(context.Context, int) error{n.hostile.RollUp, n.hostile.Schedule, n.hostile.Forge} {
		testkit.NoError(t, attack(t.Context(), attacks))
	}
	testkit.AtLeast(t, n.hostile.Refused(), int64(attacks)*3/2, "refused messages that command the server")
	n.awaitToVictim(ids)
	n.wantNothingForged()
	n.worker.alone().awaitSum(0, "notifier_vanished_total")
}

// TestDeadLettersOfProducers has a producer send more bad messages than the dead-letter stream holds. The dead letters of others stay.
func TestDeadLettersOfProducers(t *testing.T) {
	t.Parallel()
	n := startNeighbours(t, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none")
	n.victim.publish("{broken by security")
	n.awaitLettersOf("security", 1)
	n.wantUnharmed(n.hostile.EmptyAlerts, hostile.Times(t, 50, 50), 1)
	n.wantUnharmed(n.hostile.Garble, hostile.Times(t, 100, 68), 1)
	n.awaitEmpty()
	n.worker.alone().awaitSum(int(n.hostile.Stored()), "notifier_events_total", "category", "payments.alerts", "outcome", "dead")
	n.awaitLettersOf("security", 1)
	n.worker.awaitReady()
	n.awaitToVictim(n.publishAsVictim(5))
	n.wantNothingForged()
}

// TestWaitingHoldsUpNobody floods a paused channel, and then resolves keys that are not open, while another category posts to another
// channel. Workers drop events beyond ROOM_MAX.
func TestWaitingHoldsUpNobody(t *testing.T) {
	t.Parallel()
	const mayWait, seen = 20_000, 25_000
	events := hostile.Times(t, 3000, seen)
	harder := max(1, events/seen)
	n := startNeighbours(t, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none", "SLACK_RATE", "20/s", "ROOM_MAX", fmt.Sprint(mayWait))
	n.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		if post.Channel == defaultChannel {
			return slacktest.RateLimited(time.Hour)
		}
		return slacktest.OK()
	})
	w := n.worker.alone()
	n.wantUnharmed(n.hostile.Flood, events, harder)
	flooded := int(n.hostile.Stored()) // what the full stream refused is not there
	n.wantUnharmed(n.hostile.Resolve, events, harder)
	n.awaitLeft(streamName, 0)
	resolved := int(n.hostile.Stored()) - flooded
	w.awaitSum(max(0, flooded-mayWait)+resolved, "notifier_events_total", "category", "payments.alerts", "outcome", "dropped")
	w.awaitSum(0, "notifier_ack_pending")
	w.awaitSum(min(flooded, mayWait), "notifier_room_pending", "reason", "channel")
	n.worker.awaitReady()
	ids := n.publishAsVictim(30) // beside all that waits
	n.awaitToVictim(ids)
	n.wantInTime(ids, 1)
	n.wantNothingForged()
}

// TestPathsOfProducers has a producer invent subcategories of a full limit, for a channel that it shares with another producer, at Slack's
// pace. The other producer's events do not wait behind the digests.
func TestPathsOfProducers(t *testing.T) {
	t.Parallel()
	const slots, interval = 3, 5 * time.Second
	n := startNeighboursOn(t, twoTeams, defaultChannel, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none", "LIMITS", fmt.Sprintf("payments=%d/1h", slots),
		"SLACK_RATE", "1/s", "SUMMARY_INTERVAL", interval.String())
	attacked := make(chan error, 1)
	go func() { attacked <- n.hostile.Subcategories(t.Context(), hostile.Times(t, 1000, 5000)) }()
	var ids []string
	for range 5 {
		ids = append(ids, n.publishAsVictim(1)...)
		time.Sleep(2 * time.Second) // the pace of a producer: the channel takes twice as many
	}
	n.awaitToVictim(ids)
	n.wantInTime(ids, 1)
	testkit.NoError(t, <-attacked)
	dropped := int(n.hostile.Stored()) - slots
	n.awaitReported(defaultChannel, dropped)
	n.worker.alone().awaitSum(dropped, "notifier_events_total", "outcome", "dropped")
	digests := n.digests(defaultChannel)
	wantApart(t, digests, interval)
	for _, d := range digests {
		d.wantSum(t)
	}
	testkit.Equal(t, len(notifications(n.toVictim())), slots+len(ids), "posts beside the digests")
}
