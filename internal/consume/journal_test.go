package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fakeJournal asks for the first and the last entry of each call.
type fakeJournal struct {
	mu      sync.Mutex
	calls   int
	events  int
	entries []journal.Entry
}

func (j *fakeJournal) Record(category string, result journal.Result, level string, n int, entry func(i int, d journal.Detail) journal.Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, i := range slices.Compact([]int{0, n - 1}) {
		recorded := entry(i, journal.Full)
		recorded.Category, recorded.Result, recorded.Level = category, result, level
		j.entries = append(j.entries, recorded)
	}
	j.calls++
	j.events += n
}

func (j *fakeJournal) all() []journal.Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries)
}

// startWithJournal runs a worker with a journal.
func (f *fixture) startWithJournal(change func(*setup)) *fakeJournal {
	f.Helper()
	recorded := &fakeJournal{}
	f.start(func(o *setup) {
		o.Journal = recorded
		if change != nil {
			change(o)
		}
	})
	return recorded
}

// aboutEntry shows an entry without the place and the times of its event.
func aboutEntry(e journal.Entry) string {
	said := []string{string(e.Result)}
	for _, part := range []struct{ name, value string }{
		{"because", e.Reason}, {"by", e.Level}, {"of", e.Path}, {"key", e.Key}, {"limit", e.Limit}, {"to", e.Channel}, {"receipt", e.Receipt}, {"error", e.Error},
		{"mute", e.Mute},
	} {
		if part.value != "" {
			said = append(said, part.name+" "+part.value)
		}
	}
	if e.Size > 0 {
		said = append(said, fmt.Sprintf("%d of %d used", e.Used, e.Size))
	}
	if e.Cost > 0 {
		said = append(said, fmt.Sprintf("cost %d", e.Cost))
	}
	if !e.Next.IsZero() {
		said = append(said, "next slot known")
	}
	return strings.Join(said, ", ")
}

// fullLimit is a denial by a limit of ten taken slots.
func fullLimit() store.Decision {
	return store.Decision{
		Verdict: store.Denied, Node: limits.Node{Level: "category", Path: "payments"}, Limit: limits.Limit{Count: 10, Window: time.Hour},
		Used: 10, Wait: time.Minute,
	}
}

const fullFacts = "by category, of payments, limit 10/1h"

type journalCase struct {
	setUp   func(*fixture)
	body    string // "" for an event with the ID order-1
	options func(*setup)
	want    []string
}

var journalCases = map[string]journalCase{
	"sent": {setUp: func(f *fixture) { f.sink.receipt = `{"channel":"C1","ts":"1.5","text":"secret"}` }, want: []string{"sent, to payments, receipt C1 1.5"}},
	"dropped": {
		setUp: func(f *fixture) { f.throttle.answers(always(fullLimit())) },
		want:  []string{"dropped, " + fullFacts + ", to payments, 10 of 10 used, next slot known"},
	},
	"dropped undecoded": {
		setUp: func(f *fixture) {
			full := fullLimit()
			f.known.full = func(string) *store.Denial { return full.Denial(time.Now()) }
		},
		body: `{"id": "order-1", "title": "an event", "cost": 3}`,
		want: []string{"dropped, " + fullFacts + ", to payments, 10 of 10 used, cost 3, next slot known"},
	},
	"dropped by a limit of each key": {
		setUp: func(f *fixture) {
			f.throttle.answers(func(c store.Request) store.Decision {
				full := fullLimit()
				full.Node.Level, full.Node.Key = "payments@key", limits.HashOfKey(c.Key)
				return full
			})
		},
		body: `{"id": "order-1", "title": "an event", "key": "db-1"}`,
		want: []string{"dropped, by payments@key, of payments, key db-1, limit 10/1h, to payments, 10 of 10 used, next slot known"},
	},
	"dropped since too many wait": {
		setUp:   func(f *fixture) { f.denyFirst(refuse(store.TooMany)) },
		options: mayDelay,
		want:    []string{"dropped, because too many events waited already, by the rule, limit 10/1h, to payments, 0 of 10 used, next slot known"},
	},
	"dropped since the slot of its key opens too late": {
		setUp: func(f *fixture) {
			full := fullLimit()
			full.Node.Level, full.Node.Key = "payments@key", limits.HashOfKey("db-1")
			f.throttle.answers(always(full))
			f.throttle.delay = refuse(store.TooLate)
		},
		body:    `{"id": "order-1", "title": "an event", "key": "db-1"}`,
		options: mayDelay,
		want: []string{"dropped, because no slot opened for it within NOTIFIER_DELAY, by payments@key, of payments, key db-1, limit 10/1h, to payments, " +
			"10 of 10 used, next slot known"},
	},
	"dropped since it is larger than the room accepts": {
		setUp: func(f *fixture) {
			f.smallRoom()
			f.denyFirst(comeBackIn(time.Hour))
		},
		body:    `{"id": "order-1", "title": "an event", "text": "` + strings.Repeat("x", 450) + `"}`,
		options: mayDelay,
		want:    []string{"dropped, because " + journal.TooLarge + ", by the rule, limit 10/1h, to payments, 0 of 10 used, next slot known"},
	},
	"dropped by a mute": {
		setUp: func(f *fixture) { f.mutes.mute("payments") },
		want:  []string{"dropped, because ann: migration, by mute, of payments, to payments, mute 5:7"},
	},
	"sent in shadow mode": {
		setUp: func(f *fixture) {
			f.throttle.answers(func(c store.Request) store.Decision {
				full := fullLimit()
				full.Grant = f.throttle.grant(c)
				return full
			})
		},
		want: []string{"sent, " + fullFacts + ", to payments, 10 of 10 used, next slot known"},
	},
	"duplicate": {setUp: decided(store.Duplicate), want: []string{"duplicate"}},
	"expired":   {options: func(o *setup) { o.MaxAge = time.Nanosecond }, want: []string{"expired"}},
	"broken":    {body: `{"id": "order-1", "title": "an event", "severity": 5}`, want: []string{"dead, because bad_field"}},
	"rejected": {
		setUp: func(f *fixture) { f.fails(&sink.Error{Class: sink.Rejected, Code: "is_archived", Err: errScripted}) },
		want:  []string{"dead, because rejected, error scripted"},
	},
	"failed once": {
		setUp: func(f *fixture) {
			f.fails(&sink.Error{Class: sink.Transient, Err: errors.New("not sent:\nconnection refused")})
		},
		want: []string{"failed, because transient, to payments, error not sent: connection refused", "sent, to payments"},
	},
	"failed with a long error": {
		setUp: func(f *fixture) {
			f.fails(&sink.Error{Class: sink.Transient, Err: errors.New(strings.Repeat("x", 1000))})
		},
		want: []string{"failed, because transient, to payments, error " + strings.Repeat("x", outcome.MaxError-1) + "…", "sent, to payments"},
	},
	"waited for a slot": {
		setUp: func(f *fixture) {
			f.throttle.answers(func(c store.Request) store.Decision {
				if c.HasWaited {
					return f.throttle.admit(c)
				}
				return fullLimit()
			})
			f.throttle.delay = comeBackIn(time.Second)
		},
		options: mayDelay,
		want:    []string{"waiting, because slot, " + fullFacts + ", 10 of 10 used, next slot known", "sent, to payments"},
	},
}

