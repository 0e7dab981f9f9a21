package event_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

const maxBytes = 262_144

func decoder() event.Decoder { return event.Decoder{Prefix: "notify", MaxBytes: maxBytes} }

// message is a stored body on the subject of the category "errors".
func message(body string) event.Message {
	return event.Message{Subject: "notify.errors", Data: []byte(body), Stream: "NOTIFICATIONS", Sequence: 7}
}

func withHeader(m event.Message, pairs ...string) event.Message {
	m.Header = map[string][]string{}
	for i := 0; i < len(pairs); i += 2 {
		m.Header[pairs[i]] = append(m.Header[pairs[i]], pairs[i+1])
	}
	return m
}

// decoded is the event that message decodes to where the body adds nothing, with changes.
func decoded(change func(*event.Event)) event.Event {
	e := event.Event{
		ID: "NOTIFICATIONS:7", Derived: true, Category: "errors", Severity: event.SeverityInfo, Cost: 1,
	}
	change(&e)
	return e
}

// checkFault checks the promises of every fault, and that it has the reason and names detail.
func checkFault(t testing.TB, err error, reason event.Reason, detail string) {
	t.Helper()
	var fault *event.Fault
	if !errors.As(err, &fault) {
		t.Errorf("error %v (%T), want a *Fault with %s", err, err, reason)
		return
	}
	if fault.Reason != reason {
		t.Errorf("fault %v, want %s", fault, reason)
	}
	if !strings.Contains(fault.Detail, detail) {
		t.Errorf("detail %q, want it to hold %q", fault.Detail, detail)
	}
	if fault.Detail == "" || len(fault.Detail) > 200 || !utf8.ValidString(fault.Detail) ||
		strings.ContainsFunc(fault.Detail, func(r rune) bool { return !strconv.IsPrint(r) }) {
		t.Errorf("detail %q is not one printable line of at most 200 bytes", fault.Detail)
	}
	testkit.Equal(t, fault.Error(), string(fault.Reason)+": "+fault.Detail, "Error()")
}

func TestDecodePlainText(t *testing.T) {
	t.Parallel()
	for body, text := range map[string]string{
		"disk full":                 "disk full",
		" two\n lines \n":           " two\n lines \n",
		"\ufeffwith mark":           "with mark",
		"null":                      "null",
		"true":                      "true",
		"42":                        "42",
		`"quoted"`:                  `"quoted"`,
		`[{"title":"x"}]`:           `[{"title":"x"}]`,
		"[":                         "[",
		"<!channel> & <b>":          "<!channel> & <b>",
		"nul \x00 and bell \a":      "nul \x00 and bell \a",
		"🔥":                         "🔥",
		"\ufffd":                    "\ufffd",
		"text with { later":         "text with { later",
		"\u00a0{not an object}":     "\u00a0{not an object}",
		"\v{not an object}":         "\v{not an object}",
		strings.Repeat("[", 20_000): strings.Repeat("[", 20_000),
	} {
		got, err := decoder().Decode(message(body))
		if err != nil {
			t.Errorf("%.40q: %v", body, err)
			continue
		}
		if want := decoded(func(e *event.Event) { e.Text = text }); !reflect.DeepEqual(got, want) {
			t.Errorf("%.40q: %+v, want %+v", body, got, want)
		}
	}
}

