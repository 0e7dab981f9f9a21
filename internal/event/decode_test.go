package event_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const maxBytes = 262_144

func decoder() event.Decoder { return event.Decoder{Prefix: "notify", MaxBytes: maxBytes} }

// message is a stored body of the category errors.
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

// changes modify an event.
type changes func(*event.Event)

// decoded is the event of message with changes.
func decoded(all ...changes) event.Event {
	e := event.Event{ID: "NOTIFICATIONS:7", Derived: true, Category: "errors", Severity: event.SeverityInfo, Cost: 1}
	for _, change := range all {
		change(&e)
	}
	return e
}

func requireDecoded(t testing.TB, m event.Message, want event.Event, name string) {
	t.Helper()
	got, err := decoder().Decode(m)
	if err != nil {
		t.Errorf("%s: got %v, want no error", name, err)
		return
	}
	testkit.EqualDeeply(t, got, want, "%s", name)
}

// faulty are bodies of one fault.
type faulty struct {
	reason event.Reason
	detail string // a part of the detail
	bodies []string
}

// requireFaults compares the faults of bodies with headers.
func requireFaults(t *testing.T, table []faulty, headers ...string) {
	t.Helper()
	for _, test := range table {
		for _, body := range test.bodies {
			got, err := decoder().Decode(withHeader(message(body), headers...))
			checkFault(t, err, test.reason, test.detail)
			testkit.Equal(t, got.ID != "", true, "the event beside the fault has an ID")
			testkit.Equal(t, got.Category, "errors", "category of the event beside the fault")
			testkit.Require(t, !t.Failed(), "got the errors above, want none for the body %.200q", body)
		}
	}
}

// checkFault compares the reason and a part of the detail, and checks the form of the fault.
func checkFault(t testing.TB, err error, reason event.Reason, detail string) {
	t.Helper()
	var fault *event.Fault
	if !errors.As(err, &fault) {
		t.Errorf("error: got %v (%T), want a *Fault with %s", err, err, reason)
		return
	}
	testkit.Equal(t, fault.Reason, reason, "reason of %v", fault)
	testkit.Contains(t, "detail", fault.Detail, detail)
	if fault.Detail == "" || len(fault.Detail) > 200 || !utf8.ValidString(fault.Detail) ||
		strings.ContainsFunc(fault.Detail, func(r rune) bool { return !strconv.IsPrint(r) }) {
		t.Errorf("detail: got %q, want one printable line of at most 200 bytes", fault.Detail)
	}
	testkit.Equal(t, fault.Error(), string(fault.Reason)+": "+fault.Detail, "Error()")
}

func TestDecodePlainText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"disk full", " two\n lines \n", "null", "true", "42", `"quoted"`, `[{"title":"x"}]`, "[", strings.Repeat("[", 20_000),
		"<!channel> & <b>", "nul \x00 and bell \a", "🔥", "\ufffd",
		"text with { later", "\u00a0{not an object}", "\v{not an object}",
	} {
		for _, body := range []string{text, "\ufeff" + text} {
			requireDecoded(t, message(body), decoded(withText(text)), fmt.Sprintf("%.40q", body))
		}
	}
}

