package event_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// alertmanager is a webhook body of Alertmanager.
const alertmanager = `{"receiver":"notifier","status":"firing","alerts":[
	{"status":"firing","labels":{"alertname":"DiskFull","severity":"page","instance":"db-1:9100","category":"Storage.Disks"},
	 "annotations":{"summary":"Disk of db-1 is full","description":"/var has\n<2% left","runbook":"x"},
	 "startsAt":"2026-03-01T12:00:00.123+02:00","endsAt":"0001-01-01T00:00:00Z",
	 "generatorURL":"http://prometheus:9090/graph?g0.expr=up&g0.tab=1","fingerprint":"a1b2c3d4e5f60718"},
	{"status":"resolved","labels":{"alertname":"DiskFull","severity":"page","instance":"db-2:9100"},
	 "annotations":{},"startsAt":"2026-03-01T09:00:00Z","endsAt":"2026-03-01T09:30:00Z","generatorURL":"","fingerprint":"0011223344556677"}],
	"groupLabels":{"alertname":"DiskFull"},"commonLabels":{"alertname":"DiskFull","severity":"page"},"commonAnnotations":{},
	"externalURL":"http://alertmanager:9093","version":"4","groupKey":"{}:{alertname=\"DiskFull\"}","truncatedAlerts":0}`

// grafana is a webhook body of Grafana's alerting.
const grafana = `{"receiver":"","status":"resolved","alerts":[
	{"status":"resolved","labels":{"alertname":"High load","grafana_folder":"Hosts"},"annotations":{"message":"load is high"},
	 "startsAt":"2026-03-01T10:00:00Z","endsAt":"2026-03-01T10:05:00Z","generatorURL":"https://grafana/alerting/grafana/x/view",
	 "fingerprint":"c6eadffa33fcdf37","silenceURL":"https://grafana/silence","dashboardURL":"https://grafana/d/a","panelURL":"",
	 "values":{"B":1.5},"valueString":"[ var='B' value=1.5 ]","imageURL":"https://grafana/i.png"}],
	"groupLabels":{},"commonLabels":{},"commonAnnotations":{},"externalURL":"https://grafana/","version":"1","groupKey":"{}:{}",
	"truncatedAlerts":0,"orgId":1,"title":"[RESOLVED] High load","state":"ok","message":"**Resolved**"}`

func one(members string) string { return `{"alerts":[{` + members + `}]}` }

// The identities of the alerts in alertmanager, and of the alert in grafana.
const (
	firstOfAlertmanager  = "a1b2c3d4e5f60718 firing 2026-03-01T10:00:00.123Z"
	secondOfAlertmanager = "0011223344556677 resolved 2026-03-01T09:00:00Z"
	ofGrafana            = "c6eadffa33fcdf37 resolved 2026-03-01T10:00:00Z"
)

// diskFull is the event of the first alert in alertmanager.
var diskFull = event.Event{
	ID: "NOTIFICATIONS:7", Derived: true, Category: "errors", Title: "Disk of db-1 is full", Text: "/var has\n<2% left",
	Severity: event.SeverityCritical, Source: "http://alertmanager:9093", Link: "http://prometheus:9090/graph?g0.expr=up&g0.tab=1",
	Links:  []event.Field{{Name: "Source", Value: "http://prometheus:9090/graph?g0.expr=up&g0.tab=1"}},
	Fields: []event.Field{{Name: "category", Value: "Storage.Disks"}, {Name: "instance", Value: "db-1:9100"}},
	Time:   time.Date(2026, 3, 1, 10, 0, 0, 123_000_000, time.UTC), Cost: 1, Status: event.StatusFiring, Key: "a1b2c3d4e5f60718",
}

// highLoad is the event of the alert in grafana.
var highLoad = event.Event{
	ID: ofGrafana, Category: "errors", Title: "High load", Text: "load is high",
	Severity: event.SeverityInfo, Source: "https://grafana/", Link: "https://grafana/d/a",
	Links: []event.Field{
		{Name: "Dashboard", Value: "https://grafana/d/a"}, {Name: "Source", Value: "https://grafana/alerting/grafana/x/view"},
		{Name: "Silence", Value: "https://grafana/silence"},
	},
	Fields: []event.Field{{Name: "grafana_folder", Value: "Hosts"}, {Name: "valueString", Value: "[ var='B' value=1.5 ]"}},
	Time:   time.Date(2026, 3, 1, 10, 5, 0, 0, time.UTC), Cost: 1, Status: event.StatusResolved, Key: "c6eadffa33fcdf37",
}

