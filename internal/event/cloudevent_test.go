package event_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// envelope is a CloudEvent in structured mode.
func envelope(members string) string {
	return `{"specversion":"1.0","id":"1","source":"/s","type":"t"` + members + `}`
}

func encodedEnvelope(data string) string {
	return envelope(`,"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `"`)
}

// ofEnvelope is the event of envelope with changes.
func ofEnvelope(all ...changes) event.Event {
	e := event.Event{ID: "/s/1", Category: "errors", Severity: event.SeverityInfo, Cost: 1, Source: "/s"}
	for _, change := range all {
		change(&e)
	}
	return e
}

func withText(text string) changes { return func(e *event.Event) { e.Text = text } }

func resolved(e *event.Event) { e.Status = event.StatusResolved }

func atNoon(e *event.Event) { e.Time = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

var structuredCloudEvents = []struct {
	name, body string
	want       event.Event
}{
	{"object", envelope(`,"data":{"title":"x","cost":2}`), ofEnvelope(withTitle("x"), withCost(2))},
	{"string", envelope(`,"data":"a \"text\""`), ofEnvelope(withText(`a "text"`))},
	{"string like an object", envelope(`,"data":"{broken"`), ofEnvelope(withText("{broken"))},
	{"string of a type", envelope(`,"data":"x","datacontenttype":"text/plain; charset=utf-8"`), ofEnvelope(textX)},
	{"number", envelope(`,"data": 42 `), ofEnvelope(withText("42"))},
	{"array", envelope(`,"data":[1, {"title":"x"}]`), ofEnvelope(withText(`[1, {"title":"x"}]`))},
	{"base64 text", encodedEnvelope("hello"), ofEnvelope(withText("hello"))},
	{"base64 object", encodedEnvelope(` {"text":"x"}`), ofEnvelope(textX)},
	{"base64 JSON string", envelope(`,"datacontenttype":"application/JSON","data_base64":"ImhpIg=="`), ofEnvelope(withText("hi"))},
	{"data null beside base64", envelope(`,"data":null,"data_base64":"aGk="`), ofEnvelope(withText("hi"))},
	{"time of the envelope", envelope(`,"time":"2026-01-01T12:00:00Z","data":"x"`), ofEnvelope(textX, atNoon)},
	{"status and key", envelope(`,"status":5,"data":{"text":"x","status":"resolved","key":"k"}`), ofEnvelope(textX, resolved, withKey("k"))},
	{"base64 status", encodedEnvelope(`{"text":"x","status":"resolved","key":"k"}`), ofEnvelope(textX, resolved, withKey("k"))},
	{
		"alert", envelope(`,"time":"2026-01-01T12:00:00Z","data":{"alerts":[{"status":"firing","fingerprint":"f","labels":{"alertname":"x"}}]}`),
		ofEnvelope(withTitle("x"), firing, withKey("f"), atNoon),
	},
	{
		"data over envelope", envelope(`,"time":"1970-01-01T00:00:00Z","data":{"text":"x","time":"2026-01-01T12:00:00Z","source":"mine","id":"no"}`),
		ofEnvelope(textX, atNoon, withSource("mine")),
	},
	{"extensions and nulls", envelope(`,"traceparent":"00-1","weird-name":{"a":1},"":5,"subject":null,"time":null,"data":"x"`), ofEnvelope(textX)},
	{"members of the envelope are not of the event", envelope(`,"title":"no","cost":0,"data":"x"`), ofEnvelope(textX)},
	{
		"last duplicate", `{"specversion":"0.3","id":7,"specversion":"1.0","id":"1","source":"/s","type":"t","data":"no","data":"x"}`,
		ofEnvelope(textX),
	},
	{"specversion last", `{"data":"x","type":"t","source":"/s","id":"1","specversion":"1.0"}`, ofEnvelope(textX)},
}

func TestDecodeStructuredCloudEvent(t *testing.T) {
	t.Parallel()
	for _, test := range structuredCloudEvents {
		plain := message(test.body)
		for name, m := range map[string]event.Message{
			"by the member":       plain,
			"by the content type": withHeader(plain, "Content-Type", "application/cloudevents+json"),
			"in any case":         withHeader(plain, "CONTENT-type", " Application/CloudEvents+JSON ; charset=UTF-8"),
			"without a format":    withHeader(plain, "content-type", "application/cloudevents"),
			"beside another type": withHeader(plain, "Content-Type", "application/json"),
		} {
			requireDecoded(t, m, test.want, test.name+", "+name)
		}
	}
}

// badEnvelopes has further members of envelope by a part of the fault's detail.
var badEnvelopes = map[string][]string{
	`specversion must be "1.0", not "0.3"`:  {`"specversion":"0.3"`},
	"specversion":                           {`"specversion":""`},
	"specversion must be a string, not 1.0": {`"specversion":1.0`},
	"id: ":                                  {`"id":null`, `"id":""`, `"id":" "`},
	"id must be a string, not 7":            {`"id":7`},
	"source: ":                              {`"source":null`, `"source":"http://[::1"`},
	"source must be a string":               {`"source":{}`},
	"type: ":                                {`"type":null`},
	"type must be a string":                 {`"type":[]`},
	"time must be":                          {`"time":"noon"`},
	"time must be a string":                 {`"time":5`},
	"datacontenttype: ":                     {`"datacontenttype":"no type;;"`},
	"dataschema: ":                          {`"dataschema":"relative"`},
	"subject must be a string":              {`"subject":1`},
	"exclude each other":                    {`"data_base64":"aGk="`},
	"data_base64 must be a string":          {`"data":null,"data_base64":5`},
	"data_base64 is not base64":             {`"data":null,"data_base64":"a"`, `"data":null,"data_base64":"%%%%"`},
}

// TestCloudEventsOfTwoSources wants different IDs where a slash is in the source of one event and in the ID of the other.
func TestCloudEventsOfTwoSources(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, source := range []string{"/shop", "/shop/orders", "/shop/orders/eu"} {
		for _, id := range []string{"1", "orders/1", "orders%2F1", "eu/1", "orders/eu/1"} {
			body := fmt.Sprintf(`{"specversion":"1.0","type":"t","source":%q,"id":%q,"data":{"title":"x"}}`, source, id)
			e := testkit.Must(event.Decoder{Prefix: "notify"}.Decode(message(body)))(t)
			other := seen[e.ID]
			testkit.Check(t, other == "", "the ID %s is of %s and of %s", e.ID, body, other)
			seen[e.ID] = body
		}
	}
}

func TestDecodeStructuredCloudEventFaults(t *testing.T) {
	t.Parallel()
	const contentType = "application/cloudevents+json"
	for detail, all := range badEnvelopes {
		for _, members := range all {
			requireFaults(t, []faulty{{event.ReasonBadCloudEvent, detail, []string{envelope(`,"data":"x",` + members)}}}, "Content-Type", contentType)
		}
	}
	requireFaults(t, []faulty{
		{event.ReasonBadCloudEvent, "specversion is missing", []string{`{"id":"1","source":"/s","type":"t","data":"x"}`}},
		{event.ReasonBadCloudEvent, "id: ", []string{`{"specversion":"1.0"}`}},
		{event.ReasonBadUTF8, "", []string{envelope(`,"data_base64":"//8="`)}},
		{event.ReasonBadJSON, "", []string{
			encodedEnvelope("{bad}"), envelope(`,"data_base64":"YmFk","datacontenttype":"application/vnd.x+json"`),
			strings.TrimSuffix(envelope(`,"data":"x"`), "}"), envelope(`,"data":"x"`) + "}",
		}},
		{event.ReasonBadField, "cost ", []string{envelope(`,"data":{"text":"x","cost":0}`)}},
		{event.ReasonBadField, "fields.a ", []string{envelope(`,"data":{"text":"x","fields":{"a":1}}`)}},
		{event.ReasonEmpty, "", []string{
			envelope(`,"data":{}`), envelope(`,"data":null`), envelope(`,"data":"  "`), encodedEnvelope(""),
			envelope(`,"data":null,"data_base64":"","datacontenttype":"application/json"`),
		}},
	}, "Content-Type", contentType)
}

func TestDecodeCloudEventContentTypeFaults(t *testing.T) {
	t.Parallel()
	body := envelope(`,"data":"x"`)
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

// required has the headers of a CloudEvent in binary mode.
var required = []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}

var binaryCloudEvents = []struct {
	name   string
	header []string
	body   string
	want   event.Event
}{
	{"text", nil, "x", ofEnvelope(textX)},
	{"object", nil, ` {"text":"x","severity":"error"}`, ofEnvelope(textX, withSeverity(event.SeverityError))},
	{"JSON object", []string{"Content-Type", "application/json"}, `{"text":"x"}`, ofEnvelope(textX)},
	{"JSON string", []string{"content-type", "Application/JSON; charset=utf-8"}, `"x"`, ofEnvelope(textX)},
	{"JSON number", []string{"Content-Type", "application/json"}, " 5\n", ofEnvelope(withText("5"))},
	{"the attribute over the header", []string{"Content-Type", "application/json", "ce-datacontenttype", "text/plain"}, `x`, ofEnvelope(textX)},
	{"declared text", []string{"Content-Type", "text/plain"}, `{x`, ofEnvelope(withText("{x"))},
	{"time", []string{"ce-time", "2026-01-01T12:00:00Z"}, "x", ofEnvelope(textX, atNoon)},
	{
		"data over headers", []string{"ce-time", "2026-01-01T00:00:00Z"}, `{"text":"x","source":"mine","time":"1970-01-01T00:00:00Z"}`,
		ofEnvelope(textX, withSource("mine"), onDay(1970)),
	},
	{"extensions", []string{"ce-traceparent", "00", "ce-", "x", "ce-Bad Name", "\xff"}, "x", ofEnvelope(textX)},
	{"a specversion in the data is nothing special", nil, `{"specversion":"9","text":"x"}`, ofEnvelope(textX)},
}

func TestDecodeBinaryCloudEvent(t *testing.T) {
	t.Parallel()
	spellings := map[string]func(string) string{
		"lower case": strings.ToLower, "upper case": strings.ToUpper, "HTTP case": func(s string) string { return "Ce-" + s[len("ce-"):] },
	}
	for _, test := range binaryCloudEvents {
		for name, spell := range spellings {
			pairs := slices.Concat(required, test.header)
			for i := 0; i < len(pairs); i += 2 {
				if strings.HasPrefix(pairs[i], "ce-") {
					pairs[i] = spell(pairs[i])
				}
			}
			requireDecoded(t, withHeader(message(test.body), pairs...), test.want, fmt.Sprintf("%s, %s", test.name, name))
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
		{"/%FF", "/%FF", true}, // not valid UTF-8 when decoded, so kept
		{"/100%25", "/100%", false},
		{"/100%", "/100%", false}, // not encoded, so kept
	} {
		got, err := decoder().Decode(withHeader(message("x"),
			"ce-specversion", "1.0", "ce-id", "n%C2%B01", "ce-source", test.given, "ce-type", "t"))
		testkit.Equal(t, got.ID, test.want+"/n°1", "ce-source %q: ID", test.given)
		if !test.isReference {
			checkFault(t, err, event.ReasonBadCloudEvent, "source: ")
		} else if err != nil || got.Source != test.want {
			t.Errorf("ce-source %q: got source %q, %v, want %q", test.given, got.Source, err, test.want)
		}
	}
}

func TestDecodeBinaryCloudEventFaults(t *testing.T) {
	t.Parallel()
	for detail, header := range map[string][]string{
		"id: ":                   {"ce-specversion", "1.0"},
		"specversion is missing": {"ce-id", "1"},
		"is missing":             {"ce-type", "t"},
		"type: ":                 required[:6],
		"source: ":               {"ce-specversion", "1.0", "ce-id", "1", "ce-type", "t"},
		"specversion":            slices.Concat([]string{"ce-specversion", "0.3"}, required[2:]),
		"time ":                  slices.Concat(required, []string{"ce-time", "x"}),
	} {
		requireFaults(t, []faulty{{event.ReasonBadCloudEvent, detail, []string{"x"}}}, header...)
	}
	requireFaults(t, []faulty{
		{event.ReasonEmpty, "", []string{""}},
		{event.ReasonBadJSON, "", []string{"{"}},
		{event.ReasonBadUTF8, "", []string{"\xff"}},
		{event.ReasonBadField, "cost ", []string{`{"text":"x","cost":0}`}},
	}, required...)
	requireFaults(t, []faulty{
		{event.ReasonBadJSON, "", []string{"x"}},
		{event.ReasonEmpty, "", []string{"null", " "}},
	}, slices.Concat(required, []string{"Content-Type", "application/json"})...)
}

// FuzzCloudEvent compares the refused attributes with those of the SDK of CloudEvents. The SDK accepts a blank source as the path "%20".
func FuzzCloudEvent(f *testing.F) {
	f.Add("1", "/s", "t", "text/plain; charset=utf-8", "https://example.com/schema", "about")
	f.Add(" ", "http://[::1", "", "no type;;", "relative", " ")
	f.Add("é\n", "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66", "com.example", "*/*", ":", "")
	f.Add("1", "?", "t", "application/json;", "a:", "\u00a0")
	f.Add("1", "#", "t", "text", "//example.com", "")
	f.Fuzz(func(t *testing.T, id, source, kind, contentType, schema, subject string) {
		given := map[string]string{
			"id": id, "source": source, "type": kind, "datacontenttype": contentType, "dataschema": schema, "subject": subject,
		}
		ce := cloudevents.New(cloudevents.CloudEventsVersionV1)
		ce.SetID(id)
		ce.SetSource(source)
		ce.SetType(kind)
		ce.SetDataContentType(contentType)
		ce.SetDataSchema(schema)
		ce.SetSubject(subject)
		refused, _ := errors.AsType[cloudevents.ValidationError](ce.Validate())
		if refused == nil {
			refused = cloudevents.ValidationError{}
		}
		if source != "" && strings.TrimSpace(source) == "" {
			refused["source"] = errors.New("blank")
		}
		var got []string
		for _, violation := range event.Violations(given) {
			name, _, _ := strings.Cut(violation, ":")
			got = append(got, name)
		}
		testkit.EqualSlices(t, got, slices.Sorted(maps.Keys(refused)), "refused attributes of %q", given)
	})
}

func TestTraceContext(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header        map[string][]string
		body          string
		parent, state string
	}{
		"none":                       {nil, `{"title":"x"}`, "", ""},
		"headers":                    {map[string][]string{"traceparent": {"a"}, "tracestate": {"b=c"}}, "x", "a", "b=c"},
		"headers in any case":        {map[string][]string{"TraceParent": {"a"}, "TRACESTATE": {"b=c"}}, "x", "a", "b=c"},
		"binary CloudEvent":          {map[string][]string{"Ce-Traceparent": {"a"}, "ce-tracestate": {"b=%22"}}, "x", "a", `b="`},
		"structured CloudEvent":      {nil, ` {"specversion":"1.0","traceparent":"a","tracestate":"b=c"}`, "a", "b=c"},
		"headers before attributes":  {map[string][]string{"traceparent": {"h"}}, `{"specversion":"1.0","traceparent":"a","tracestate":"b=c"}`, "h", ""},
		"escaped name":               {nil, `{"specversion":"1.0","tr\u0061ceparent":"a"}`, "a", ""},
		"member of no CloudEvent":    {nil, `{"title":"x","traceparent":"a"}`, "", ""},
		"member that is not a text":  {nil, `{"specversion":"1.0","traceparent":{"x":1}}`, "", ""},
		"member below another one":   {nil, `{"specversion":"1.0","data":{"traceparent":"a"}}`, "", ""},
		"an object that is cut":      {nil, `{"specversion":"1.0","traceparent":"a","tracest`, "a", ""},
		"an empty header and member": {map[string][]string{"traceparent": {""}}, `{"specversion":"1.0","traceparent":"a"}`, "a", ""},
	} {
		parent, state := event.Message{Header: test.header, Data: []byte(test.body)}.TraceContext()
		testkit.Equal(t, parent, test.parent, "%s: parent", name)
		testkit.Equal(t, state, test.state, "%s: state", name)
	}
}
