package why

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// slowStreams has streams that need a tenth of a second for each message.
type slowStreams struct {
	jetstream.JetStream
	messages map[string]uint64 // in each stream, by its name
}

func (s slowStreams) Stream(_ context.Context, name string) (jetstream.Stream, error) {
	return slowStream{messages: s.messages[name]}, nil
}

type slowStream struct {
	jetstream.Stream
	messages uint64
}

func (s slowStream) CachedInfo() *jetstream.StreamInfo {
	return &jetstream.StreamInfo{State: jetstream.StreamState{Msgs: s.messages, FirstSeq: 1, LastSeq: s.messages}}
}

func (s slowStream) GetMsg(ctx context.Context, sequence uint64, _ ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	if !await.For(ctx, 100*time.Millisecond) {
		return nil, ctx.Err()
	}
	if sequence > s.messages {
		return nil, jetstream.ErrMsgNotFound
	}
	header := make(nats.Header)
	trusted.Mark(header)
	return &jetstream.RawStreamMsg{Subject: "notify.payments", Sequence: sequence, Header: header}, nil
}

// A million events in the producers' stream do not hide the events in the room.
func TestPendingBehindABacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		streams := Streams{
			JetStream: slowStreams{messages: map[string]uint64{"EVENTS": 1_000_000, "ROOM": 3}}, Producers: "EVENTS", Room: "ROOM",
			Decoder: event.Decoder{Prefix: "notify"},
		}
		began, inRoom := time.Now(), 0
		err := streams.Pending(t.Context(), 0, func(p Pending) {
			if p.Reason != "" {
				inRoom++
			}
		})
		testkit.Equal(t, inRoom, 3, "events of the room")
		testkit.Equal(t, fmt.Sprint(err), `reading stream "EVENTS": it has more messages than can be read in time; about 997952 of its 1000000 messages were not searched`, "error")
		testkit.Equal(t, time.Since(began) <= searchTimeout, true, "whether the search ends in time")
	})
}

// A message in the producers' stream is shown as the events that workers will make of it, and as itself if they will make none.
func TestUndecidedMessage(t *testing.T) {
	t.Parallel()
	alert := func(fingerprint string) string {
		return fmt.Sprintf(`{"fingerprint":%q,"status":"firing","startsAt":"2026-01-02T10:00:00Z","labels":{"alertname":"Down"}}`, fingerprint)
	}
	for _, test := range []struct{ name, body, want string }{
		{"event", `{"id":"order-4711","title":"card declined"}`, "order-4711 card declined"},
		{"two alerts", `{"alerts":[` + alert("a") + `,` + alert("b") + `]}`, "a firing 2026-01-02T10:00:00Z Down, b firing 2026-01-02T10:00:00Z Down"},
		{"a valid and an invalid alert", `{"alerts":[` + alert("a") + `,{"status":"firing"}]}`, "a firing 2026-01-02T10:00:00Z Down"},
		{"two invalid alerts", `{"alerts":[{"status":"firing"},{"status":"firing"}]}`, "EVENTS:7 "},
		{"broken JSON", `{"title":`, "EVENTS:7 "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			streams := Streams{Producers: "EVENTS", Decoder: event.Decoder{Prefix: "notify"}}
			var got []string
			for _, p := range streams.published(&jetstream.RawStreamMsg{Subject: "notify.payments", Sequence: 7, Data: []byte(test.body)}) {
				testkit.Equal(t, p.Category, "payments", "category")
				got = append(got, p.ID+" "+p.Title)
			}
			testkit.Equal(t, strings.Join(got, ", "), test.want, "shown events")
		})
	}
}
