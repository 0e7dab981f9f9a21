package consume

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func TestOutcomesAreLogged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.answers(func(c store.Request) store.Decision {
		if c.Category == "payments.full" {
			return store.Decision{Verdict: store.Denied, Node: limits.Node{Path: "payments", Level: limits.LevelCategory}}
		}
		return f.throttle.admit(c)
	})
	f.start(nil)
	f.event("payments", "sent-1")
	f.event("payments.full", "dropped-1")
	f.publish("notify.payments", "{broken", "Nats-Msg-Id", "dead-1")
	f.awaitSettled(3)
	f.eventually("each has a line", func() bool { return f.log.Count("event has ended") == 3 })
	f.log.WantCount(t, 1, `id=sent-1 category=payments outcome=sent`)
	f.log.WantCount(t, 1, `id=dropped-1 category=payments.full outcome=dropped limit_level=category`)
	f.log.WantCount(t, 1, `id=dead-1 category=payments outcome=dead`)
}

// TestNoEventIsDecodedForTheLog has no debug lines, and a settlement without a message to decode.
func TestNoEventIsDecodedForTheLog(t *testing.T) {
	t.Parallel()
	r := &reporter{logger: slog.New(slog.DiscardHandler)}
	r.logOutcomes(settlement{outcome: journal.Dropped})
}

// TestShutdownLogsNoRecovery stops a worker during two faults. The end of its deliveries is no recovery. The event that waits for another attempt
// goes back at once, and keeps its slot.
func TestShutdownLogsNoRecovery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.send = inTurn(sink.Misconfigured)
	w := f.start(nil)
	sequence := f.event("payments", "refused")
	f.eventually("Slack refuses it", func() bool { return f.log.Count("sink refuses the setup") > 0 })
	w.stop()
	f.requireGivenBack(sequence)
	f.requireHistory("refused", "send", "release")
	f.requireOutcomes(nil)
	w.health.unsettled.Note(errors.New("too many")) // after the watcher has ended, which would note the true number
	w.health.unacknowledged(0, 20_000)
	for _, recovery := range []string{"sink accepts deliveries again", "JetStream delivers messages again"} {
		f.log.WantCount(t, 0, recovery)
	}
}
