package tests

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const journalStreamName = "NOTIFICATIONS_JOURNAL"

// entries reads the journal.
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

// noted returns the results that the journal has of an event, in order.
func noted(entries []journal.Entry, id string) (results []string) {
	for _, entry := range entries {
		if entry.ID == id {
			results = append(results, strings.TrimSuffix(fmt.Sprintf("%s %s", entry.Result, entry.Reason), " "))
		}
	}
	return results
}

// awaitNoted waits until the journal has the wanted results, by event ID, and returns its entries.
func (d *deployment) awaitNoted(want map[string]string) (entries []journal.Entry) {
	d.t.Helper()
	testkit.Await(d.t, "the journal", func() (err error) {
		if entries, err = d.entries(journal.Query{}); err != nil {
			return err
		}
		for id, results := range want {
			if got := strings.Join(noted(entries, id), ", "); got != results {
				return fmt.Errorf("event %s: %q, want %q", id, got, results)
			}
		}
		return nil
	})
	return entries
}

// entryOf returns the entry of an event with a result.
func entryOf(t testing.TB, entries []journal.Entry, id string, result journal.Result) journal.Entry {
	t.Helper()
	for _, entry := range entries {
		if entry.ID == id && entry.Result == result {
			return entry
		}
	}
	t.Fatalf("the journal has no %s of %s", result, id)
	return journal.Entry{}
}

// TestJournal publishes an event for each result, and reads the entries.
func TestJournal(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "1/1h", "LIMITS", "waits=1/3s,free=none", "DELAY", "waits=1m")
	workers := w.alone()
	begin := time.Now()
	d.publishUntil(workers, "sent", "notify.payments", `{"id":"first","title":"event first","status":"firing","key":"card"}`)
	d.publishUntil(workers, "dropped", "notify.payments", eventBody("second"))
	d.publishUntil(workers, "dropped", "notify.payments", eventBody("third")) // by the deny cache
	d.publishUntil(workers, "dead", "notify.free", `{"id":"broken","title":"x","severity":5}`)
	d.publishUntil(workers, "sent", "notify.waits", eventBody("fourth"))
	d.publishUntil(workers, "sent", "notify.waits", eventBody("fifth"))
	d.slack.Script(slacktest.Status(http.StatusServiceUnavailable, ""))
	d.publishUntil(workers, "sent", "notify.free", eventBody("sixth"))
	d.publishUntil(workers, "duplicate", "notify.free", eventBody("sixth"))
	d.slack.Script(slacktest.Code("msg_too_long"))
	d.publishUntil(workers, "dead", "notify.free", eventBody("seventh"))
	entries := d.awaitNoted(map[string]string{
		"first": "sent", "second": "dropped", "third": "dropped", "broken": "dead bad_field",
		"fourth": "sent", "fifth": "waiting slot, sent", "sixth": "failed unknown, sent, duplicate", "seventh": "dead rejected",
	})

	sent := entryOf(t, entries, "first", journal.Sent)
	testkit.EqualSlices(t, []any{sent.Category, sent.Title, sent.Channel}, []any{"payments", "event first", defaultChannel}, "what was sent")
	if !strings.HasPrefix(sent.Receipt, "C") || sent.Instance == "" {
		t.Errorf("got the receipt %q of the instance %q, want the ID of a channel, and an instance", sent.Receipt, sent.Instance)
	}
	for _, id := range []string{"second", "third"} {
		dropped := entryOf(t, entries, id, journal.Dropped)
		testkit.EqualSlices(t, []any{dropped.Level, dropped.Path, dropped.Limit, dropped.Used, dropped.Size, dropped.Channel},
			[]any{"category", "payments", "1/1h", int64(1), int64(1), defaultChannel}, "what was dropped")
		if opens := dropped.Next.Sub(begin); opens < 59*time.Minute || opens > time.Hour+patience {
			t.Errorf("the slot for %s opens in %v", id, opens)
		}
	}
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
