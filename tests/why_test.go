package tests

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// whyAnswer is the output of `notifier why --json`.
type whyAnswer struct {
	Events []struct {
		ID        string
		Category  string
		State     string
		Sentences []string
		Entries   []journal.Entry
	}
	Totals []struct {
		Result string
		Level  string
		Count  int
	}
	Counted []string
	Missing string
	Unknown []string
}

// why asks `notifier why` one question.
func (d *deployment) why(arguments ...string) whyAnswer {
	d.t.Helper()
	answers := d.whyAll(arguments...)
	testkit.Equal(d.t, len(answers), 1, "answers to why %s", strings.Join(arguments, " "))
	return answers[0]
}

// whyAll asks `notifier why` several questions in one call.
func (d *deployment) whyAll(arguments ...string) (answers []whyAnswer) {
	d.t.Helper()
	asking := run(d.t, d.settings("HTTP_ADDR", "off"), append([]string{"why", "--json"}, arguments...)...)
	for decoder := json.NewDecoder(strings.NewReader(asking.stdout.String())); decoder.More(); {
		var answer whyAnswer
		testkit.NoError(d.t, decoder.Decode(&answer))
		testkit.EqualSlices(d.t, answer.Unknown, nil, "what could not be asked about %s", strings.Join(arguments, " "))
		answers = append(answers, answer)
	}
	return answers
}

// wantWhy wants an answer about one event, with a state and a text in its sentences.
func (d *deployment) wantWhy(state, says string, arguments ...string) {
	d.t.Helper()
	testkit.Await(d.t, "why "+strings.Join(arguments, " "), func() error { // workers write the journal after the outcome
		answer := d.why(arguments...)
		if len(answer.Events) != 1 || answer.Events[0].State != state || !strings.Contains(strings.Join(answer.Events[0].Sentences, "\n"), says) {
			return fmt.Errorf("got %+v, want %s and %q", answer, state, says)
		}
		return nil
	})
}

// TestWhy publishes an event for each state, and asks about each.
func TestWhy(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	rejectedPosts(d.slack)
	workers := d.startFleet(2, delaying("2/30m", "waits.>=1h,waits=1h", "SUMMARY_INTERVAL", "5s")...)
	for i := range 4 {
		outcome := map[bool]string{true: "sent", false: "dropped"}[i < 2]
		d.publishUntil(workers, outcome, "notify.payments.refunds", eventBody(fmt.Sprint("refund-", i)))
		if i == 0 {
			d.publishUntil(workers, "duplicate", "notify.payments.refunds", eventBody("refund-0"))
		}
	}
	d.publishUntil(workers, "dead", "notify.errors", eventBody("rejected-1"))
	d.publishUntil(workers, "dead", "notify.errors", "{broken", "Nats-Msg-Id", "broken-1", "Content-Type", "application/json")
	d.publishUntil(workers, "dropped", "notify.disks", resolved("over", "a"))
	d.publishUntil(workers, "sent", "notify.shop", cloudEvent("/shop/eu", "7", "stock is low"))
	before := workers.sum("notifier_events_total", "outcome", "sent")
	d.publish("notify.alerts", alertGroup("group-1", "Disk"))
	workers.awaitEvents(before+2, "outcome", "sent")
	for i := range 2 { // else any of the three may be the one that waits
		d.publishUntil(workers, "sent", "notify.waits", eventBody(fmt.Sprint("wait-", i)))
	}
	d.publish("notify.waits", eventBody("wait-2"))
	d.awaitInRoom("notify-room.slot.>", 1)

	d.wantWhy("sent", "sent at", "--seq", "1")
	d.wantWhy("dropped", "by category 2/30m", "refund-2")
	noted := d.why("refund-2").Events[0].Entries[0]
	testkit.EqualSlices(t, []any{noted.Level, noted.Path, noted.Limit, noted.Used, noted.Size, noted.Channel},
		[]any{"category", "payments", "2/30m", int64(2), int64(2), defaultChannel}, "what the journal has of a drop")
	d.wantWhy("dropped", "by category 2/30m", "refund-3", "--category", "payments.refunds")
	d.wantWhy("dead", "rejected: invalid_blocks", "rejected-1")
	d.wantWhy("dead", "notifier dlq replay 1 sends it again", "rejected-1")
	d.wantWhy("dead", "bad_json", "broken-1")
	d.wantWhy("dropped", "it resolves an event that was never posted", "over")
	d.wantWhy("sent", "sent at", "/shop/eu/7")
	d.wantWhy("sent", "sent at", "group-1/f2")
	d.wantWhy("waiting", "for a slot", "wait-2")
	d.wantWhy("waiting", "for a slot", "--seq", "13")
	testkit.EqualSlices(t, d.why("refund-0").outcomes(), []string{"duplicate", "sent"}, "outcomes of the messages with one ID")
	testkit.Equal(t, len(d.why("group-1").Events) >= 2, true, "alerts of a group are reported")
	d.awaitReported(defaultChannel, 3)
	testkit.Eventually(t, "the journal knows of the digest", func() bool {
		return strings.Contains(strings.Join(d.why("refund-2").Events[0].Sentences, "\n"), "by the digest of")
	})
	run(t, d.settings("CATEGORY_LIMIT", "2/30m"), "why", "refund-2").want(0, "refund-2  payments.refunds  \"event refund-2\"  stored ",
		"an event of payments.refunds would be denied now by category 2/30m: 2 of 2 used")
	// The limits and delays are those of the workers, whatever the settings of the command say.
	run(t, d.settings("DELAY", "payments=3h"), "why", "wait-2").want(0, "denied now by category 2/30m: 2 of 2 used",
		"by NOTIFIER_DELAY it would wait for a slot that opens within 1h behind the events that wait already, or be dropped")
	run(t, d.settings(), "why", "payments", "--since", "1h").want(0, "2 dropped by category", "2 sent", "1 duplicate")
	run(t, d.settings(), "why", "--title", "REFUND-3").want(0, "refund-3")
	run(t, d.settings(), "why", "refund-9").want(1, "not known")
}

// TestWhyWithoutTheJournal asks about a delivered event whose entry the journal has lost, as after the kill of its worker. The delivery record
// has the event, in one of the categories that the journal still knows.
func TestWhyWithoutTheJournal(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(1)
	for _, id := range []string{"lost-1", "3"} {
		d.publishUntil(workers, "sent", "notify.payments.refunds", eventBody(id))
		d.wantWhy("sent", "sent at", id)
	}
	testkit.NoError(t, testkit.Must(d.js.Stream(t.Context(), journalStreamName))(t).Purge(t.Context()))
	d.publishUntil(workers, "sent", "notify.payments.refunds", eventBody("kept-1"))
	d.wantWhy("sent", "sent at", "kept-1")
	d.wantWhy("sent", "the delivery record has it as delivered", "lost-1")
	d.wantWhy("sent", "the delivery record has it as delivered", "3") // the ID, although message 3 is another event
	d.wantWhy("sent", "sent at", "#3")
	run(t, d.settings(), "why", "lost-2").want(1, "not known")
}