// alertX has the title "x" and the fingerprint "f".
const alertX = `"labels":{"alertname":"x"},"fingerprint":"f"`

func named(all ...changes) event.Event { return decoded(append([]changes{withTitle("x")}, all...)...) }
func keyed(all ...changes) event.Event { return named(append([]changes{withKey("f")}, all...)...) }

func withAlertID(id string) changes    { return func(e *event.Event) { e.ID, e.Derived = id, false } }
func withSource(source string) changes { return func(e *event.Event) { e.Source = source } }
func withLink(link string) changes     { return func(e *event.Event) { e.Link = link } }

// withLinks gives an event links of a name and a URL each.
func withLinks(links ...string) changes {
	return func(e *event.Event) {
		for i := 0; i < len(links); i += 2 {
			e.Links = append(e.Links, event.Field{Name: links[i], Value: links[i+1]})
		}
	}
}
func firing(e *event.Event) { e.Status, e.Severity = event.StatusFiring, event.SeverityWarning }

var decodedAlerts = []struct {
	name, body string
	want       event.Event
}{
	{"the first of Alertmanager's, with the body's identity", alertmanager, diskFull},
	{"Grafana's", grafana, highLoad},
	{"small", one(alertX), keyed()},
	{"a title of the group is not one of the alert", `{"title":"no","text":"no","severity":5,"status":"no","alerts":[{` + alertX + `}]}`, keyed()},
	{"blank summary", one(alertX + `,"annotations":{"summary":" "}`), keyed()},
	{"description before message", one(alertX + `,"annotations":{"message":"m","description":"d"}`), keyed(withText("d"))},
	{"nulls", one(alertX + `,"annotations":null,"startsAt":null,"status":null,"valueString":null,"panelURL":null`), keyed()},
	{"receiver", `{"alerts":[{` + alertX + `}],"receiver":"r","externalURL":""}`, keyed(withSource("r"))},
	{"long source", `{"alerts":[{` + alertX + `}],"receiver":"` + strings.Repeat("é", 2_000) + `"}`,
		keyed(withSource(strings.Repeat("é", 500)))},
	{"id of the group", `{"id":"g","alerts":[{` + alertX + `}]}`, keyed(func(e *event.Event) { e.ID, e.Derived = "g", false })},
	{"firing without a severity", one(alertX + `,"status":"firing"`),
		keyed(firing)},
	{"resolved without an end", one(alertX + `,"status":"resolved","startsAt":"2026-01-01T00:00:00Z","endsAt":"0001-01-01T00:00:00Z"`),
		keyed(withAlertID("f resolved 2026-01-01T00:00:00Z"), resolved, onDay(2026))},
	{"firing with an end", one(alertX + `,"status":"firing","startsAt":"2026-01-01T00:00:00Z","endsAt":"2026-01-02T00:00:00Z"`),
		keyed(withAlertID("f firing 2026-01-01T00:00:00Z"), firing, onDay(2026))},
	{"the alert's identity before the body's", `{"id":"g",` + one(alertX + `,"startsAt":"2026-01-01T01:00:00+01:00"`)[1:],
		keyed(withAlertID("f 2026-01-01T00:00:00Z"), onDay(2026))},
	{"panel before dashboard before rule", one(alertX + `,"generatorURL":"http://g","dashboardURL":"http://d","panelURL":"http://p"`),
		keyed(withLink("http://p"), withLinks("Dashboard", "http://d", "Panel", "http://p", "Source", "http://g"))},
	{"bad links", one(alertX + `,"generatorURL":"http://g","dashboardURL":"/d","panelURL":"http://[p"`),
		keyed(withLink("http://g"), withLinks("Source", "http://g"))},
	{"runbook and silence", one(alertX + `,"silenceURL":"https://s?a=1&b=<","annotations":{"runbook_url":"https://r"}`),
		keyed(withLinks("Runbook", "https://r", "Silence", "https://s?a=1&b=<"))},
	{"no runbook", one(alertX + `,"silenceURL":"ftp://s","annotations":{"runbook_url":"ask Bob"}`), keyed()},
	{"no link", one(alertX + `,"generatorURL":"javascript:alert(1)"`), keyed()},
	{"labels sorted, the last of duplicates", one(`"fingerprint":"f","labels":{"b":"1","alertname":"x","a":"2","b":"3"}`),
		keyed(withFields(event.Field{Name: "a", Value: "2"}, event.Field{Name: "b", Value: "3"}))},
	{"long fingerprint", one(`"labels":{"alertname":"x"},"fingerprint":"` + strings.Repeat("f", 65) + `"`),
		keyed(withKey(event.StableID(strings.Repeat("f", 65))))},
	{"labels for a fingerprint", one(`"labels":{"b":"<","alertname":"x"}`), named(withKey("sha256:486d53419a87a15621cf9aff7503cff15e119d83"), withFields(event.Field{Name: "b", Value: "<"}))},
	{"neither labels nor fingerprint", one(`"annotations":{"summary":"x"}`), named()},
}

