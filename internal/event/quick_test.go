package event_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// typical is a common body.
const typical = `{"id":"order-4711-7","severity":"error","source":"payments-7c9f","title":"Refund failed: the provider timed out",` +
	`"text":"3 tries in 20s","fields":{"order":"4711","zone":"eu-1"},"time":"2026-03-01T12:00:00Z"}`

// TestHints wants a hint for every body that may resolve, fire or hold a group.
func TestHints(t *testing.T) {
	t.Parallel()
	encoded := base64.StdEncoding.EncodeToString([]byte(`{"text":"x","status":"resolved"}`))
	none, all := event.Hints{}, event.Hints{Resolves: true, Fires: true, Group: true} // all hints of a text that a search does not find
	resolves, fires := event.Hints{Resolves: true}, event.Hints{Fires: true}
	for body, want := range map[string]event.Hints{
		`{"text":"x","status":"resolved"}`: resolves, " \ufeff{\"text\":\"x\",\"status\":\"resolved\"}": resolves,
		`{"title":"resolved"}`:                  resolves, // only decoding shows the name of the member
		`{"text":"x","status":"r\u0065solved"}`: all, `{"text":"x","status":"res\u006Flved"}`: all, `{"text":"x","\u0073tatus":"resolved"}`: all,
		`{"specversion":"1.0","data_base64":"` + encoded + `"}`: all, `{"specversion":"1.0","data\u005Fbase64":"x"}`: all, `{"specversion":"1.0","data_base\u00364":"x"}`: all,
		`{"text":"x","status":"firing"}`: fires, `{"text":"x","status":"f\u0069ring"}`: all, `{"\u0061lerts": []}`: all,
		`{"text":"caf\u00e9 \u003cb\u003e \u0026 \u00df \u2028 \u0001 \ud83d\udd25","status":"firing"}`: fires,
		alertmanager: {Resolves: true, Fires: true, Group: true}, grafana: {Resolves: true, Group: true},
		typical: none, "": none, "{": none, `{"text":"\u00`: none, `{"text":"\u006`: none, `"resolved"`: none, `["resolved"]`: none, "resolved": none,
		`{"text":"the resolved x"}`: none, `"firing"`: none, `{"title": "x"}`: none, `text about "alerts"`: none,
	} {
		testkit.Equal(t, event.HintsOf([]byte(body)), want, "hints of %s", body)
	}
}

func TestHintsAllocateNothing(t *testing.T) { // counts allocations, so not in parallel
	body := []byte(typical)
	testkit.Equal(t, testing.AllocsPerRun(100, func() { event.HintsOf(body) }), 0, "allocations")
}

