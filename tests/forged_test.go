package tests

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// command runs a command as the worker's user, and returns what it prints.
func (n *neighbours) command(arguments ...string) string {
	n.t.Helper()
	p := run(n.t, n.settings("HTTP_ADDR", "off").with(n.changes...), arguments...)
	p.want(0)
	return p.stdout.String()
}

// pushesOut is more messages than the bucket of live limits keeps of one key.
const pushesOut = 70

// forge has the hostile producer name each reply subject a number of times.
func (n *neighbours) forge(times int) {
	n.t.Helper()
	testkit.NoError(n.t, n.hostile.ForgeReplies(n.t.Context(), times*len(hostile.Replies(n.victim.subject))))
}

// prepare sets a limit for the victim, and gives it a post, a dead letter, and an event that waits for a slot.
func (n *neighbours) prepare() {
	n.t.Helper()
	n.command("limits", "set", "security", "2/1h", "--as", "ann")
	n.worker.alone().awaitLog(1, `"limits in force","revision":1`)
	n.victim.publish("{broken by security")
	n.awaitLettersOf("security", 1)
	n.awaitToVictim(n.publishAsVictim(2))
	n.publishAsVictim(1)
	n.awaitInRoom("notify-room.slot.security.>", 1)
}

// wantLimit wants the victim's limit in force, for the worker that runs and for one that starts.
func (n *neighbours) wantLimit() {
	n.t.Helper()
	testkit.Contains(n.t, "shown", n.command("limits"), "security  2/1h", "live")
	n.worker.stop()
	n.worker = n.startReady("worker again", n.changes...)
	n.worker.alone().awaitLog(1, `"security=2/1h"`)
	testkit.Contains(n.t, "shown", n.command("limits", "history"), "ann")
}

// TestForgedReplies has a producer with an account of its own publish with reply subjects of everybody. Nothing changes anywhere.
func TestForgedReplies(t *testing.T) {
	t.Parallel()
	n := startNeighbours(t, "LIMITS", "security=100/1h", "DELAY", "security.>=5h", "CATEGORY_LIMIT", "5/1h")
	n.prepare()
	history := n.command("limits", "history")
	n.forge(hostile.Times(t, pushesOut, pushesOut))
	n.awaitLeft(streamName, 0)
	testkit.Equal(t, n.command("limits", "history"), history, "history of the live limits")
	n.awaitLettersOf("security", 1)
	testkit.Equal(t, len(n.deadLetters()), 1, "dead letters")
	n.awaitInRoom("notify-room.>", 1)
	n.worker.alone().awaitSum(0, "notifier_forged_messages_total")
	n.wantLimit()
	testkit.Equal(t, len(n.toVictim()), 2, "posts to the victim's channel")
}

// TestForgedRepliesInASharedAccount has the producer share the workers' account. What the server stores of its acknowledgements in the room, the
// dead letters, the journal and the live limits is ignored, removed and counted, although no page reads the journal.
func TestForgedRepliesInASharedAccount(t *testing.T) {
	t.Parallel()
	n := startNeighboursOn(t, sharedAccount, "#security", "SLACK_ROUTES", "security=#security",
		"LIMITS", "security=100/1h", "DELAY", "security.>=5h", "CATEGORY_LIMIT", "5/1h", "JOURNAL_MAX_BYTES", "4MiB")
	n.prepare()
	n.forge(pushesOut)
	n.awaitLeft(streamName, 0)
	n.awaitInRoom("notify-room.>", 1)
	for _, place := range []string{"room", "dead_letters", "journal", "limits"} {
		testkit.Eventually(t, "forged messages are counted in "+place, func() bool {
			return n.worker.alone().sum("notifier_forged_messages_total", "place", place) > 0
		})
	}
	awaitNumber(t, 0, "forged dead letters", func() (int, error) { return n.onSubjects(deadStreamName, "notify-dlq.rejected.>") })
	n.worker.awaitReady()
	n.wantLimit()
	check := run(t, n.settings("HTTP_ADDR", "off").with(n.changes...), "check").stdout.String()
	testkit.Contains(t, "shown", check, `warn  nats account: ALL, to which others are connected too: `, `(user "payments")`)
	testkit.Equal(t, len(n.toVictim()), 2, "posts to the victim's channel")
}

// TestLostLimit has a producer in the workers' account push a live limit out of the bucket while no worker runs. A worker that starts takes no
// events and says why, until somebody sets the limit. It takes events although a mute is lost.
func TestLostLimit(t *testing.T) {
	t.Parallel()
	n := startNeighboursOn(t, sharedAccount, "#security", "SLACK_ROUTES", "security=#security", "LIMITS", "security=100/1h")
	n.command("limits", "set", "security", "2/1h")
	n.worker.alone().awaitLog(1, `"limits in force","revision":1`)
	n.worker.stop()
	n.forge(pushesOut)
	n.worker = n.startWorker("worker again", n.changes...)
	n.worker.awaitUnready("the live limit of security is not readable, and no earlier value is known")
	n.worker.alone().awaitLog(1, "live limits are unreadable: pulling no events")
	stored := testkit.Must(n.left(streamName))(t)
	n.publishAsVictim(3)
	testkit.Contains(t, "shown", n.command("status"), "not ready: ", "the live limit of global is not readable")
	testkit.Contains(t, "shown", n.command("limits"), "a worker that starts takes no events: the live limit of")
	check := run(t, n.settings("HTTP_ADDR", "off").with(n.changes...), "check")
	check.want(1)
	testkit.Contains(t, "shown", check.stdout.String(), "FAIL  live limits: a worker that starts takes no events: the live limit of")
	testkit.AtMost(t, stored+3-testkit.Must(n.left(streamName))(t), 0, "events were taken")
	for _, level := range []string{"security", "global"} {
		n.command("limits", "set", level, "3/1h")
	}
	n.worker.awaitReady()
	n.awaitLeft(streamName, 0)
	testkit.Equal(t, len(n.toVictim()) <= 3, true, "the victim's limit is in force")
	n.worker.alone().awaitLog(1, "a mute was overwritten by forged messages: set it again or remove it")
	testkit.Contains(t, "shown", n.command("mutes"), "security  not at all: forged messages have replaced it")
	testkit.Contains(t, "shown", n.command("unmute", "security"), "is removed")
	testkit.Contains(t, "shown", n.command("mutes"), "nothing is muted")
}
