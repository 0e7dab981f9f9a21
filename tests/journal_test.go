package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const journalStreamName = "NOTIFICATIONS_JOURNAL"

func (d *deployment) entries(q journal.Query) ([]journal.Entry, error) {
	reader := journal.Reader{JetStream: d.js, Names: journal.Names{Stream: journalStreamName, Subject: subjectPrefix}}
	ctx, cancel := context.WithTimeout(d.t.Context(), callTimeout)
	defer cancel()
	var found []journal.Entry
	read, err := reader.Search(ctx, []journal.Query{q}, func(_ int, e journal.Entry) { found = append(found, e) })
	if err == nil && read[0].Unreadable > 0 {
		err = fmt.Errorf("%d messages cannot be read", read[0].Unreadable)
	}
	slices.SortStableFunc(found, func(a, b journal.Entry) int { return a.Decided.Compare(b.Decided) })
	return found, err
}

// journalFailures keep workers from writing the journal.
var journalFailures = map[string]struct {
	setUp   func(*deployment)
	denied  string // to the worker
	changes []string
}{
	"absent": {setUp: func(d *deployment) {
		d.startReady("worker that makes the streams", "JOURNAL_AGE", "0", "NATS_USER", "admin", "NATS_PASSWORD", "admin").stop()
	}, changes: []string{"NATS_PROVISION", "false"}},
	"full": {setUp: func(d *deployment) {
		testkit.Must(d.js.CreateStream(d.t.Context(), jetstream.StreamConfig{
			Name: journalStreamName, Subjects: []string{"notify-journal.>"}, Discard: jetstream.DiscardNew, MaxBytes: 1,
		}))(d.t)
	}},
	"of others": {setUp: func(d *deployment) {
		testkit.Must(d.js.CreateStream(d.t.Context(), jetstream.StreamConfig{Name: journalStreamName, Subjects: []string{"others"}}))(d.t)
	}},
	"without permission": {denied: `"notify-journal.>", "$JS.API.STREAM.*.NOTIFICATIONS_JOURNAL"`},
}

// TestJournalCannotBeWritten wants a worker to deliver events without a journal, and one warning.
func TestJournalCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, test := range journalFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, user := withRights(t, fmt.Sprintf("publish: { deny: [%s] }", test.denied))
			if test.setUp != nil {
				test.setUp(d)
			}
			w := d.startReady("worker", append(user, test.changes...)...)
			workers := w.alone()
			for range 8 {
				d.publish("notify.payments", eventBody("an event"))
				time.Sleep(500 * time.Millisecond) // several times at which a worker publishes its entries
			}
			workers.awaitOutcomes(map[string]int{"sent": 1, "duplicate": 7})
			w.wantLogLines(1, "cannot write the journal")
			asked := run(t, d.settings(append(user, "HTTP_ADDR", "off")...), "why", "another event")
			asked.want(1, "another event: not known; the journal ", " is complete until ", "cannot write it: ", "entries are kept until it can, 0 are lost")
			workers.awaitReady()
			workers.awaitSum(0, "notifier_journal_lost_total") // they are kept for a while
			w.stop()
			w.wantLogLines(1, "lost journal entries")
		})
	}
}