func TestDecodeObject(t *testing.T) {
	t.Parallel()
	full := `{"id":"a-1","title":"Disk full","text":"/var at 99%","severity":"critical","source":"host7",
		"link":"https://example.com/x?y=1#z","fields":{"zone":"b","host":"h7","zone":"c"},
		"time":"2026-03-01T12:00:00.5+02:00","cost":3,"category":"ignored","other":[{"deep":{}}]}`
	fullEvent := event.Event{
		ID: "a-1", Category: "errors", Title: "Disk full", Text: "/var at 99%", Severity: event.SeverityCritical,
		Source: "host7", Link: "https://example.com/x?y=1#z",
		Fields: []event.Field{{Name: "host", Value: "h7"}, {Name: "zone", Value: "c"}},
		Time:   time.Date(2026, 3, 1, 10, 0, 0, 500_000_000, time.UTC), Cost: 3,
	}
	text := func(change func(*event.Event)) event.Event {
		return decoded(func(e *event.Event) {
			e.Text = "x"
			change(e)
		})
	}
	nothing := func(*event.Event) {}
	day := func(year int) func(*event.Event) {
		return func(e *event.Event) { e.Time = time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	}
	for _, test := range []struct {
		name, body string
		want       event.Event
	}{
		{"every member", full, fullEvent},
		{"blanks before", " \r\n\t" + full + " \n", fullEvent},
		{"byte order mark before", "\ufeff" + full, fullEvent},
		{"blanks and mark before", " \ufeff " + full, fullEvent},
		{"text alone", `{"text":"x"}`, text(nothing)},
		{"title alone", `{"title":"x"}`, decoded(func(e *event.Event) { e.Title = "x" })},
		{"blank title", `{"title":" \t","text":"x"}`, text(func(e *event.Event) { e.Title = " \t" })},
		{"last duplicate", `{"text":1,"text":"y","text":"x"}`, text(nothing)},
		{"last duplicate is null", `{"severity":"error","text":"x","severity":null}`, text(nothing)},
		{"escaped name", `{"t\u0065xt":"x"}`, text(nothing)},
		{"names in other case", `{"text":"x","Title":"y","TEXT":"z","Cost":7,"SEVERITY":5}`, text(nothing)},
		{"nulls", `{"id":null,"title":null,"text":"x","severity":null,"source":null,"link":null,"fields":null,
			"time":null,"cost":null,"category":null,"specversion":null}`, text(nothing)},
		{"empty strings", `{"id":"","title":"","text":"x","severity":"","source":"","link":"","time":"","category":""}`, text(nothing)},
		{"no fields", `{"text":"x","fields":{}}`, text(nothing)},
		{"empty field", `{"text":"x","fields":{"":""}}`, text(func(e *event.Event) { e.Fields = []event.Field{{}} })},
		{"bad field replaced", `{"text":"x","fields":{"a":1,"b":"2","a":"3"}}`, text(func(e *event.Event) {
			e.Fields = []event.Field{{Name: "b", Value: "2"}, {Name: "a", Value: "3"}}
		})},
		{"lone surrogates", `{"text":"x","title":"a\ud800b\udc00"}`, text(func(e *event.Event) { e.Title = "a\ufffdb\ufffd" })},
		{"surrogate pair", `{"text":"x","title":"\ud83d\udd25"}`, text(func(e *event.Event) { e.Title = "🔥" })},
		{"escaped NUL", `{"text":"x","title":"a\u0000b"}`, text(func(e *event.Event) { e.Title = "a\x00b" })},
		{"warning", `{"text":"x","severity":"warning"}`, text(func(e *event.Event) { e.Severity = event.SeverityWarning })},
		{"error", `{"text":"x","severity":"error"}`, text(func(e *event.Event) { e.Severity = event.SeverityError })},
		{"info", `{"text":"x","severity":"info"}`, text(nothing)},
		{"cost 1", `{"text":"x","cost":1}`, text(nothing)},
		{"cost 100", `{"text":"x","cost":100}`, text(func(e *event.Event) { e.Cost = 100 })},
		{"cost 1e1", `{"text":"x","cost":1e1}`, text(func(e *event.Event) { e.Cost = 10 })},
		{"cost 2.0", `{"text":"x","cost":2.0}`, text(func(e *event.Event) { e.Cost = 2 })},
		{"time in 1970", `{"text":"x","time":"1970-01-01T00:00:00Z"}`, text(day(1970))},
		{"time in 2100", `{"text":"x","time":"2100-01-01T00:00:00Z"}`, text(day(2100))},
		{"time in lower case", `{"text":"x","time":"2100-01-01t00:00:00z"}`, text(day(2100))},
		{"link in upper case", `{"text":"x","link":"HTTP://EXAMPLE.COM"}`, text(func(e *event.Event) { e.Link = "HTTP://EXAMPLE.COM" })},
		{"broken category", `{"text":"x","category":"no, not one"}`, text(nothing)},
		{"category of a wrong type", `{"text":"x","category":[1]}`, text(nothing)},
		{"firing", `{"text":"x","status":"firing","key":"db-1"}`, text(func(e *event.Event) { e.Status, e.Key = event.StatusFiring, "db-1" })},
		{"resolved", `{"text":"x","st\u0061tus":"r\u0065solved"}`, text(func(e *event.Event) { e.Status = event.StatusResolved })},
		{"key alone", `{"text":"x","key":"é 🔥"}`, text(func(e *event.Event) { e.Key = "é 🔥" })},
		{"no status and key", `{"text":"x","status":"","key":null}`, text(nothing)},
		{"key of 64 bytes", `{"text":"x","key":"` + strings.Repeat("k", 64) + `"}`, text(func(e *event.Event) { e.Key = strings.Repeat("k", 64) })},
		{"long key", `{"text":"x","key":"` + strings.Repeat("k", 65) + `"}`,
			text(func(e *event.Event) { e.Key = event.StableID(strings.Repeat("k", 65)) })},
		{"line feed in the key", `{"text":"x","key":"a\nb"}`, text(func(e *event.Event) { e.Key = event.StableID("a\nb") })},
		{"alerts that are no group", `{"text":"x","alerts":[{},"y"]}`, text(nothing)},
		{"alerts that are an object", `{"text":"x","alerts":{}}`, text(nothing)},
		{"no alerts", `{"text":"x","alerts":[{}],"alerts":null}`, text(nothing)},
		{"deep unknown member", `{"text":"x","y":` + strings.Repeat(`{"z":`, 500) + "1" + strings.Repeat("}", 500) + `}`, text(nothing)},
	} {
		got, err := decoder().Decode(message(test.body))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		testkit.EqualDeeply(t, got, test.want, "%s", test.name)
	}
}

func TestDecodeFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		body   string
		reason event.Reason
		detail string
	}{
		{"", event.ReasonEmpty, "title nor text"},
		{" \n\t", event.ReasonEmpty, ""},
		{"\ufeff", event.ReasonEmpty, ""},
		{"\x00\x01", event.ReasonEmpty, ""},
		{"\u200b\u2060", event.ReasonEmpty, ""},
		{"{}", event.ReasonEmpty, ""},
		{`{"id":"x","cost":2}`, event.ReasonEmpty, ""},
		{`{"title":" ","text":"\n"}`, event.ReasonEmpty, ""},
		{`{"title":null,"text":null}`, event.ReasonEmpty, ""},
		{`{"Title":"x"}`, event.ReasonEmpty, ""},

		{"{", event.ReasonBadJSON, "unexpected end"},
		{" \ufeff{", event.ReasonBadJSON, "not valid JSON"},
		{`{"text":"x"`, event.ReasonBadJSON, "at byte 11"},
		{`{"text":"x"} {}`, event.ReasonBadJSON, "at byte 14"},
		{`{"text":"x"}junk`, event.ReasonBadJSON, "after top-level value"},
		{`{"text":"x",}`, event.ReasonBadJSON, ""},
		{`{'text':'x'}`, event.ReasonBadJSON, ""},
		{`{text:"x"}`, event.ReasonBadJSON, ""},
		{"{\"text\":\"a\nb\"}", event.ReasonBadJSON, ""},
		{`{"text":"x","y":01}`, event.ReasonBadJSON, ""},
		{`{"text":"x","y":NaN}`, event.ReasonBadJSON, ""},
		{`{"text":"x","cost":"1}`, event.ReasonBadJSON, ""},
		{strings.Repeat(`{"text":`, 10_001) + "1" + strings.Repeat("}", 10_001), event.ReasonBadJSON, "depth"},
		{strings.Repeat(`{"text":`, 20_000) + "1" + strings.Repeat("}", 20_000), event.ReasonBadJSON, "depth"},
		{strings.Repeat(`{"text":`, 20_000), event.ReasonBadJSON, ""},
		{`{"text":"x","y":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}", event.ReasonBadJSON, ""},

		{"\xff", event.ReasonBadUTF8, "at byte 1"},
		{"text \xc3\x28", event.ReasonBadUTF8, "at byte 6"},
		{"\ufffd \xed\xa0\x80", event.ReasonBadUTF8, "at byte 5"},
		{"{\"text\":\"x\",\"unknown\":\"\xfe\"}", event.ReasonBadUTF8, ""},
		{"{\xff", event.ReasonBadUTF8, ""},

		{`{"text":"x","id":7}`, event.ReasonBadField, "id must be a string, not 7"},
		{`{"text":"x","id":{}}`, event.ReasonBadField, "id "},
		{`{"title":["x"]}`, event.ReasonBadField, `title must be a string, not ["x"]`},
		{`{"text":5}`, event.ReasonBadField, "text "},
		{`{"text":{"a":"b"}}`, event.ReasonBadField, "text "},
		{`{"text":false}`, event.ReasonBadField, "text "},
		{`{"text":"x","source":1}`, event.ReasonBadField, "source "},
		{`{"text":"x","severity":"fatal"}`, event.ReasonBadField, `severity must be one of info, warning, error and critical, not "fatal"`},
		{`{"text":"x","severity":"ERROR"}`, event.ReasonBadField, "severity "},
		{`{"text":"x","severity":3}`, event.ReasonBadField, "severity "},
		{`{"text":"x","status":"ok"}`, event.ReasonBadField, `status must be firing or resolved, not "ok"`},
		{`{"text":"x","status":"Resolved"}`, event.ReasonBadField, "status "},
		{`{"text":"x","status":1}`, event.ReasonBadField, "status must be a string, not 1"},
		{`{"text":"x","key":7}`, event.ReasonBadField, "key must be a string, not 7"},
		{`{"text":"x","key":["a"]}`, event.ReasonBadField, "key "},
		{`{"text":"x","link":"/relative"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":"//example.com"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":"javascript:alert(1)"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":"ftp://example.com"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":"https://"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":"https://:80/x"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":"https:example.com"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":" https://example.com"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":"https://example.com/\u0000"}`, event.ReasonBadField, "link "},
		{`{"text":"x","link":7}`, event.ReasonBadField, "link "},
		{`{"text":"x","fields":[]}`, event.ReasonBadField, "fields must be an object of strings, not []"},
		{`{"text":"x","fields":"a=b"}`, event.ReasonBadField, "fields "},
		{`{"text":"x","fields":{"a":"b","c":1}}`, event.ReasonBadField, "fields.c must be a string, not 1"},
		{`{"text":"x","fields":{"c":null}}`, event.ReasonBadField, "fields.c "},
		{`{"text":"x","fields":{"c":{"d":"e"}}}`, event.ReasonBadField, "fields.c "},
		{`{"text":"x","fields":{"a\n\u0000b":1}}`, event.ReasonBadField, "fields.a"},
		{`{"text":"x","fields":{"` + strings.Repeat("é", 5_000) + `":1}}`, event.ReasonBadField, "…"},
		{`{"text":"x","time":"yesterday"}`, event.ReasonBadField, `time must be a time as in RFC 3339, not "yesterday"`},
		{`{"text":"x","time":"2026-01-01"}`, event.ReasonBadField, "time "},
		{`{"text":"x","time":"2026-01-01T00:00:00"}`, event.ReasonBadField, "time "},
		{`{"text":"x","time":"2026-01-01 00:00:00Z"}`, event.ReasonBadField, "time "},
		{`{"text":"x","time":"2026-02-30T00:00:00Z"}`, event.ReasonBadField, "time "},
		{`{"text":"x","time":"2026-01-01T00:00:60.5.5Z"}`, event.ReasonBadField, "time "},
		{`{"text":"x","time":"9999-12-31T23:59:59-01:00"}`, event.ReasonBadField, "time "},
		{`{"text":"x","time":"0000-01-01T00:00:00+01:00"}`, event.ReasonBadField, "time "},
		{`{"text":"x","time":1767225600}`, event.ReasonBadField, "time "},
		{`{"text":"x","cost":0}`, event.ReasonBadField, "cost must be a whole number from 1 to 100, not 0"},
		{`{"text":"x","cost":-1}`, event.ReasonBadField, "not -1"},
		{`{"text":"x","cost":1.5}`, event.ReasonBadField, "not 1.5"},
		{`{"text":"x","cost":101}`, event.ReasonBadField, "not 101"},
		{`{"text":"x","cost":"3"}`, event.ReasonBadField, `not "3"`},
		{`{"text":"x","cost":true}`, event.ReasonBadField, "cost "},
		{`{"text":"x","cost":[1]}`, event.ReasonBadField, "cost "},
		{`{"text":"x","cost":1e400}`, event.ReasonBadField, "cost "},
		{`{"text":"x","cost":1e-400}`, event.ReasonBadField, "cost "},
		{`{"text":"x","cost":1` + strings.Repeat("0", 5_000) + `}`, event.ReasonBadField, "cost "},
		{`{"title":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`, event.ReasonBadField, "title "},

		{strings.Repeat("x", maxBytes+1), event.ReasonTooLarge, "262145 bytes"},
		{"{" + strings.Repeat("\xff", maxBytes), event.ReasonTooLarge, "at most 262144"},
	} {
		got, err := decoder().Decode(message(test.body))
		if err == nil {
			t.Errorf("%.60q: decoded to %+v, want %s", test.body, got, test.reason)
			continue
		}
		checkFault(t, err, test.reason, test.detail)
		if got.ID == "" || got.Category != "errors" {
			t.Errorf("%.60q: the event beside the fault has ID %q and category %q", test.body, got.ID, got.Category)
		}
	}
}

func TestDecodeFaultOrder(t *testing.T) {
	t.Parallel()
	d := event.Decoder{Prefix: "notify", MaxBytes: 50}
	for _, test := range []struct {
		subject, body string
		reason        event.Reason
	}{
		{"notify.🔥", "{\xff" + strings.Repeat(" ", 50), event.ReasonTooLarge},
		{"notify.🔥", "{\xff", event.ReasonBadCategory},
		{"notify.a", "{\xff", event.ReasonBadUTF8},
		{"notify.a", `{"cost":0`, event.ReasonBadJSON},
		{"notify.a", `{"specversion":"1.0","data":{"cost":0}}`, event.ReasonBadCloudEvent},
		{"notify", `{"category":"A B","cost":0}`, event.ReasonBadCategory},
		{"notify.a", `{"cost":0}`, event.ReasonBadField},
		{"notify.a", `{"cost":1}`, event.ReasonEmpty},
	} {
		_, err := d.Decode(event.Message{Subject: test.subject, Data: []byte(test.body)})
		checkFault(t, err, test.reason, "")
	}
}

func TestDecodeMaxBytes(t *testing.T) {
	t.Parallel()
	if _, err := decoder().Decode(message(strings.Repeat("x", maxBytes))); err != nil {
		t.Errorf("a body of the largest size: %v", err)
	}
	unlimited := event.Decoder{Prefix: "notify"}
	if _, err := unlimited.Decode(message(strings.Repeat("x", 4*maxBytes))); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

func TestDecodeCategory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		subject, body, want string
		fault               string
	}{
		{subject: "notify.Payments.Refunds", body: "x", want: "payments.refunds"},
		{subject: "notify.a", body: `{"text":"x","category":"b"}`, want: "a"},
		{subject: "notify.a", body: `{"text":"x","category":"🔥"}`, want: "a"},
		{subject: "notify", body: "x", want: event.Default},
		{subject: "notify", body: `{"text":"x"}`, want: event.Default},
		{subject: "notify", body: `{"text":"x","category":null}`, want: event.Default},
		{subject: "notify", body: `{"text":"x","category":""}`, want: event.Default},
		{subject: "notify", body: `{"text":"x","category":"Payments.Refunds"}`, want: "payments.refunds"},
		{subject: "notify", body: `{"text":"x","category":"global"}`, want: "global"},
		{subject: "notify", body: `{"text":"x","category":1,"category":"a"}`, want: "a"},
		{subject: "notify", body: `{"text":"x","category":7}`, fault: "category must be a string, not 7"},
		{subject: "notify", body: `{"text":"x","category":["a"]}`, fault: "category must be a string"},
		{subject: "notify", body: `{"text":"x","category":"a b"}`, fault: `category "a b"`},
		{subject: "notify", body: `{"text":"x","category":" "}`, fault: `category " "`},
		{subject: "notify", body: `{"text":"x","category":"*"}`, fault: `category "*"`},
		{subject: "notify", body: `{"text":"x","category":"a.b.c.d.e.f.g.h.i"}`, fault: "9 levels"},
		{subject: "notify", body: `{"text":"x","category":"` + strings.Repeat("\\u0000", 1_000) + `"}`, fault: "1000 bytes"},
		{subject: "notify.🔥", body: `{"text":"x","category":"a"}`, fault: `category "🔥"`},
		{subject: "other", body: "x", fault: "other"},
	} {
		got, err := decoder().Decode(event.Message{Subject: test.subject, Data: []byte(test.body), Stream: "S", Sequence: 1})
		testkit.Equal(t, got.Category, test.want, "%s %s: category", test.subject, test.body)
		switch {
		case test.fault != "":
			checkFault(t, err, event.ReasonBadCategory, test.fault)
		case err != nil:
			t.Errorf("%s %s: %v", test.subject, test.body, err)
		}
	}
}