func TestQuickTitle(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		typical: "Refund failed: the provider timed out",

		"disk full":                    "disk full",
		" \n\u200b\r\n\t b \rc\nd":     "b",
		"\ufeffwith mark":              "with mark",
		`["a"]`:                        `["a"]`,
		"42":                           "42",
		"x\n" + strings.Repeat("[", 9): "x",

		`{"title":"t","text":"x"}`:                 "t",
		" \ufeff{ \"title\" :\t\"t\" } ":           "t",
		`{"text":"x","title":" t "}`:               "t",
		`{"text":"x","title":" "}`:                 "x",
		`{"text":"x","title":null}`:                "x",
		`{"text":"x","title":""}`:                  "x",
		`{"title":"no","title":"t"}`:               "t",
		`{"title":"no","title":null,"text":"x"}`:   "x",
		`{"t\u0069tle":"\u0074 \"\ud83d\udd25\""}`: `t "🔥"`,
		`{"fields":{"title":"no","a":"}\\"},"y":[{"title":"no"}],"z":-1.5e3 ,"title":"t"}`: "t",
		`{"text":"\n \t\r\n\u200b\u000a a\\nb \\\nc"}`:                                     `a\nb \`,
		`{"text":"a\u000ab"}`:          "a",
		`{"text":"a\rb"}`:              "a",
		`{"text":"\ud83d\n\udd25"}`:    "\ufffd",
		`{"text":"x","alerts":[]}`:     "x", // the body has a fault
		`{"text":"x","alerts":[{},1]}`: "x",
		`{"text":"x","alerts":{}}`:     "x",

		alertmanager: "Disk of db-1 is full",
		grafana:      "High load",
		one(`"labels":{"alertname":"a"},"annotations":{"summary":" ","message":"m"}`):    "a",
		one(`"annotations":{"message":"m","description":"\nd\ne","x":"y"}`):              "d",
		one(`"annotations":{"message":"m","description":""}`):                            "m",
		`{"title":"no","alerts":[{"annotations":{"summary":"s"}},{"annotations":null}]}`: "s",

		envelope(`,"title":"no","data":{"title":"t"}`):     "t",
		envelope(`,"data":{"specversion":"1","text":"x"}`): "x",
		envelope(`,"data":"{a\n\"b"`):                      "{a",
		envelope(`,"data": 42 `):                           "42",
		envelope(`,"data":[1, {"title":"x"}]`):             `[1, {"title":"x"}]`,
		envelope(`,"data":` + alertmanager):                "Disk of db-1 is full",
		envelope(`,"data_base64":"aGk="`):                  "", // unknown
		envelope(`,"data":null,"data_base64":"aGk="`):      "",
		`{"specversion":null,"title":"t"}`:                 "t",

		"": "", " ": "", "{": "", "{}": "", `{"title"`: "", `{"title":`: "", `{"title":"`: "", `{"title":"t`: "", `{"text":"a\`: "", `{"title":5}`: "",
		`{"text":{"a":"b"}}`: "", `{"alerts":[{"labels":{`: "", `{:}`: "", `{"a"}`: "", `{"a":}`: "", "{\"title\":\"\\\"": "", `{]`: "",
		"\xff": "\ufffd", "{\"title\":\"\xff\"}": "\ufffd",
	} {
		testkit.Equal(t, event.QuickTitle([]byte(body)), want, "QuickTitle(%s)", body)
		if e, err := decoder().Decode(message(body)); err == nil && want != "" && e.Heading() != want {
			t.Errorf("heading of %s: got %q, want %q", body, e.Heading(), want)
		}
	}
}

// FuzzQuick compares HintsOf, QuickTitle and Identify with the decoded event.
func FuzzQuick(f *testing.F) {
	for _, body := range []string{
		typical, alertmanager, grafana, "a\nb", "\ufeff{\"text\":\"\\n\\u000ax\"}", `{"text":"x","st\u0061tus":"res\u006Flved"}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"text":"x","status":"resolved"}}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"eyJ0ZXh0IjoieCIsInN0YXR1cyI6InJlc29sdmVkIn0="}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data\u005fbase64":"eyJ0ZXh0IjoieCIsInN0YXR1cyI6InJlc29sdmVkIn0="}`,
		`{"text":"x","alerts":[{},1]}`, `{"alerts":[{"status":"resolved","annotations":{"description":"\\\nx"},"labels":{"alertname":"\u200b"}}]}`,
		`{"title":"\\","text":"\\\\n\n"}`, `{"title":"\ud800","title":"\"}"}`,
		`{"id":"a","cost":3,"alerts":[{"labels":{"a":}}]}`, `{"id":"a","cost":3,"alerts":[1],"title":"x"}`, `{"\u0063ost":3,"title":"x"}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		decoder, m := event.Decoder{Prefix: "notify"}, event.Message{Subject: "notify.a", Data: body, Stream: "S", Sequence: 1}
		e, err := decoder.Decode(m)
		title, mayResolve, identified := event.QuickTitle(body), event.HintsOf(body).Resolves, decoder.Identify(m)
		if err != nil {
			return
		}
		if e.Status == event.StatusResolved && !mayResolve {
			t.Error("hint: got false, want true for a resolved event")
		}
		testkit.Check(t, identified.ID == e.ID && identified.Derived == e.Derived && identified.Cost == e.Cost,
			"identity: got %q, derived %t, cost %d, want %q, %t, %d", identified.ID, identified.Derived, identified.Cost, e.ID, e.Derived, e.Cost)
		if title != "" && title != e.Heading() {
			t.Errorf("title: got %q, want %q", title, e.Heading())
		}
		if title == "" && !strings.Contains(string(body), "base64") && !strings.Contains(string(body), `\u`) {
			t.Errorf("title: got none, want %q", e.Heading())
		}
	})
}

// TestQuickCategory wants the category that decoding gives.
func TestQuickCategory(t *testing.T) {
	t.Parallel()
	bare := message(`{"title": "x", "category": "Payments.Cards"}`)
	bare.Subject = "notify"
	text, none, envelope := bare, bare, bare
	text.Data, none.Data = []byte("text"), []byte(`{"title": "x"}`)
	envelope.Data = []byte(`{"specversion": "1.0", "type": "t", "source": "s", "id": "c", "data": {"title": "x", "category": "payments"}}`)
	for _, m := range []event.Message{message(`{"title": "x"}`), bare, withHeader(bare, "Content-Type", "application/json"), text, none, envelope} {
		want, _ := decoder().Decode(m)
		testkit.Equal(t, decoder().QuickCategory(m), want.Category, "category of %s on %s", m.Data, m.Subject)
	}
}

// TestIdentify wants the identity and the cost that decoding gives.
func TestIdentify(t *testing.T) {
	t.Parallel()
	messages := []event.Message{
		message(`{"title": "x"}`), message(`{"title": "x", "id": "a"}`), message(`{"title": "x", "cost": 3}`), message(`{"title": "x", "id": "a", "cost": 3}`), message("text"), message(alertmanager), message(grafana),
		message(`{"id": "group", "alerts": [` + "{" + alertX + "}, {" + alertX + `}]}`),
		message(`{"id": "group", "cost": 2, "alerts": [` + "{" + alertX + `}]}`), message(`{"title": "x", "id": "a", "cost": 2, "alerts": [1]}`),
		message(`{"specversion": "1.0", "type": "t", "source": "s", "id": "c", "data": {"title": "x", "cost": 2}}`),
		withHeader(message(`{"title": "x", "id": "a"}`), "Nats-Msg-Id", "header"),
		withHeader(message("x"), "ce-specversion", "1.0", "ce-type", "t", "ce-source", "s", "ce-id", "b"),
	}
	inRoom := message(`{"title": "x", "id": "a"}`)
	inRoom.Room = &event.RoomIdentity{ID: "noted", Part: "p"}
	for _, m := range append(messages, inRoom) {
		got := decoder().Identify(m)
		want := testkit.Must(decoder().Decode(m))(t)
		testkit.Equal(t, got.ShownID(), want.ShownID(), "ID of %s", m.Data)
		testkit.Equal(t, got.Derived, want.Derived, "whether the ID of %s is derived", m.Data)
		testkit.Equal(t, got.Cost, want.Cost, "cost of %s", m.Data)
		testkit.Equal(t, got.Category, want.Category, "category of %s", m.Data)
	}
}