// faults has faults of whole bodies.
var faults = []faulty{
	{event.ReasonEmpty, "title nor text", []string{
		"", " \n\t", "\ufeff", "\x00\x01", "\u200b\u2060", "\u3164\u115f\ufe0f\u2800", "{}", `{"id":"x","cost":2}`, `{"title":" ","text":"\n"}`, `{"title":null,"text":null}`,
		`{"Title":"x"}`,
	}},

	{event.ReasonBadJSON, "unexpected end", []string{"{"}},
	{event.ReasonBadJSON, "at byte 11", []string{`{"text":"x"`}},
	{event.ReasonBadJSON, "at byte 14", []string{`{"text":"x"} {}`}},
	{event.ReasonBadJSON, "after top-level value", []string{`{"text":"x"}junk`}},
	{event.ReasonBadJSON, "depth", []string{
		strings.Repeat(`{"text":`, 10_001) + "1" + strings.Repeat("}", 10_001), strings.Repeat(`{"text":`, 20_000) + "1" + strings.Repeat("}", 20_000),
	}},
	{event.ReasonBadJSON, "not valid JSON", []string{
		" \ufeff{", `{"text":"x",}`, `{'text':'x'}`, `{text:"x"}`, "{\"text\":\"a\nb\"}", `{"text":"x","y":01}`, `{"text":"x","y":NaN}`,
		`{"text":"x","cost":"1}`, strings.Repeat(`{"text":`, 20_000), `{"text":"x","y":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}",
	}},

	{event.ReasonBadUTF8, "at byte 1", []string{"\xff"}},
	{event.ReasonBadUTF8, "at byte 6", []string{"text \xc3\x28"}},
	{event.ReasonBadUTF8, "at byte 5", []string{"\ufffd \xed\xa0\x80"}},
	{event.ReasonBadUTF8, "", []string{"{\"text\":\"x\",\"unknown\":\"\xfe\"}", "{\xff"}},

	{event.ReasonTooLarge, "262145 bytes", []string{strings.Repeat("x", maxBytes+1)}},
	{event.ReasonTooLarge, "at most 262144", []string{"{" + strings.Repeat("\xff", maxBytes)}},
}

func TestDecodeFaults(t *testing.T) {
	t.Parallel()
	requireFaults(t, faults)
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
		{"notify", `{"category":5,"alerts":[{}]}`, event.ReasonBadCategory},
		{"notify.a", `{"cost":0}`, event.ReasonBadField},
		{"notify.a", `{"cost":1}`, event.ReasonEmpty},
	} {
		_, err := d.Decode(event.Message{Subject: test.subject, Data: []byte(test.body)})
		checkFault(t, err, test.reason, "")
	}
}

func TestDecodeMaxBytes(t *testing.T) {
	t.Parallel()
	testkit.Must(decoder().Decode(message(strings.Repeat("x", maxBytes))))(t)
	testkit.Must(event.Decoder{Prefix: "notify"}.Decode(message(strings.Repeat("x", 4*maxBytes))))(t)
}

func TestDecodeCategory(t *testing.T) {
	t.Parallel()
	decode := func(subject, body string) (event.Event, error) {
		return decoder().Decode(event.Message{Subject: subject, Data: []byte(body), Stream: "S", Sequence: 1})
	}
	for _, test := range []struct{ subject, body, want string }{
		{"notify.Payments.Refunds", "x", "payments.refunds"},
		{"notify.a", `{"text":"x","category":"b"}`, "a"},
		{"notify.a", `{"text":"x","category":"🔥"}`, "a"},
		{"notify", "x", event.Default},
		{"notify", `{"text":"x"}`, event.Default},
		{"notify", `{"text":"x","category":null}`, event.Default},
		{"notify", `{"text":"x","category":""}`, event.Default},
		{"notify", `{"text":"x","category":"Payments.Refunds"}`, "payments.refunds"},
		{"notify", `{"text":"x","category":"global"}`, "global"},
		{"notify", `{"text":"x","category":1,"category":"a"}`, "a"},
	} {
		got := testkit.Must(decode(test.subject, test.body))(t)
		testkit.Equal(t, got.Category, test.want, "category of %s %s", test.subject, test.body)
	}
	for value, fault := range map[string]string{
		"7": "category must be a string, not 7", `["a"]`: "category must be a string", `"a b"`: `category "a b"`, `" "`: `category " "`,
		`"*"`: `category "*"`, `"a.b.c.d.e.f.g.h.i"`: "9 levels", `"` + strings.Repeat(`\u0000`, 1_000) + `"`: "1000 bytes",
	} {
		got, err := decode("notify", `{"text":"x","category":`+value+`}`)
		testkit.Equal(t, got.Category, "", "category %.100s", value)
		checkFault(t, err, event.ReasonBadCategory, fault)
	}
	for subject, fault := range map[string]string{"notify.🔥": `category "🔥"`, "other": "other"} {
		got, err := decode(subject, `{"text":"x","category":"a"}`)
		testkit.Equal(t, got.Category, "", "category on %s", subject)
		checkFault(t, err, event.ReasonBadCategory, fault)
	}
}

func TestDecodeHeaders(t *testing.T) {
	t.Parallel()
	thousand := message("x")
	thousand.Header = map[string][]string{"nats-msg-id": {"h"}}
	for i := range 1000 {
		thousand.Header[fmt.Sprintf("X-%d", i)] = []string{"v", "w"}
	}
	requireDecoded(t, thousand, decoded(textX, func(e *event.Event) { e.ID, e.Derived = "h", false }), "a thousand headers")
	empty := message("x")
	empty.Header = map[string][]string{"Nats-Msg-Id": nil, "Content-Type": {}, "ce-id": nil, "": {"x"}, "ce-custom": {"x"}}
	requireDecoded(t, empty, decoded(textX), "headers without values")
}

func TestDecodeKeepsTheMessage(t *testing.T) {
	t.Parallel()
	body := `{"title":"a","text":"b","fields":{"c":"d"},"id":"e"}`
	m := message(body)
	got := testkit.Must(decoder().Decode(m))(t)
	testkit.Equal(t, string(m.Data), body, "body after decoding")
	clear(m.Data)
	testkit.Check(t, got.Title == "a" && got.Text == "b" && got.Fields[0] == (event.Field{Name: "c", Value: "d"}) && got.ID == "e",
		"event after a change of the body: got %+v, want no change", got)
}

func TestReasonsAndFault(t *testing.T) {
	t.Parallel()
	want := []event.Reason{
		"bad_json", "bad_utf8", "empty", "too_large", "bad_category", "bad_field", "bad_cloudevent", "rejected",
	}
	testkit.EqualSlices(t, event.Reasons(), want, "Reasons()")
	fault := event.NewFault(event.ReasonRejected, "a\nb\x00\xff"+strings.Repeat("é", 200))
	checkFault(t, fault, event.ReasonRejected, "a b\ufffd\ufffdé")
	testkit.Equal(t, strings.HasSuffix(fault.Detail, "é…"), true, "the detail %q is cut at a rune, with a mark", fault.Detail)
}

var fuzzedBodies = []string{
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
}

func FuzzDecode(f *testing.F) {
	for _, body := range fuzzedBodies {
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
		if strings.EqualFold(name, "ce-specversion") { // completes the envelope
			m.Header["ce-id"], m.Header["ce-source"], m.Header["ce-type"] = []string{"1"}, []string{"/s"}, []string{"t"}
		}
		d := event.Decoder{Prefix: "notify", MaxBytes: 20_000}
		e, err := d.Decode(m)
		testkit.Check(t, e.ID != "" && len(e.ID) <= event.MaxIDBytes && utf8.ValidString(e.ID) && !strings.ContainsFunc(e.ID, unicode.IsControl),
			"ID: got %q, want a printable one of 1 to %d bytes", e.ID, event.MaxIDBytes)
		again, againErr := d.Decode(m)
		testkit.Check(t, reflect.DeepEqual(e, again) && fmt.Sprint(err) == fmt.Sprint(againErr),
			"second event: got %+v, %v, want %+v, %v", again, againErr, e, err)
		if err != nil {
			fault, isFault := errors.AsType[*event.Fault](err)
			testkit.Require(t, isFault && slices.Contains(event.Reasons(), fault.Reason),
				"error: got %v (%T), want a fault with a known reason", err, err)
			checkFault(t, err, fault.Reason, "")
			return
		}
		checkEvent(t, e)
	})
}

func checkEvent(t *testing.T, e event.Event) {
	t.Helper()
	if err := event.ValidatePath(e.Category); err != nil {
		t.Error(err)
	}
	testkit.Between(t, e.Cost, 1, event.MaxCost, "cost")
	if strings.TrimSpace(e.Title) == "" && strings.TrimSpace(e.Text) == "" {
		t.Errorf("got title %q and text %q, want one of them", e.Title, e.Text)
	}
	testkit.Equal(t, slices.Contains([]event.Severity{"info", "warning", "error", "critical"}, e.Severity), true, "the severity %q is known", e.Severity)
	testkit.Equal(t, slices.Contains([]event.Status{"", "firing", "resolved"}, e.Status), true, "the status %q is known", e.Status)
	testkit.Equal(t, event.StableID(e.Key), e.Key, "stable key")
	testkit.Equal(t, strings.TrimSpace(e.Heading()) != "", true, "the heading %q is visible", e.Heading())
	all := []string{e.Title, e.Text, e.Source, e.Link}
	for _, field := range e.Fields {
		all = append(all, field.Name, field.Value)
	}
	for _, s := range all {
		testkit.Equal(t, utf8.ValidString(s), true, "%q is valid UTF-8", s)
	}
}

// TestHeaders keeps what Decode and TraceContext read of a message's headers, and nothing else.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header map[string][]string
		want   []string // names
	}{
		"none":                      {nil, nil},
		"of a CloudEvent":           {map[string][]string{"ce-id": {"1"}, "Ce-Source": {"/a"}, "CE-TYPE": {"t"}, "ce-specversion": {"1.0"}}, []string{"ce-id", "ce-source", "ce-specversion", "ce-type"}},
		"several spellings":         {map[string][]string{"ce-id": {"1"}, "CE-ID": {"2"}, "Ce-Id": {"3"}}, []string{"ce-id"}},
		"a trace":                   {map[string][]string{"Traceparent": {"a"}, "tracestate": {"b"}, "ce-traceparent": {"c"}, "ce-tracestate": {"d"}}, []string{"ce-traceparent", "ce-tracestate", "traceparent", "tracestate"}},
		"a media type":              {map[string][]string{"content-type": {"text/plain"}}, []string{"Content-Type"}},
		"without a value":           {map[string][]string{"ce-id": {}, "Content-Type": {""}}, nil},
		"of nobody":                 {map[string][]string{"X-Trace": {"1"}, "ce-extension": {"x"}, "Bad Name": {"x"}, "": {"x"}}, nil},
		"of the server and workers": {map[string][]string{"Nats-Msg-Id": {"1"}, "Status": {"409"}, "Notifier-Id": {"x"}}, nil},
	} {
		got := event.Headers(test.header)
		testkit.EqualSlices(t, slices.Sorted(maps.Keys(got)), test.want, "%s: names of the headers", name)
		testkit.Equal(t, event.MessageID(event.HeadersToRead(test.header)), event.MessageID(test.header), "%s: Nats-Msg-Id", name)
		decoder := event.Decoder{Prefix: "notify"}
		before, _ := decoder.Decode(event.Message{Subject: "notify.a", Header: test.header, Data: []byte(`{"title":"x"}`)})
		after, _ := decoder.Decode(event.Message{Subject: "notify.a", Header: got, Data: []byte(`{"title":"x"}`)})
		if name != "of the server and workers" {
			testkit.Equal(t, after.ID, before.ID, "%s: ID of the event", name)
		}
		testkit.Equal(t, after.Title, before.Title, "%s: title of the event", name)
	}
}
