package cli

import (
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// whyKit is a deployment without workers. The test writes what workers would write.
type whyKit struct {
	*testing.T
	js    jetstream.JetStream
	store *store.Redis
	begin time.Time // when all events were stored
}

// newWhyKit starts a deployment with all streams and two slots for each category, and sets the settings to it.
func newWhyKit(t *testing.T) whyKit {
	t.Helper()
	natsServer, redisServer := limitsServers(t, map[string]string{"CATEGORY_LIMIT": "2/30m"})
	return newWhyKitOf(t, natsServer, redisServer)
}

// newWhyKitOf makes all streams on servers that the settings name.
func newWhyKitOf(t *testing.T, natsServer *servertest.NATS, redisServer *servertest.Redis) whyKit {
	t.Helper()
	k := whyKit{T: t, js: servertest.JetStream(t, natsServer.URL), begin: time.Now().Add(-time.Minute).Truncate(time.Millisecond)}
	createDeadLetters(t, k.js)
	settings := loadSettings(t)
	testkit.Must(k.js.CreateStream(t.Context(), setup.Names(settings).StreamConfig()))(t)
	client := redis.NewClient(&redis.Options{Addr: redisServer.Addr})
	t.Cleanup(func() { _ = client.Close() })
	k.store = setup.Store(client, settings.Redis, store.Settings{
		Tree: testkit.Must(limits.NewTree(settings.Limits.Plan()))(t), Lease: time.Minute, Retention: time.Hour,
	})
	return k
}

// JournalLost does nothing. The tests look at what was published.
func (whyKit) JournalLost(int) {}

// note writes entries to the journal, as a worker does.
func (k whyKit) note(entries ...journal.Entry) {
	k.Helper()
	settings := loadSettings(k.T)
	at := journal.Names{
		Stream: settings.Journal.Stream, Subject: settings.NATS.Subject, Age: settings.Journal.Age, MaxBytes: settings.Journal.MaxBytes, Replicas: 1,
	}
	testkit.NoError(k, at.Provision(k.Context(), k.js))
	recorder := journal.NewRecorder(journal.Options{
		Publisher: k.js, Names: at, Instance: "worker-1", Logger: slog.New(slog.DiscardHandler), Metrics: k,
	})
	for _, e := range entries {
		recorder.Record(e.Category, e.Result, e.Level, 1, func(int, journal.Detail) journal.Entry { return e })
	}
	recorder.Run(testkit.Ended(k))
}

// refund is an entry of the event that most tests ask about.
func (k whyKit) refund(result journal.Result, after time.Duration) journal.Entry {
	return journal.Entry{
		ID: "evt-4711", Stream: "NOTIFICATIONS", Sequence: 4711, Category: "payments.refunds", Title: "card declined", Result: result,
		Revision: "1:2", Stored: k.begin, Decided: k.begin.Add(after), Channel: "#payments",
	}
}

func (k whyKit) drop() journal.Entry {
	e := k.refund(journal.Dropped, 6*time.Millisecond)
	e.Level, e.Limit, e.Used, e.Size, e.Next, e.Round = "category", "2/30m", 2, 2, k.begin.Add(30*time.Minute), 7
	return e
}

var clockTimes = regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(\.\d{3})?`)

// requireWhy runs a command line and compares its output, with T for each time.
func (k whyKit) requireWhy(status int, line, want string) {
	k.Helper()
	output, problems, err := execute(k.Context(), "", strings.Split("why "+line, " ")...)
	testkit.Equal(k, ExitStatus(err, io.Discard), status, "why %s: status (%v)", line, err)
	testkit.Equal(k, problems, "", "why %s: problems", line)
	testkit.Equal(k, clockTimes.ReplaceAllString(output, "T"), strings.TrimPrefix(want, "\n"), "why %s prints", line)
}

// answer runs a command line and decodes its JSON.
func (k whyKit) answer(line string) (answer why.Answer) {
	k.Helper()
	output, _, _ := execute(k.Context(), "", strings.Split("why --json "+line, " ")...)
	err := json.Unmarshal([]byte(output), &answer)
	testkit.Require(k, err == nil, "why %s: %v: %s", line, err, output)
	return answer
}

const freeAgain = "an event of payments.refunds would be sent now: global 0 of 100 used, payments 0 of 2 used\n"

func TestWhyDropped(t *testing.T) {
	k := newWhyKit(t)
	k.note(k.drop(), journal.Entry{
		Result: journal.Digest, Channel: "#payments", Count: 38, Stored: k.begin, LastStored: k.begin.Add(time.Second), Decided: k.begin.Add(2 * time.Second),
		Rounds: "worker-1 5 7",
	})
	want := `
evt-4711  payments.refunds  "card declined"  stored T
dropped at T by category 2/30m: 2 of 2 used, the next slot opens at T
reported in #payments by the digest of T (38 suppressed)
(message 4711 of NOTIFICATIONS, limits 1:2, worker worker-1)

` + freeAgain
	for _, line := range []string{"evt-4711", "--seq 4711", "evt-4711 --category payments", "evt-4711 --category payments.refunds"} {
		k.requireWhy(OK, line, want)
	}
	for _, line := range []string{"4711", "#4711"} {
		testkit.Equal(t, k.answer(line).Asked.Sequence, uint64(4711), "the message that %s asks for", line)
	}
	requireFailure(t, Failure, "why evt-4711 --category orders")
	testkit.Equal(t, k.answer("evt-4711").Events[0].State, why.State(journal.Dropped), "state")
}

// The answer about a category has the number of events by outcome, and the newest events.
func TestWhyCategory(t *testing.T) {
	k := newWhyKit(t)
	sent := k.refund(journal.Sent, time.Second)
	sent.ID, sent.Sequence = "payments", 4700 // an ID that is also a category
	waited := sent
	waited.Result, waited.Reason, waited.Level, waited.Limit, waited.Decided = journal.Waiting, "slot", "category", "2/30m", k.begin
	hostile := k.drop()
	hostile.ID, hostile.Category, hostile.Title, hostile.Channel = "evt-\x1b[2J", "orders", "\x1b]0;x\x07 sold\u202e out", ""
	again := k.drop()
	again.ID, again.Sequence = "evt-4710", 4710
	k.note(k.drop(), again, waited, sent, hostile)
	payments := `
2 dropped by category 2/30m
1 began to wait for a slot of category 2/30m
1 sent

began to wait for a slot of category 2/30m; sent to #payments
  T  payments  payments.refunds  "card declined"

dropped by category 2/30m: 2 of 2 used, the next slot opens at T; no digest in #payments has reported it, as far as the journal knows
  T  evt-4710  payments.refunds  "card declined"
  T  evt-4711  payments.refunds  "card declined"

an event of payments would be sent now: global 0 of 100 used, payments 0 of 2 used
`
	k.requireWhy(OK, "--category payments --since 2h", payments)
	k.requireWhy(OK, "--category payments", payments)
	testkit.Equal(t, k.answer("payments").Asked.Category, "payments", "the category asked for, although an event has that ID")
	testkit.Equal(t, k.answer("payments --category payments").Asked.ID, "payments", "the ID asked for")
	output, _, _ := execute(t.Context(), "", "why", "orders")
	testkit.Check(t, !strings.ContainsAny(output, "\x1b\x07\u202e"), "got %q, want no control characters", output)
	for line, want := range map[string]int{
		"--title DECLINED": 3, "--title sold": 1, "orders --title sold": 1, "payments --title sold": 0, "--since 1ms": 0, "--since 1h": 4,
	} {
		testkit.Equal(t, len(k.answer(line).Events), want, "events of %s", line)
	}
}

// An expired event is explained by the setting that bounds the age of its category.
func TestWhyExpired(t *testing.T) {
	k := newWhyKit(t)
	k.note(k.refund(journal.Expired, time.Hour))
	for delay, want := range map[string]string{
		"": "NOTIFIER_EVENT_MAX_AGE", "payments.refunds=59m": "NOTIFIER_EVENT_MAX_AGE",
		"payments.refunds=6h": "NOTIFIER_DELAY and a minute", "security=6h": "NOTIFIER_EVENT_MAX_AGE",
	} {
		t.Setenv("NOTIFIER_DELAY", delay)
		testkit.Contains(t, "why with the delay "+delay, mustRun(t, "", "why", "evt-4711"), ": it had become older than "+want+"\n")
	}
}

// wait stores an event in the room as a worker does.
func (k whyKit) wait(reason room.Reason, id, body string, due time.Time) {
	k.Helper()
	subjects := room.Under("notify")
	entry := room.Entry{
		Reason: reason, Subject: "notify.payments.refunds", ID: id, Origin: room.Origin{Stream: "NOTIFICATIONS", Sequence: 77, Stored: k.begin}, Since: k.begin,
	}
	schedule, target := subjects.Schedule(reason, "payments", id)
	m := entry.Message(schedule, nats.Header{}, []byte(body))
	room.ScheduleAt(m, target, due)
	testkit.Must(k.js.PublishMsg(k.Context(), m))(k)
}

// TestWhyOfAPausedChannel has two workers, of which one has not heard of the pause.
func TestWhyOfAPausedChannel(t *testing.T) {
	natsServer, redisServer := limitsServers(t, map[string]string{"CATEGORY_LIMIT": "2/30m"})
	k := newWhyKitOf(t, natsServer, redisServer)
	shared := loadSettings(t).Shared
	for name, until := range map[string]time.Time{"pod-1": {}, "pod-2": time.Now().Add(time.Hour)} {
		reports(t, natsServer.URL, status.Report{
			Worker:   status.Worker{Name: name, Instance: name, Settings: shared},
			Channels: []status.Channel{{Name: "#ops"}, {Name: "#payments", PausedUntil: until}},
		})
	}
	for id, channel := range map[string]string{"evt-1": "#payments", "evt-2": "#ops"} {
		putWaiting(t, k.js, room.Entry{ID: id, Reason: room.Channel}, room.Under("notify").Channel(room.Token(channel), "payments"), "")
	}
	testkit.Eventually(t, "both workers answer in time", func() bool {
		paused, other := mustRun(t, "", "why", "evt-1"), mustRun(t, "", "why", "evt-2")
		return strings.Contains(paused, "waits for its channel\nthe channel #payments is paused until ") && strings.Contains(other, "the channel #ops is not paused\n")
	})
}

// The answer ends with the sources that why could not read.
func TestWhyWithoutRedis(t *testing.T) {
	k := newWhyKit(t)
	k.note(k.drop())
	t.Setenv("NOTIFIER_REDIS_URL", "redis://127.0.0.1:1")
	testkit.NoError(t, k.js.DeleteStream(t.Context(), "NOTIFICATIONS_DLQ"))
	output, _, err := execute(t.Context(), "", "why", "evt-4711")
	testkit.NoError(t, err)
	testkit.Contains(t, "why", output,
		"dropped at", "the dead letters cannot be read: ", "the limits cannot be asked: redis: ", "check NOTIFIER_REDIS_URL")
	for name := range k.js.StreamNames(t.Context()).Name() {
		testkit.Check(t, !strings.HasPrefix(name, "KV_"), "got the stream %s, want none made by a question", name)
	}
}

// The users limits and notifier of the sample configuration may read all that why and the page need.
func TestWhySampleRights(t *testing.T) {
	natsServer, redisServer := servertest.StartSampleNATS(t, "../../configs/nats/notifier.conf"), servertest.StartRedis(t)
	asSampleUser(t, natsServer, redisServer, "operator")
	mustLimits(t, "") // makes the bucket
	js := servertest.JetStream(t, natsServer.URL, nats.UserInfo("operator", "secret"), nats.CustomInboxPrefix("_INBOX_operator"))
	k := whyKit{T: t, js: js, begin: time.Now()}
	createDeadLetters(t, js)
	testkit.Must(js.CreateStream(t.Context(), setup.Names(loadSettings(t)).StreamConfig()))(t)
	testkit.Must(js.Publish(t.Context(), "notify.payments", []byte(`{"id": "evt-1", "title": "x"}`)))(t)
	putLetter(t, js, "rejected", "evt-2", "text", "no_text")
	k.note(k.drop())
	for _, user := range []string{"limits", "notifier"} {
		asSampleUser(t, natsServer, redisServer, user)
		for id, want := range map[string]why.State{"evt-4711": "dropped", "evt-1": why.StateUndecided, "evt-2": "dead"} {
			answer := k.answer(id)
			testkit.EqualSlices(t, answer.Unknown, nil, "what %s cannot ask about %s", user, id)
			testkit.Equal(t, answer.Events[0].State, want, "state of %s, as %s sees it", id, user)
		}
		testkit.NoError(t, withNATS(t.Context(), func(settings config.Config, connection *stream.Connection) error {
			source := testkit.Must(inspect.NewAsker(settings, connection))(t)
			defer source.Close()
			decisions := testkit.Must(source.Decisions(testkit.Context(t), k.begin))(t)
			testkit.Equal(t, (<-decisions).Entries[0].ID, "evt-4711", "decision on the page of %s", user)
			testkit.EqualSlices(t, connection.Denied(), nil, "what is denied to %s", user)
			return nil
		}))
	}
}