func TestDecodeAlert(t *testing.T) {
	t.Parallel()
	for _, test := range decodedAlerts {
		requireDecoded(t, message(test.body), test.want, test.name)
	}
}

func TestDecodeAlertKeyOfLabels(t *testing.T) {
	t.Parallel()
	key := func(labels string) string {
		return testkit.Must(decoder().Decode(message(one(`"annotations":{"summary":"x"},"labels":` + labels))))(t).Key
	}
	a, b := key(`{"a":"1","b":"2","severity":"page"}`), key(`{"severity":"page","b":"2","a":"1"}`)
	testkit.Check(t, a == b && a != "", "keys of labels in another order: got %q and %q, want one key", a, b)
	seen := map[string]string{}
	for _, labels := range []string{`{"a":"1","b":"2"}`, `{"a":"1"}`, `{"a":"1","b":""}`, `{"a":"2","b":"1"}`, `{"a":"1\",\"b\":\"2"}`, `{"a":"1","alertname":"2"}`} {
		other, ok := seen[key(labels)]
		testkit.Check(t, !ok, "key of %s: got that of %s, want another one", labels, other)
		seen[key(labels)] = labels
	}
}

func TestDecodeAlertSeverity(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]event.Severity{
		"critical": "critical", "page": "critical", "Emergency": "critical", "FATAL": "critical", "disaster": "critical",
		"error": "error", "high": "error", "major\n": "error",
		"warning": "warning", "warn": "warning", "medium": "warning", "minor": "warning",
		"info": "info", "none": "info", "low": "info", "notice": "info",
		"": "", "p17": "",
	} {
		for status, other := range map[event.Status]event.Severity{"firing": "warning", "resolved": "info", "": "info"} {
			expected := want
			if expected == "" {
				expected = other
			}
			body := one(fmt.Sprintf(`"status":%q,"labels":{"alertname":"x","severity":%q}`, status, word))
			if got, err := decoder().Decode(message(body)); err != nil || got.Severity != expected || got.Fields != nil {
				t.Errorf("%q, %q: got severity %q, fields %v, %v, want %q and no fields", word, status, got.Severity, got.Fields, err, expected)
			}
		}
	}
}

func TestDecodeAlertCategory(t *testing.T) {
	t.Parallel()
	for label, want := range map[string]string{
		"Payments.Refunds": "payments.refunds", "a": "a", "": event.Default, "no, not one": event.Default, "a.>": event.Default,
	} {
		category := func(subject, members string) string {
			body := `{` + members + `"alerts":[{"labels":{"alertname":"x","category":"` + label + `"}}]}`
			return testkit.Must(decoder().Decode(event.Message{Subject: subject, Data: []byte(body)}))(t).Category
		}
		testkit.Equal(t, category("notify", `"category":"",`), want, "category by the label %q", label)
		testkit.Equal(t, category("notify", `"category":"Of.Body",`), "of.body", "category of the body before the label %q", label)
		testkit.Equal(t, category("notify.b.c", `"category":"no, not one",`), "b.c", "category by the label %q below the prefix", label)
	}
}

// badAlerts has the members of a single alert by the detail of its fault.
var badAlerts = map[string]string{
	`"labels":5`:           "labels must be an object of strings, not 5",
	`"labels":{"a":["b"]}`: `labels.a must be a string, not ["b"]`,
	`"labels":{"` + strings.Repeat("é", 5_000) + `":1}`: "labels.é",
	`"annotations":[]`:                        "annotations must be",
	`"annotations":{"summary":null}`:          "annotations.summary must be",
	`"status":"pending"`:                      `status must be firing or resolved, not "pending"`,
	`"status":1`:                              "status must be a string",
	`"status":"resolved"`:                     "status resolved needs a key",
	`"fingerprint":12`:                        "fingerprint must be a string, not 12",
	`"startsAt":"noon"`:                       `startsAt must be a time as in RFC 3339, not "noon"`,
	`"status":"firing","endsAt":5`:            "endsAt must be",
	`"panelURL":"http://p","generatorURL":{}`: "generatorURL must be a string",
	`"valueString":1.5`:                       "valueString must be a string",
}

