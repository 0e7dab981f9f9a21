package outcome

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestFoldsInDigests counts folded events for digests if messages cannot show them.
func TestFoldsInDigests(t *testing.T) {
	t.Parallel()
	batch := []Settlement{{Message: &received.Message{Entry: new(room.Entry), About: received.About{Category: "payments"}}, Outcome: journal.Folded}}
	testkit.Equal(t, len(dropCounter{showsFolds: true}.dropsOf(batch, alike(batch))), 0, "drops, if messages show folded events")
	testkit.Equal(t, len(dropCounter{showsFolds: false}.dropsOf(batch, alike(batch))), 1, "drops, if messages do not")
}

// TestNoEventIsDecodedForTheLog has no debug lines, and a settlement without a message to decode.
func TestNoEventIsDecodedForTheLog(t *testing.T) {
	t.Parallel()
	r := &Reporter{Logger: slog.New(slog.DiscardHandler)}
	r.logOutcomes(Settlement{Outcome: journal.Dropped})
}

// TestCountedOnceThoughLate settles a message late, and its redelivery too.
func TestCountedOnceThoughLate(t *testing.T) {
	t.Parallel()
	start := time.Now()
	other := func(sequence uint64, stored time.Time, connection uint64, deadline time.Time) *received.Message {
		m := &received.Message{
			Meta: &nats.MsgMetadata{Sequence: nats.SequencePair{Stream: sequence}, Timestamp: stored},
			From: &received.PullRequest{Request: &stream.Request{Reconnects: connection}}, Entry: new(room.Entry),
		}
		m.Lease.Extend(deadline, 0)
		return m
	}
	on := func(connection uint64, deadline time.Time) *received.Message {
		return other(7, start, connection, deadline)
	}
	inTime, over := start.Add(time.Hour), start.Add(-time.Second) // other tests may run in between
	redelivered := on(0, inTime)
	redelivered.Meta.NumDelivered = 2
	type lateCase struct {
		first, second *received.Message
		failed        time.Time // when the consumer of the first one did not confirm
		want          int
	}
	testkit.Each(t, map[string]lateCase{
		"after a lost connection":      {first: on(1, inTime), second: on(0, inTime), want: 1}, // 0 is the present connection
		"after its lease":              {first: on(0, over), second: on(0, inTime), want: 1},
		"before its consumer failed":   {first: on(0, inTime), second: on(0, inTime), failed: start.Add(time.Second), want: 1},
		"after its consumer failed":    {first: on(0, inTime), second: on(0, inTime), failed: start.Add(-time.Second), want: 2},
		"after its redelivery":         {first: redelivered, second: on(1, inTime), want: 1},
		"twice after its lease":        {first: on(0, over), second: on(0, over), want: 1},
		"another message":              {first: on(0, over), second: other(8, start, 0, inTime), want: 2},
		"its namesake in a new stream": {first: on(0, over), second: other(7, start.Add(time.Hour), 0, inTime), want: 2},
	}, func(t *testing.T, test lateCase) {
		metrics := new(endings)
		counting := newTally(&nats.Conn{}, metrics)
		counting.count([]Settlement{{Message: test.first, Outcome: journal.Sent, decided: start}}, test.failed)
		counting.count([]Settlement{{Message: test.second, Outcome: journal.Sent, decided: start}}, time.Time{})
		testkit.Equal(t, metrics.n, test.want, "outcomes")
	})
}

// TestDropsHaveOneTitleOfEachKind groups the drops of a batch by category and level. Each group has its first visible title, cut to the
// length that counts, reports and digests keep.
func TestDropsHaveOneTitleOfEachKind(t *testing.T) {
	t.Parallel()
	dropped := func(category, level, data string) Settlement {
		return Settlement{Message: &received.Message{Content: received.Content{Data: []byte(data)}, Entry: new(room.Entry), About: received.About{Category: category}}, Outcome: journal.Dropped, Denial: &store.Denial{Level: level}}
	}
	batch := []Settlement{
		dropped("payments", "category", `{"text":""}`),
		dropped("payments", "global", "plain text\nof two lines"),
		{Message: &received.Message{Content: received.Content{Data: []byte("sent")}, Entry: new(room.Entry), About: received.About{Category: "payments"}}, Outcome: journal.Sent},
		dropped("payments", "category", `{"title":"card declined"}`),
		dropped("payments", "category", `{"title":"card stolen"}`),
		dropped("logins", "category", `{"title":"`+strings.Repeat("ü", 125_000)+`"}`),
	}
	want := []summary.Drop{
		{Category: "payments", Level: "category", Title: "card declined", N: 3},
		{Category: "payments", Level: "global", Title: "plain text", N: 1},
		{Category: "logins", Level: "category", Title: strings.Repeat("ü", plain.TitleLength-1) + "…", N: 1},
	}
	testkit.EqualDeeply(t, dropCounter{showsFolds: true}.dropsOf(batch, alike(batch)), want, "drops")
}

// endings counts outcomes.
type endings struct{ n int }

func (e *endings) Event(_, _ string, n int)            { e.n += n }
func (e *endings) Dropped(string, string, int, string) {}
func (e *endings) EventAge(time.Duration, string)      {}
func (e *endings) Redelivered(int)                     {}
func (e *endings) Resolved(string)                     {}

// TestKeysUnderMutes has two keys of one long category whose first 80 characters are equal. A digest keeps them apart.
func TestKeysUnderMutes(t *testing.T) {
	t.Parallel()
	prefix := "infrastructure.kubernetes\n" + strings.Repeat("k", 60)
	var keys []summary.Key
	for _, end := range []string{"a", "b"} {
		keys = appendKey(keys, &received.Message{Entry: new(room.Entry), About: received.About{Pair: prefix + end, Title: "node is down"}})
	}
	testkit.Check(t, keys[0].Name != keys[1].Name, "both keys have the name %s", keys[0].Name)
}

// TestKeyOfAText has an event without a title. A digest names its key by its text.
func TestKeyOfAText(t *testing.T) {
	t.Parallel()
	m := &received.Message{Content: received.Content{Data: []byte(`{"text": "node is down\nsince noon"}`)}, Entry: new(room.Entry), About: received.About{Pair: "payments\nnode"}}
	testkit.Equal(t, appendKey(nil, m)[0].Title, "node is down", "title of the key")
}