func TestDecodeID(t *testing.T) {
	t.Parallel()
	const body = `{"text":"x","id":"in-body"}`
	const inEnvelope = `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + body + `}`
	hash := event.StableID
	long := strings.Repeat("i", 65)
	for _, test := range []struct {
		name    string
		m       event.Message
		want    string
		derived bool
	}{
		{"none", message("x"), "NOTIFICATIONS:7", true},
		{"body", message(body), "in-body", false},
		{"header over body", withHeader(message(body), "Nats-Msg-Id", "h"), "h", false},
		{"header in lower case", withHeader(message(body), "nats-msg-id", "h"), "h", false},
		{"header in upper case", withHeader(message(body), "NATS-MSG-ID", "h"), "h", false},
		{"the canonical header wins", withHeader(message(body), "NATS-MSG-ID", "a", "nats-msg-id", "b", "Nats-Msg-Id", "h"), "h", false},
		{"else the first in byte order", withHeader(message(body), "nats-msg-id", "b", "NATS-MSG-ID", "h"), "h", false},
		{"the first value wins", withHeader(message(body), "Nats-Msg-Id", "h", "Nats-Msg-Id", "i"), "h", false},
		{"an empty header is absent", withHeader(message(body), "Nats-Msg-Id", ""), "in-body", false},
		{"an empty body id is absent", message(`{"text":"x","id":""}`), "NOTIFICATIONS:7", true},
		{"envelope over body", message(inEnvelope), "/s/1", false},
		{"header over envelope", withHeader(message(inEnvelope), "Nats-Msg-Id", "h"), "h", false},
		{"the notifier's headers are a producer's", withHeader(message(body), event.HeaderID, "n", "Notifier-Derived", "true"), "in-body", false},
		{"the notifier's headers alone", withHeader(message("x"), event.HeaderID, "n", "notifier-id", "n"), "NOTIFICATIONS:7", true},
		{"the room over all", inRoom(withHeader(message(inEnvelope), "Nats-Msg-Id", "h"), event.RoomIdentity{ID: "r"}), "r", false},
		{"a derived ID in the room", inRoom(withHeader(message(body), "Nats-Msg-Id", "h"), event.RoomIdentity{ID: "S:9", Derived: true}), "S:9", true},
		{"no ID in the room", inRoom(message(body), event.RoomIdentity{Derived: true}), "in-body", false},
		{"a long ID in the room", inRoom(message(body), event.RoomIdentity{ID: long}), hash(long), false},
		{"64 bytes", message(`{"text":"x","id":"` + long[:64] + `"}`), long[:64], false},
		{"65 bytes", message(`{"text":"x","id":"` + long + `"}`), hash(long), false},
		{"line feed", message(`{"text":"x","id":"a\nb"}`), hash("a\nb"), false},
		{"NUL", message(`{"text":"x","id":"\u0000"}`), hash("\x00"), false},
		{"DEL", message(`{"text":"x","id":"a\u007f"}`), hash("a\x7f"), false},
		{"C1 control", message(`{"text":"x","id":"a\u0085"}`), hash("a\u0085"), false},
		{"invalid UTF-8 in the header", withHeader(message("x"), "Nats-Msg-Id", "a\xff"), hash("a\xff"), false},
		{"not ASCII", message(`{"text":"x","id":"é🔥"}`), "é🔥", false},
		{"long stream name", event.Message{Subject: "notify.a", Data: []byte("x"), Stream: long, Sequence: 1}, hash(long + ":1"), true},
	} {
		got, err := decoder().Decode(test.m)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if got.ID != test.want || got.Derived != test.derived {
			t.Errorf("%s: ID %q, derived %t, want %q, %t", test.name, got.ID, got.Derived, test.want, test.derived)
		}
	}
	if id := hash("a\nb"); id != "sha256:7e18f737311b2dc3b2f269dd78396b0351f14fb6" || len(id) > event.MaxIDBytes {
		t.Errorf("the hash of an ID is %q", id)
	}
}

// inRoom is m as a message of the room.
func inRoom(m event.Message, identity event.RoomIdentity) event.Message {
	m.Room = &identity
	return m
}

func TestDecodePart(t *testing.T) {
	t.Parallel()
	headers := []string{"Notifier-Part", "p", event.HeaderID, "i"}
	for _, test := range []struct {
		name string
		m    event.Message
		part string
	}{
		{"a producer's header", withHeader(message("x"), headers...), ""},
		{"the room", inRoom(message("x"), event.RoomIdentity{ID: "i", Part: "fingerprint"}), "fingerprint"},
		{"the room beside headers", inRoom(withHeader(message("x"), headers...), event.RoomIdentity{ID: "i"}), ""},
		{"the room beside a fault", inRoom(message("{"), event.RoomIdentity{ID: "i", Part: "fingerprint"}), "fingerprint"},
	} {
		if got, _ := decoder().Decode(test.m); got.Part != test.part {
			t.Errorf("%s: part %q, want %q", test.name, got.Part, test.part)
		}
	}
}

func TestDecodeIDBesideAFault(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		m    event.Message
		want string
	}{
		{"bad JSON", message("{"), "NOTIFICATIONS:7"},
		{"bad JSON, header", withHeader(message("{"), "Nats-Msg-Id", "h"), "h"},
		{"too large, header", withHeader(message(strings.Repeat("x", maxBytes+1)), "nats-msg-id", "h"), "h"},
		{"too large, binary CloudEvent", withHeader(message(strings.Repeat("x", maxBytes+1)), "ce-id", "1", "ce-source", "/s"), "/s/1"},
		{"bad field", message(`{"text":"x","id":"b","cost":0}`), "b"},
		{"bad id", message(`{"text":"x","id":1}`), "NOTIFICATIONS:7"},
		{"empty", message(`{"id":"b"}`), "b"},
		{"bad envelope", message(`{"specversion":"1.0","id":"1","source":"/s","data":"x"}`), "/s/1"},
		{"bad version", message(`{"specversion":"2.0","id":"1","source":"/s","type":"t","data":"x"}`), "/s/1"},
		{"bad JSON in the room", inRoom(withHeader(message("{"), "Nats-Msg-Id", "h"), event.RoomIdentity{ID: "r"}), "r"},
		{"half an envelope", message(`{"specversion":"1.0","id":"1","type":"t","data":"x"}`), "NOTIFICATIONS:7"},
	} {
		got, err := decoder().Decode(test.m)
		if err == nil || got.ID != test.want {
			t.Errorf("%s: ID %q, %v, want %q beside a fault", test.name, got.ID, err, test.want)
		}
	}
}

func TestDecodeStructuredCloudEvent(t *testing.T) {
	t.Parallel()
	envelope := func(members string) string {
		return `{"specversion":"1.0","id":"1","source":"/s","type":"t"` + members + `}`
	}
	encoded := func(data string) string {
		return envelope(`,"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `"`)
	}
	taken := func(change func(*event.Event)) event.Event {
		e := event.Event{ID: "/s/1", Category: "errors", Severity: event.SeverityInfo, Cost: 1, Source: "/s"}
		change(&e)
		return e
	}
	text := func(text string) event.Event { return taken(func(e *event.Event) { e.Text = text }) }
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name, body string
		want       event.Event
	}{
		{"object", envelope(`,"data":{"title":"x","cost":2}`), taken(func(e *event.Event) { e.Title, e.Cost = "x", 2 })},
		{"string", envelope(`,"data":"a \"text\""`), text(`a "text"`)},
		{"string like an object", envelope(`,"data":"{broken"`), text("{broken")},
		{"string of a type", envelope(`,"data":"x","datacontenttype":"text/plain; charset=utf-8"`), text("x")},
		{"number", envelope(`,"data": 42 `), text("42")},
		{"array", envelope(`,"data":[1, {"title":"x"}]`), text(`[1, {"title":"x"}]`)},
		{"boolean", envelope(`,"data":false`), text("false")},
		{"base64 text", encoded("hello"), text("hello")},
		{"base64 object", encoded(` {"text":"x"}`), text("x")},
		{"base64 JSON string", envelope(`,"datacontenttype":"application/JSON","data_base64":"ImhpIg=="`), text("hi")},
		{"data null beside base64", envelope(`,"data":null,"data_base64":"aGk="`), text("hi")},
		{"time of the envelope", envelope(`,"time":"2026-01-01T12:00:00Z","data":"x"`),
			taken(func(e *event.Event) { e.Text, e.Time = "x", noon })},
		{"status and key", envelope(`,"status":5,"data":{"text":"x","status":"resolved","key":"k"}`),
			taken(func(e *event.Event) { e.Text, e.Status, e.Key = "x", event.StatusResolved, "k" })},
		{"base64 status", encoded(`{"text":"x","status":"resolved"}`),
			taken(func(e *event.Event) { e.Text, e.Status = "x", event.StatusResolved })},
		{"alert", envelope(`,"time":"2026-01-01T12:00:00Z","data":{"alerts":[{"status":"firing","fingerprint":"f","labels":{"alertname":"x"}}]}`),
			taken(func(e *event.Event) {
				e.Title, e.Severity, e.Status, e.Key, e.Time = "x", event.SeverityWarning, event.StatusFiring, "f", noon
			})},
		{"data over envelope", envelope(`,"time":"1970-01-01T00:00:00Z","data":{"text":"x","time":"2026-01-01T12:00:00Z","source":"mine","id":"no"}`),
			taken(func(e *event.Event) { e.Text, e.Time, e.Source = "x", noon, "mine" })},
		{"extensions and nulls", envelope(`,"traceparent":"00-1","weird-name":{"a":1},"":5,"subject":null,"time":null,"data":"x"`), text("x")},
		{"members of the envelope are not of the event", envelope(`,"title":"no","cost":0,"data":"x"`), text("x")},
		{"last duplicate", `{"specversion":"0.3","id":7,"specversion":"1.0","id":"1","source":"/s","type":"t","data":"no","data":"x"}`, text("x")},
		{"specversion last", `{"data":"x","type":"t","source":"/s","id":"1","specversion":"1.0"}`, text("x")},
	} {
		plain := message(test.body)
		for name, m := range map[string]event.Message{
			"by the member":       plain,
			"by the content type": withHeader(plain, "Content-Type", "application/cloudevents+json"),
			"in any case":         withHeader(plain, "CONTENT-type", " Application/CloudEvents+JSON ; charset=UTF-8"),
			"without a format":    withHeader(plain, "content-type", "application/cloudevents"),
			"beside another type": withHeader(plain, "Content-Type", "application/json"),
		} {
			got, err := decoder().Decode(m)
			if err != nil {
				t.Errorf("%s, %s: %v", test.name, name, err)
			} else if !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s, %s: %+v, want %+v", test.name, name, got, test.want)
			}
		}
	}
}

func TestDecodeStructuredCloudEventFaults(t *testing.T) {
	t.Parallel()
	const valid = `"specversion":"1.0","id":"1","source":"/s","type":"t","data":"x"`
	for _, test := range []struct {
		body   string
		reason event.Reason
		detail string
	}{
		{`{"id":"1","source":"/s","type":"t","data":"x"}`, event.ReasonBadCloudEvent, "specversion is missing"},
		{`{` + valid + `,"specversion":"0.3"}`, event.ReasonBadCloudEvent, `specversion must be "1.0", not "0.3"`},
		{`{` + valid + `,"specversion":""}`, event.ReasonBadCloudEvent, "specversion"},
		{`{` + valid + `,"specversion":1.0}`, event.ReasonBadCloudEvent, "specversion must be a string, not 1.0"},
		{`{` + valid + `,"id":null}`, event.ReasonBadCloudEvent, "id: "},
		{`{` + valid + `,"id":""}`, event.ReasonBadCloudEvent, "id: "},
		{`{` + valid + `,"id":" "}`, event.ReasonBadCloudEvent, "id: "},
		{`{` + valid + `,"id":7}`, event.ReasonBadCloudEvent, "id must be a string, not 7"},
		{`{` + valid + `,"source":null}`, event.ReasonBadCloudEvent, "source: "},
		{`{` + valid + `,"source":"http://[::1"}`, event.ReasonBadCloudEvent, "source: "},
		{`{` + valid + `,"source":{}}`, event.ReasonBadCloudEvent, "source must be a string"},
		{`{` + valid + `,"type":null}`, event.ReasonBadCloudEvent, "type: "},
		{`{` + valid + `,"type":[]}`, event.ReasonBadCloudEvent, "type must be a string"},
		{`{"specversion":"1.0"}`, event.ReasonBadCloudEvent, "id: "},
		{`{` + valid + `,"time":"noon"}`, event.ReasonBadCloudEvent, "time must be"},
		{`{` + valid + `,"time":5}`, event.ReasonBadCloudEvent, "time must be a string"},
		{`{` + valid + `,"datacontenttype":"no type;;"}`, event.ReasonBadCloudEvent, "datacontenttype: "},
		{`{` + valid + `,"dataschema":"relative"}`, event.ReasonBadCloudEvent, "dataschema: "},
		{`{` + valid + `,"subject":1}`, event.ReasonBadCloudEvent, "subject must be a string"},
		{`{` + valid + `,"data_base64":"aGk="}`, event.ReasonBadCloudEvent, "exclude each other"},
		{`{` + valid + `,"data":null,"data_base64":5}`, event.ReasonBadCloudEvent, "data_base64 must be a string"},
		{`{` + valid + `,"data":null,"data_base64":"a"}`, event.ReasonBadCloudEvent, "data_base64 is not base64"},
		{`{` + valid + `,"data":null,"data_base64":"%%%%"}`, event.ReasonBadCloudEvent, "data_base64 is not base64"},
		{`{` + valid + `,"data":null,"data_base64":"//8="}`, event.ReasonBadUTF8, ""},
		{`{` + valid + `,"data":null,"data_base64":"e2JhZA=="}`, event.ReasonBadJSON, ""},
		{`{` + valid + `,"data":null,"data_base64":"YmFk","datacontenttype":"application/vnd.x+json"}`, event.ReasonBadJSON, ""},
		{`{` + valid, event.ReasonBadJSON, ""},
		{`{` + valid + `}}`, event.ReasonBadJSON, ""},
		{`{` + valid + `,"data":{"text":"x","cost":0}}`, event.ReasonBadField, "cost "},
		{`{` + valid + `,"data":{"text":7}}`, event.ReasonBadField, "text "},
		{`{` + valid + `,"data":{"text":"x","id":7}}`, event.ReasonBadField, "id "},
		{`{` + valid + `,"data":{"text":"x","fields":{"a":1}}}`, event.ReasonBadField, "fields.a "},
		{`{` + valid + `,"data":{}}`, event.ReasonEmpty, ""},
		{`{` + valid + `,"data":null}`, event.ReasonEmpty, ""},
		{`{` + valid + `,"data":"  "}`, event.ReasonEmpty, ""},
		{`{` + valid + `,"data":null,"data_base64":""}`, event.ReasonEmpty, ""},
		{`{` + valid + `,"data":null,"data_base64":"","datacontenttype":"application/json"}`, event.ReasonEmpty, ""},
	} {
		_, err := decoder().Decode(withHeader(message(test.body), "Content-Type", "application/cloudevents+json"))
		checkFault(t, err, test.reason, test.detail)
		if t.Failed() {
			t.Fatalf("body %s", test.body)
		}
	}
}

func TestDecodeCloudEventContentTypeFaults(t *testing.T) {
	t.Parallel()
	const body = `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"x"}`
	for _, test := range []struct{ contentType, body, detail string }{
		{"application/cloudevents-batch+json", "[" + body + "]", "batches are not supported"},
		{"Application/CloudEvents-Batch+JSON; charset=utf-8", body, "batches are not supported"},
		{"application/cloudevents+avro", body, "application/cloudevents+avro"},
		{"application/cloudevents+json", "plain", "must be a JSON object"},
		{"application/cloudevents+json", "[" + body + "]", "must be a JSON object"},
		{"application/cloudevents+json", "", "must be a JSON object"},
	} {
		_, err := decoder().Decode(withHeader(message(test.body), "Content-Type", test.contentType))
		checkFault(t, err, event.ReasonBadCloudEvent, test.detail)
	}
}

func TestDecodeBinaryCloudEvent(t *testing.T) {
	t.Parallel()
	required := []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}
	taken := func(change func(*event.Event)) event.Event {
		e := event.Event{ID: "/s/1", Category: "errors", Severity: event.SeverityInfo, Cost: 1, Source: "/s", Text: "x"}
		change(&e)
		return e
	}
	nothing := func(*event.Event) {}
	for _, test := range []struct {
		name   string
		header []string
		body   string
		want   event.Event
	}{
		{"text", nil, "x", taken(nothing)},
		{"object", nil, ` {"text":"x","severity":"error"}`, taken(func(e *event.Event) { e.Severity = event.SeverityError })},
		{"JSON object", []string{"Content-Type", "application/json"}, `{"text":"x"}`, taken(nothing)},
		{"JSON string", []string{"content-type", "Application/JSON; charset=utf-8"}, `"x"`, taken(nothing)},
		{"JSON number", []string{"Content-Type", "application/json"}, " 5\n", taken(func(e *event.Event) { e.Text = "5" })},
		{"the attribute over the header", []string{"Content-Type", "application/json", "ce-datacontenttype", "text/plain"}, `x`, taken(nothing)},
		{"declared text", []string{"Content-Type", "text/plain"}, `{x`, taken(func(e *event.Event) { e.Text = "{x" })},
		{"time", []string{"ce-time", "2026-01-01T00:00:00Z"}, "x",
			taken(func(e *event.Event) { e.Time = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) })},
		{"data over headers", []string{"ce-time", "2026-01-01T00:00:00Z"}, `{"text":"x","source":"mine","time":"1970-01-01T00:00:00Z"}`,
			taken(func(e *event.Event) { e.Source, e.Time = "mine", time.Unix(0, 0).UTC() })},
		{"extensions", []string{"ce-traceparent", "00", "ce-", "x", "ce-Bad Name", "\xff"}, "x", taken(nothing)},
		{"a specversion in the data is nothing special", nil, `{"specversion":"9","text":"x"}`, taken(nothing)},
	} {
		for name, spell := range map[string]func(string) string{
			"lower case": strings.ToLower, "upper case": strings.ToUpper, "HTTP case": func(s string) string {
				return "Ce-" + s[len("ce-"):]
			},
		} {
			var pairs []string
			for i, part := range slices.Concat(required, test.header) {
				if i%2 == 0 && strings.HasPrefix(part, "ce-") {
					part = spell(part)
				}
				pairs = append(pairs, part)
			}
			got, err := decoder().Decode(withHeader(message(test.body), pairs...))
			if err != nil {
				t.Errorf("%s, %s: %v", test.name, name, err)
			} else if !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s, %s: %+v, want %+v", test.name, name, got, test.want)
			}
		}
	}
}

func TestDecodeBinaryCloudEventPercentDecoding(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		given, want string
		isReference bool
	}{
		{"/caf%C3%A9", "/café", true},
		{"/a%20b", "/a b", true},
		{"/a+b", "/a+b", true},
		{"/raw-é", "/raw-é", true},
		{"/\xff", "/\ufffd", true},
		{"/%FF", "/%FF", true}, // stands for itself: it decodes to no text
		{"/100%25", "/100%", false},
		{"/100%", "/100%", false}, // stands for itself: its producer did not encode it
	} {
		got, err := decoder().Decode(withHeader(message("x"),
			"ce-specversion", "1.0", "ce-id", "n%C2%B01", "ce-source", test.given, "ce-type", "t"))
		testkit.Equal(t, got.ID, test.want+"/n°1", "ce-source %q: ID", test.given)
		if !test.isReference {
			checkFault(t, err, event.ReasonBadCloudEvent, "source: ")
		} else if err != nil || got.Source != test.want {
			t.Errorf("ce-source %q: source %q, %v, want %q", test.given, got.Source, err, test.want)
		}
	}
}

func TestDecodeBinaryCloudEventFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		header []string
		body   string
		reason event.Reason
		detail string
	}{
		{[]string{"ce-specversion", "1.0"}, "x", event.ReasonBadCloudEvent, "id: "},
		{[]string{"ce-id", "1"}, "x", event.ReasonBadCloudEvent, "specversion is missing"},
		{[]string{"ce-type", "t"}, "x", event.ReasonBadCloudEvent, "specversion is missing"},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s"}, "x", event.ReasonBadCloudEvent, "type: "},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-type", "t"}, "x", event.ReasonBadCloudEvent, "source: "},
		{[]string{"ce-specversion", "1.0", "ce-source", "/s", "ce-type", "t"}, "x", event.ReasonBadCloudEvent, "id: "},
		{[]string{"ce-specversion", "0.3", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, "x", event.ReasonBadCloudEvent, "specversion"},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t", "ce-time", "x"}, "x", event.ReasonBadCloudEvent, "time "},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, "", event.ReasonEmpty, ""},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, "{", event.ReasonBadJSON, ""},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, "\xff", event.ReasonBadUTF8, ""},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, `{"text":"x","cost":0}`, event.ReasonBadField, "cost "},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t", "Content-Type", "application/json"}, "x", event.ReasonBadJSON, ""},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t", "Content-Type", "application/json"}, "null", event.ReasonEmpty, ""},
		{[]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t", "Content-Type", "application/json"}, " ", event.ReasonEmpty, ""},
	} {
		_, err := decoder().Decode(withHeader(message(test.body), test.header...))
		checkFault(t, err, test.reason, test.detail)
	}
}

func TestDecodeHeaders(t *testing.T) {
	t.Parallel()
	thousand := message("x")
	thousand.Header = map[string][]string{"nats-msg-id": {"h"}}
	for i := range 1000 {
		thousand.Header[fmt.Sprintf("X-%d", i)] = []string{"v", "w"}
	}
	want := decoded(func(e *event.Event) { e.ID, e.Derived, e.Text = "h", false, "x" })
	if got, err := decoder().Decode(thousand); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("a thousand headers: %+v, %v, want %+v", got, err, want)
	}
	empty := message("x")
	empty.Header = map[string][]string{"Nats-Msg-Id": nil, "Content-Type": {}, "ce-id": nil, "": {"x"}, "ce-custom": {"x"}}
	want = decoded(func(e *event.Event) { e.Text = "x" })
	if got, err := decoder().Decode(empty); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("headers without values: %+v, %v, want %+v", got, err, want)
	}
}

func TestDecodeKeepsTheMessage(t *testing.T) {
	t.Parallel()
	body := `{"title":"a","text":"b","fields":{"c":"d"},"id":"e"}`
	m := message(body)
	got := testkit.Must(decoder().Decode(m))(t)
	if string(m.Data) != body {
		t.Errorf("the body was changed to %s", m.Data)
	}
	clear(m.Data)
	if got.Title != "a" || got.Text != "b" || got.Fields[0] != (event.Field{Name: "c", Value: "d"}) || got.ID != "e" {
		t.Errorf("the event changed with the body: %+v", got)
	}
}

func TestReasonsAndFault(t *testing.T) {
	t.Parallel()
	want := []event.Reason{
		"bad_json", "bad_utf8", "empty", "too_large", "bad_category", "bad_field", "bad_cloudevent", "slack_rejected",
	}
	testkit.EqualSlices(t, event.Reasons(), want, "Reasons()")
	cause := errors.New("cause")
	fault := event.NewFault(event.ReasonSlackRejected, "a\nb\x00\xff"+strings.Repeat("é", 200), cause)
	if !errors.Is(fault, cause) {
		t.Error("the cause is lost")
	}
	checkFault(t, fault, event.ReasonSlackRejected, "a b\ufffd\ufffdé")
	if !strings.HasSuffix(fault.Detail, "é…") {
		t.Errorf("detail %q, want it cut at a rune with a mark", fault.Detail)
	}
}

func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		"", "plain", "null", "[1]", "{", "{}", "\ufeff {\"text\":\"x\"}", "\xff", "\x00",
		`{"title":"t","text":"x","severity":"error","fields":{"a":"b","a":"c"},"time":"2026-01-01T00:00:00Z","cost":3,"link":"https://a"}`,
		`{"text":"x","cost":1.5}`, `{"text":"\ud800"}`, `{"text":"x","category":"A.b"}`, `{"text":"x","category":5}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"text":"x"}}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"aGk="}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":5}`,
		`{"text":"x","status":"resolved","key":"k\n"}`, `{"text":"x","status":"\u0072esolved"}`, `{"text":"x","status":"ok"}`,
		`{"alerts":[]}`, `{"alerts":[{"labels":{"alertname":"x"},"startsAt":"2026-01-01T00:00:00Z"},{"status":"resolved"}],"receiver":"r"}`,
		`{"alerts":[{"labels":{"alertname":1}}],"externalURL":"https://a"}`, `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"alerts":[{}]}}`,
		strings.Repeat(`{"a":`, 1_200) + "1" + strings.Repeat("}", 1_200),
	} {
		f.Add("notify.errors", "", "", "", []byte(body))
		f.Add("notify", "Nats-Msg-Id", "id\n", "", []byte(body))
		f.Add("notify.a", "ce-specversion", "1.0", "application/json", []byte(body))
		f.Add("notify.🔥", "CE-ID", "%ff", "application/cloudevents+json", []byte(body))
	}
	f.Fuzz(func(t *testing.T, subject, name, value, contentType string, body []byte) {
		m := event.Message{
			Subject: subject, Data: body, Stream: "S", Sequence: 1,
			Header: map[string][]string{name: {value}, "content-type": {contentType}},
		}
		if strings.EqualFold(name, "ce-specversion") { // reach what lies behind the envelope too
			m.Header["ce-id"], m.Header["ce-source"], m.Header["ce-type"] = []string{"1"}, []string{"/s"}, []string{"t"}
		}
		d := event.Decoder{Prefix: "notify", MaxBytes: 20_000}
		e, err := d.Decode(m)
		if e.ID == "" || len(e.ID) > event.MaxIDBytes || !utf8.ValidString(e.ID) || strings.ContainsFunc(e.ID, unicode.IsControl) {
			t.Errorf("ID %q", e.ID)
		}
		again, againErr := d.Decode(m)
		if !reflect.DeepEqual(e, again) || fmt.Sprint(err) != fmt.Sprint(againErr) {
			t.Errorf("decoded to %+v, %v and then to %+v, %v", e, err, again, againErr)
		}
		if err != nil {
			var fault *event.Fault
			if !errors.As(err, &fault) || !slices.Contains(event.Reasons(), fault.Reason) {
				t.Fatalf("error %v (%T) is not a fault with a known reason", err, err)
			}
			checkFault(t, err, fault.Reason, "")
			return
		}
		if err := event.ValidatePath(e.Category); err != nil {
			t.Error(err)
		}
		if e.Cost < 1 || e.Cost > event.MaxCost {
			t.Errorf("cost %d", e.Cost)
		}
		if strings.TrimSpace(e.Title) == "" && strings.TrimSpace(e.Text) == "" {
			t.Errorf("neither title %q nor text %q", e.Title, e.Text)
		}
		if !slices.Contains([]event.Severity{"info", "warning", "error", "critical"}, e.Severity) {
			t.Errorf("severity %q", e.Severity)
		}
		if !slices.Contains([]event.Status{"", "firing", "resolved"}, e.Status) {
			t.Errorf("status %q", e.Status)
		}
		if event.StableID(e.Key) != e.Key {
			t.Errorf("key %q", e.Key)
		}
		if heading := e.Heading(); strings.TrimSpace(heading) == "" {
			t.Errorf("heading %q", heading)
		}
		all := []string{e.Title, e.Text, e.Source, e.Link}
		for _, field := range e.Fields {
			all = append(all, field.Name, field.Value)
		}
		for _, s := range all {
			if !utf8.ValidString(s) {
				t.Errorf("%q is not valid UTF-8", s)
			}
		}
	})
}