// badGroups have a fault of the group.
var badGroups = []faulty{
	{event.ReasonEmpty, "alerts is an empty array", []string{`{"alerts":[]}`, `{"title":"x","alerts":[ ]}`}},
	{event.ReasonEmpty, "title nor text", []string{
		`{"alerts":[{}]}`, one(`"labels":{"alertname":"\u200b"},"annotations":{"description":"\n"}`),
	}},
	{event.ReasonBadJSON, "", []string{`{"alerts":[{}]`}},
	{
		event.ReasonBadField, "2 of 2 alerts are bad: alerts[0].labels must be an object of strings, not 5; alerts[1]: neither title nor text",
		[]string{`{"alerts":[{"labels":5},{}]}`},
	},
	{
		event.ReasonEmpty, "1000 of 1000 alerts are bad: alerts[0]: neither title nor text holds anything to show; " +
			"alerts[1]: neither title nor text holds anything to show; and 998 more",
		[]string{`{"alerts":[` + strings.Repeat("{},", 999) + `{}]}`},
	},
	{event.ReasonBadField, "externalURL must be a string", []string{`{"alerts":[{` + alertX + `}],"externalURL":1}`}},
	{event.ReasonBadField, "receiver must be a string", []string{`{"alerts":[{` + alertX + `}],"receiver":{}}`}},
	{event.ReasonBadField, "id must be a string", []string{`{"alerts":[{` + alertX + `}],"id":1}`}},
	{
		event.ReasonBadField, "alerts must be an array of at most 1000 alerts, not of 1001",
		[]string{`{"alerts":[` + strings.Repeat("{},", 1000) + `{}]}`},
	},
}

func TestDecodeAlertFaults(t *testing.T) {
	t.Parallel()
	all := badGroups
	for members, detail := range badAlerts {
		all = append(all, faulty{event.ReasonBadField, "alerts[0]." + detail, []string{one(members)}})
	}
	requireFaults(t, all)
	for _, group := range all {
		for _, body := range group.bodies {
			requireNoParts(t, message(body))
		}
	}
}

func requireNoParts(t testing.TB, m event.Message) {
	t.Helper()
	parts, bad := decoder().Parts(m)
	testkit.Check(t, parts == nil && bad == nil, "%.60q: got %d parts, %v, want none", m.Data, len(parts), bad)
}