// fails fails the first post.
func (f *fixture) fails(failure error) {
	f.sink.send = func(_ context.Context, _ event.Event, attempt int) error {
		if attempt == 1 {
			return failure
		}
		return nil
	}
}

func TestJournal(t *testing.T) {
	t.Parallel()
	each(t, journalCases, func(t *testing.T, f *fixture, test journalCase) {
		if test.setUp != nil {
			test.setUp(f)
		}
		f.provision(usualAckWait)
		body := test.body
		if body == "" {
			body = `{"id": "order-1", "title": "an event"}`
		}
		const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
		before := time.Now()
		sequence := f.publish("notify.payments", body, "traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
		recorded := f.startWithJournal(test.options)
		f.eventually("all is recorded", func() bool { return len(recorded.all()) >= len(test.want) })
		f.requireEmpty()
		var said []string
		for _, entry := range recorded.all() {
			said = append(said, aboutEntry(entry))
			testkit.EqualSlices(t, []any{entry.ID, entry.Stream, entry.Sequence, entry.Category, entry.Title, entry.Revision, entry.Trace},
				[]any{"order-1", testNames.Stream, sequence, "payments", "an event", "1:2", trace}, "the event of %s", entry.Result)
			if entry.Stored.Before(before.Add(-time.Second)) || entry.Decided.Before(entry.Stored.Add(-time.Second)) || time.Until(entry.Decided) > time.Second {
				t.Errorf("times of %s: got %v and %v, want times of the test", entry.Result, entry.Stored, entry.Decided)
			}
		}
		testkit.EqualSlices(t, said, test.want, "recorded")
	})
}

// TestJournalOfSplitBody splits a group. The entry of each part names the producer's message.
func TestJournalOfSplitBody(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	sequence := f.publish("notify.payments", twoAlerts)
	recorded := f.startWithJournal(nil)
	f.eventually("all is recorded", func() bool { return len(recorded.all()) == 3 })
	results := make(map[journal.Result]int)
	for _, entry := range recorded.all() {
		results[entry.Result]++
		testkit.Equal(t, entry.Sequence, sequence, "sequence of what was %s", entry.Result)
		testkit.Equal(t, strings.Contains(entry.ID, "/"), entry.Result == journal.Sent, "the ID %q names a part", entry.ID)
	}
	testkit.EqualMaps(t, results, map[journal.Result]int{journal.Split: 1, journal.Sent: 2}, "results")
}

// TestJournalOfFlood drops a flood. The worker records the drops of a batch together.
func TestJournalOfFlood(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	f.known.full = fullFor("the rule", "")
	const flood = 1000
	f.publishAsync(flood, func(i int) (subject, body string) { return "notify.payments", fmt.Sprintf("event %d", i) })
	recorded := f.startWithJournal(nil)
	f.awaitSettled(flood)
	f.eventually("all is recorded", func() bool {
		recorded.mu.Lock()
		defer recorded.mu.Unlock()
		return recorded.events == flood
	})
	recorded.mu.Lock()
	defer recorded.mu.Unlock()
	testkit.AtMost(t, recorded.calls, flood/2, "calls")
}