func TestParts(t *testing.T) {
	t.Parallel()
	hash := event.StableID
	pair := func(first, second string) string {
		return `{"alerts":[{"annotations":{"summary":"x"},` + first + `},{"annotations":{"summary":"y"},` + second + `}]}`
	}
	long := strings.Repeat("f", 60)
	bare := func(body string) event.Message {
		return event.Message{Subject: "notify", Data: []byte(body), Stream: "S", Sequence: 1}
	}
	inEnvelope := `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + alertmanager + `}`
	timed := func(id, name string) string {
		return `"startsAt":"2026-01-02T04:04:05.50+01:00","fingerprint":"` + id + `","labels":{"alertname":"` + name + `"}`
	}
	ofLabels := testkit.Must(decoder().Decode(message(one(timed("", "x")))))(t).Key
	alertmanagers := []string{firstOfAlertmanager, secondOfAlertmanager}
	for _, test := range []struct {
		name          string
		m             event.Message
		ids, subjects []string // IDs with the names of parts behind them
	}{
		{"Alertmanager's", message(alertmanager), alertmanagers, nil},
		{"blanks and mark before", message(" \ufeff" + alertmanager), alertmanagers, nil},
		{"header", withHeader(message(alertmanager), "Nats-Msg-Id", "h"), alertmanagers, nil},
		{"in the room", inRoom(message(alertmanager), event.RoomIdentity{ID: "S:1", Derived: true}), alertmanagers, nil},
		{"CloudEvent", message(inEnvelope), alertmanagers, nil},
		{"escaped name", message(strings.Replace(alertmanager, `"alerts"`, `"\u0061lerts"`, 1)), alertmanagers, nil},
		{"without a status", message(pair(timed("a", "x"), timed("b", "y"))), []string{"a 2026-01-02T03:04:05.5Z", "b 2026-01-02T03:04:05.5Z"}, nil},
		{"one alert twice", message(pair(timed("a", "x"), timed("a", "y"))), []string{"a 2026-01-02T03:04:05.5Z"}, nil},
		{"labels for a fingerprint", message(pair(timed("", "x"), timed("a", "y"))),
			[]string{hash(ofLabels + " 2026-01-02T03:04:05.5Z"), "a 2026-01-02T03:04:05.5Z"}, nil},
		{"one alert in two categories", bare(pair(`"status":"firing","startsAt":"2026-01-02T03:04:05Z","fingerprint":"a","labels":{"category":"b"}`,
			`"status":"firing","startsAt":"2026-01-02T03:04:05Z","fingerprint":"a"`)),
			[]string{"a firing 2026-01-02T03:04:05Z", "a firing 2026-01-02T03:04:05Z"}, []string{"notify.b", "notify"}},

		{"no start", message(pair(`"fingerprint":"a"`, `"fingerprint":"b","startsAt":"0001-01-01T00:00:00Z"`)), []string{"NOTIFICATIONS:7/a", "NOTIFICATIONS:7/b"}, nil},
		{"no start, header", withHeader(message(pair(`"fingerprint":"a"`, `"fingerprint":"b"`)), "Nats-Msg-Id", "h"), []string{"h/a", "h/b"}, nil},
		{"the notifier's headers are a producer's", withHeader(message(pair(`"fingerprint":"a"`, `"fingerprint":"b"`)), "Nats-Msg-Id", "h", "Notifier-Id", "n"),
			[]string{"h/a", "h/b"}, nil},
		{"no start, in the room", inRoom(withHeader(message(pair(`"fingerprint":"a"`, `"fingerprint":"b"`)), "Nats-Msg-Id", "h"), event.RoomIdentity{ID: "S:1", Derived: true}),
			[]string{"S:1/a", "S:1/b"}, nil},
		{"id of the body", message(`{"id":"i",` + pair(`"fingerprint":"a"`, `"fingerprint":"b"`)[1:]), []string{"i/a", "i/b"}, nil},
		{"long fingerprints", message(pair(`"fingerprint":"`+long+`"`, `"fingerprint":"`+long+`g"`)),
			[]string{"NOTIFICATIONS:7/" + hash(long), "NOTIFICATIONS:7/" + hash(long+"g")}, nil},
		{"repeated fingerprints", message(pair(`"fingerprint":"a"`, `"fingerprint":"a"`)), []string{"NOTIFICATIONS:7/a", "NOTIFICATIONS:7/a/1"}, nil},
		{"a fingerprint like a place", message(pair(`"fingerprint":"1"`, `"status":""`)), []string{"NOTIFICATIONS:7/1", "NOTIFICATIONS:7/1/1"}, nil},
		{"no fingerprints", message(pair(`"status":""`, `"status":""`)), []string{"NOTIFICATIONS:7/0", "NOTIFICATIONS:7/1"}, nil},
		{"subjects by label", bare(pair(`"fingerprint":"a","labels":{"category":"A.b"}`, `"fingerprint":"b","labels":{"category":"no, not one"}`)),
			[]string{"S:1/a", "S:1/b"}, []string{"notify.a.b", "notify"}},
		{"subjects by the body", bare(`{"category":"Of.Body",` + pair(`"fingerprint":"a","labels":{"category":"a"}`, `"fingerprint":"b"`)[1:]),
			[]string{"S:1/a", "S:1/b"}, []string{"notify.of.body", "notify.of.body"}},
	} {
		if test.subjects == nil {
			test.subjects = slices.Repeat([]string{test.m.Subject}, len(test.ids))
		}
		var ids, subjects []string
		parts, bad := decoder().Parts(test.m)
		for _, part := range parts {
			ids, subjects = append(ids, event.Event{ID: part.Room.ID, Part: part.Room.Part}.ShownID()), append(subjects, part.Subject)
			testkit.Equal(t, part.Room.Derived, part.Room.Part != "" && part.Room.ID != "h" && part.Room.ID != "i", "%s: %s is derived", test.name, part.Room.ID)
		}
		testkit.Check(t, slices.Equal(ids, test.ids) && slices.Equal(subjects, test.subjects) && bad == nil,
			"%s: got parts %q on %q, %v, want %q on %q", test.name, ids, subjects, bad, test.ids, test.subjects)
		checkParts(t, test.m)
	}
}

func TestPartsOfAGroupWithBadAlerts(t *testing.T) {
	t.Parallel()
	const good, empty, wrong = `{"labels":{"alertname":"x"},"fingerprint":"%d"}`, `{"fingerprint":"%d"}`, `{"status":"pending"}`
	wide := `{"labels":{"alertname":"x` + strings.Repeat("\u2028", maxBytes/4) + `"}}` // JSON writes each with twice the bytes
	group := func(alerts ...string) event.Message {
		for i, a := range alerts {
			if strings.Contains(a, "%d") {
				alerts[i] = fmt.Sprintf(a, i)
			}
		}
		return message(`{"alerts":[` + strings.Join(alerts, ",") + `]}`)
	}
	many := slices.Repeat([]string{empty}, 20)
	many[4], many[5], many[6] = good, wrong, good
	for _, test := range []struct {
		name   string
		m      event.Message
		parts  []string
		reason event.Reason
		detail string
	}{
		{"the last", group(good, good, wrong), []string{"0", "1"}, event.ReasonBadField, `alerts[2].status must be firing or resolved, not "pending"`},
		{"the first", group(empty, good), []string{"1"}, event.ReasonEmpty, "alerts[0]: neither title nor text holds anything to show"},
		{"too large by itself", group(good, wide), []string{"0"}, event.ReasonTooLarge, "alerts[1]: the body has"},
		{"two", group(wrong, good, empty), []string{"1"}, event.ReasonBadField,
			`2 of 3 alerts are bad: alerts[0].status must be firing or resolved, not "pending"; alerts[2]: neither title nor text holds anything to show`},
		{"many", group(many...), []string{"4", "6"}, event.ReasonEmpty, "18 of 20 alerts are bad: alerts[0]: neither title nor text holds anything to show; " +
			"alerts[1]: neither title nor text holds anything to show; and 16 more"},
	} {
		parts, bad := decoder().Parts(test.m)
		var names []string
		for _, part := range parts {
			names = append(names, part.Room.Part)
		}
		if !slices.Equal(names, test.parts) || bad == nil {
			t.Errorf("%s: got parts %q, fault %v, want %q and a fault", test.name, names, bad, test.parts)
			continue
		}
		checkFault(t, bad, test.reason, test.detail)
		if test.reason != event.ReasonTooLarge && !strings.HasSuffix(bad.Detail, test.detail) {
			t.Errorf("%s: got %q, want %q", test.name, bad.Detail, test.detail)
		}
		checkParts(t, test.m)
	}
}

// checkParts compares the events of the parts with the identities of the group, and the first one with the event of the group.
func checkParts(t testing.TB, m event.Message) {
	t.Helper()
	d := decoder()
	parts, bad := d.Parts(m)
	if parts == nil {
		testkit.Check(t, bad == nil, "fault without parts: got %v, want none", bad)
		return
	}
	if again, badAgain := d.Parts(m); !reflect.DeepEqual(parts, again) || fmt.Sprint(bad) != fmt.Sprint(badAgain) {
		t.Errorf("second split: got %+v, %v, want %+v, %v", again, badAgain, parts, bad)
	}
	first, firstErr := d.Decode(m)
	identities := map[string]bool{}
	for i, part := range parts {
		got, err := d.Decode(event.Message{Subject: part.Subject, Header: map[string][]string{"Nats-Msg-Id": {"room"}}, Data: part.Data, Room: &part.Room})
		testkit.Check(t, err == nil, "part %+v: got %v, want no error", part, err)
		identities[got.Identity()] = true
		if got.ID != part.Room.ID || got.Derived != part.Room.Derived || got.Part != part.Room.Part || got.Part == "" && got.Derived || !bytes.HasPrefix(part.Data, []byte("{")) {
			t.Errorf("event: got %+v, want the identity of %+v", got, part)
		}
		requireNoParts(t, event.Message{Subject: part.Subject, Data: part.Data})
		if i > 0 || firstErr != nil {
			continue
		}
		got.ID, got.Derived, got.Part = first.ID, first.Derived, ""
		testkit.EqualDeeply(t, got, first, "event of the first part")
	}
	if firstErr != nil && (bad == nil || firstErr.Error() != bad.Error()) {
		t.Errorf("fault of the parts: got %v, want that of the group, %v", bad, firstErr)
	}
	testkit.Equal(t, len(identities), len(parts), "identities of the parts")
}

func TestPartsDecodeAsTheirAlerts(t *testing.T) {
	t.Parallel()
	alerts := []string{
		`{"status":"resolved","labels":{"alertname":"<&>\u2028\u0001","valueString":"label"},"valueString":"v","endsAt":"2026-03-01T09:30:00.000000001+14:00"}`,
		`{"status":"firing","labels":{"alertname":"x","\ud800":"lone","\udc00":"lone too"},"annotations":{"summary":"🔥 \"s\"","description":"a\nb"}}`,
		`{"labels":{"severity":"high"},"annotations":{"message":"m"},"panelURL":"https://p/?a=1&b=%20","fingerprint":"f\n"}`,
	}
	group := func(alerts ...string) event.Message {
		return message(`{"externalURL":"https://am/?<a>","alerts":[` + strings.Join(alerts, ",") + `]}`)
	}
	parts, bad := decoder().Parts(group(alerts...))
	testkit.Require(t, bad == nil && len(parts) == len(alerts), "got %d parts, %v, want %d", len(parts), bad, len(alerts))
	for i, part := range parts {
		requireDecoded(t, inRoom(message(string(part.Data)), part.Room), testkit.Must(decoder().Decode(inRoom(group(alerts[i]), part.Room)))(t), fmt.Sprintf("part %d", i))
	}
}

func TestPartsOfOtherMessages(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"", "plain", `{"text":"x"}`, `{"text":"\"alerts\""}`, grafana, one(`"labels":{"alertname":"x"}`), "[" + alertmanager + "]", "x" + alertmanager,
		`{"text":"x","alerts":["a","b"]}`, `{"text":"x","alerts":[{},5]}`, `{"text":"x","alerts":[{},{}],"alerts":null}`, `{"text":"x","deep":` + alertmanager + `}`,
		alertmanager + "x", strings.Replace(alertmanager, "DiskFull", "\xff", 1), alertmanager + strings.Repeat(" ", maxBytes),
	} {
		requireNoParts(t, message(body))
	}
	requireNoParts(t, withHeader(message(alertmanager), append(required, "Content-Type", "text/plain")...)) // declared text
	elsewhere := message(alertmanager)
	elsewhere.Subject = "other"
	requireNoParts(t, elsewhere)
}

// TestPartsStaySmall splits a group whose source is repeated in each part.
func TestPartsStaySmall(t *testing.T) {
	t.Parallel()
	const alert = `{"labels":{"alertname":"x"}}`
	body := `{"externalURL":"` + strings.Repeat("u", 100_000) + `","alerts":[` + strings.Repeat(alert+",", 999) + alert + `]}`
	parts, _ := event.Decoder{Prefix: "notify"}.Parts(message(body))
	size := 0
	for _, part := range parts {
		size += len(part.Data)
	}
	testkit.Check(t, len(parts) == 1000 && size <= 12*len(body),
		"parts of %d bytes: got %d with %d bytes, want 1000 with at most %d", len(body), len(parts), size, 12*len(body))
}

func FuzzParts(f *testing.F) {
	for _, body := range []string{
		alertmanager, grafana, `{"alerts":[{},{}]}`, `{"alerts":[{"fingerprint":"a"},{"fingerprint":"a"},{"fingerprint":"a/1"}]}`,
		`{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"9999-12-31T23:59:59-01:00","data":` + alertmanager + `}`,
		`{"\u0061lerts":[{"labels":{"alertname":"x","category":"A"},"startsAt":"0000-01-01T00:00:00+01:00"},{"labels":{"\ud800":"x","\udc00":"y"}}]}`,
		`{"alerts":[{"startsAt":"9999-12-31T23:59:59.999999999Z","labels":{"a":"<\u2028\u0000"}},{}],"receiver":"\ud800"}`,
	} {
		f.Add("notify.errors", "", []byte(body))
		f.Add("notify", "id\n", []byte(body))
	}
	f.Fuzz(func(t *testing.T, subject, id string, body []byte) {
		checkParts(t, event.Message{
			Subject: subject, Header: map[string][]string{"Nats-Msg-Id": {id}}, Data: body, Stream: "S", Sequence: 1,
		})
	})
}
