package simulate

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// ofSecurity are messages of the category security in each form of an event. Others can guess their IDs, sequences and keys. Some repeat
// an ID, resolve a firing event, or resolve nothing.
var ofSecurity = []event.Message{
	{Subject: "notify.security", Data: []byte(`{"id": "incident", "title": "t"}`)},
	{Subject: "notify.security", Data: []byte("plain text")},
	{Subject: "notify.security", Header: nats.Header{"Nats-Msg-Id": {"message"}}, Data: []byte("x")},
	{Subject: "notify.security", Data: []byte(`{"specversion": "1.0", "type": "t", "source": "/siem", "id": "1", "data": "x"}`)},
	{
		Subject: "notify.security", Data: []byte("x"),
		Header: nats.Header{"ce-specversion": {"1.0"}, "ce-type": {"t"}, "ce-source": {"/siem"}, "ce-id": {"2"}},
	},
	{Subject: "notify.security", Data: []byte(`{"alerts": [` + alert("firing", "f1") + "," + alert("firing", "f2") + `]}`)},
	{Subject: "notify.security", Data: []byte(`{"id": "group", "alerts": [` + alert("firing", "f1") + ", {}, " + alert("resolved", "f2") + `]}`)},
	{Subject: "notify.security.disk", Data: []byte(`{"title": "t", "status": "firing", "key": "k"}`)},
	{Subject: "notify.security", Data: []byte(`{"title": "t", "status": "resolved", "key": "k"}`)},
	{Subject: "notify.security.disk", Data: []byte(`{"title": "t", "status": "resolved", "key": "k"}`)},
	{Subject: "notify.security", Data: []byte(`{"id": "incident", "title": "again"}`)},
	{Subject: "notify.security", Data: []byte(`{"broken`)},
	{Subject: "notify", Data: []byte(`{"category": "security", "id": "incident", "title": "on the bare subject"}`)},
	{Subject: "notify.security", Data: []byte(`{"alerts": [` + alert("resolved", "f1") + "," + alert("resolved", "f3") + `]}`)},
}

// recorder records the verdicts about events that are not of payments.
type recorder struct {
	evaluator Evaluator
	verdicts  []string
}

func (r *recorder) Evaluate(events []Event) ([]Verdict, error) {
	verdicts, err := r.evaluator.Evaluate(events)
	for i, verdict := range verdicts {
		if event.FirstLevel(events[i].Category) != "payments" {
			r.verdicts = append(r.verdicts, fmt.Sprintf("%+v: %+v", events[i], verdict))
		}
	}
	return verdicts, err
}

// becomes lists the events of security and their verdicts. hostile, unless it is nil, is stored before, between and after them.
func becomes(t testing.TB, hostile *event.Message) []string {
	t.Helper()
	const stream = "NOTIFICATIONS"
	h := &History{}
	r := &recorder{evaluator: newLimiter(t, "none", "3/1m", "")}
	sequence, at := uint64(0), midnight
	store := func(m event.Message) []Event {
		m.Stream, m.Sequence = stream, sequence
		events, err := eventsOf(m, decoder)
		for i := range events {
			events[i].At = at
		}
		h.add(sequence, events, nil)
		if err != nil {
			r.verdicts = append(r.verdicts, fmt.Sprintf("message %d: %v", sequence, err))
		}
		return events
	}
	for i := range 2*len(ofSecurity) + 1 {
		sequence++
		if i%3 == 0 {
			at = at.Add(time.Second)
		}
		if i%2 == 1 {
			store(ofSecurity[i/2])
			continue
		}
		if hostile == nil {
			continue
		}
		before := len(r.verdicts)
		for _, e := range store(*hostile) {
			testkit.Equal(t, event.FirstLevel(e.Category), "payments", "first level of an event on %s", hostile.Subject)
			if !strings.HasPrefix(e.Identity, e.Category+" ") && !strings.HasPrefix(e.Identity, e.Category+"#") {
				t.Fatalf("identity of an event of %q: got %q, want one of the category", e.Category, e.Identity)
			}
		}
		r.verdicts = r.verdicts[:before] // faults of the hostile message do not count
		testkit.Equal(t, decoder.FirstLevelOf(hostile.Subject), "payments", "first level of %s", hostile.Subject)
	}
	testkit.Must(h.Replay(t.Context(), r, unwatched))(t)
	return r.verdicts
}

func headersOf(text string) nats.Header {
	header := nats.Header{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, found := strings.Cut(line, ":"); found {
			header[name] = append(header[name], strings.TrimSpace(value))
		}
	}
	return header
}

// mayPublish reports whether the server takes a subject from a producer with the right to notify.payments.>.
func mayPublish(subject string) bool {
	return strings.HasPrefix(subject, "notify.payments.") && !strings.ContainsAny(subject, " \t\r\n\x00*>") &&
		!strings.Contains(subject, "..") && !strings.HasSuffix(subject, ".")
}

// FuzzNeighbours has a producer of payments publish any message. Nothing changes for security.
func FuzzNeighbours(f *testing.F) {
	body := func(id string) string { return `{"id": "` + id + `", "title": "t"}` }
	room := func(id, part string) string {
		return "Notifier-Written-By: notifier\nNotifier-Id: " + id + "\nNotifier-Derived: true\nNotifier-Part: " + part +
			"\nNotifier-Subject: notify.security\nNotifier-Origin: NOTIFICATIONS 2 1772323201000\nNotifier-Deadline: 9999999999999"
	}
	for _, seed := range []struct{ subject, header, body string }{
		{"x", "", body("incident")},
		{"x", "", body("security incident")},
		{"x", "Nats-Msg-Id: message", "x"},
		{"x", room("incident", ""), "x"},
		{"x", room("security incident", "f1"), body("incident")},
		{"x", "", `{"specversion": "1.0", "type": "t", "source": "/siem", "id": "1", "data": "x"}`},
		{"x", "ce-specversion: 1.0\nce-type: t\nce-source: /siem\nce-id: 2", "x"},
		{"x", "", body("NOTIFICATIONS:4")},
		{"x", room("NOTIFICATIONS:4", ""), "x"},
		{"x", "", body("NOTIFICATIONS:12/f1")},
		{"x", room("NOTIFICATIONS:12", "f1"), "x"},
		{"x", room("group", "f1"), `{"id": "group", "alerts": [` + alert("firing", "f1") + "," + alert("resolved", "f2") + "]}"},
		{"x", "", `{"title": "t", "category": "security", "status": "resolved", "key": "k"}`},
		{"x", "", `{"title": "t", "status": "firing", "key": "security\nk"}`},
		{"x", "", `{"alerts": [{"labels": {"alertname": "x", "category": "security"}, "fingerprint": "f1", "status": "resolved"}, {"labels": {"alertname": "y"}}]}`},
		{"security", "", body("\\nincident")},
		{"é", "", body("incident")},
		{"X.Security", "Nats-Schedule-Target: notify.security\nNats-Rollup: all", body(strings.Repeat("i", 65))},
	} {
		f.Add(seed.subject, seed.header, []byte(seed.body))
	}
	alone := becomes(f, nil)
	f.Fuzz(func(t *testing.T, subject, header string, body []byte) {
		hostile := event.Message{Subject: "notify.payments." + subject, Header: headersOf(header), Data: body}
		if !mayPublish(hostile.Subject) {
			return // the server refuses the message
		}
		beside := becomes(t, &hostile)
		testkit.Check(t, reflect.DeepEqual(alone, beside),
			"verdicts beside %q with %q on %s: got\n%s\nwant\n%s", body, header, hostile.Subject, strings.Join(beside, "\n"), strings.Join(alone, "\n"))
	})
}

// TestNeighbourAlone wants each kind of verdict in the list that FuzzNeighbours compares.
func TestNeighbourAlone(t *testing.T) {
	t.Parallel()
	verdicts := strings.Join(becomes(t, nil), "\n")
	for _, want := range []string{
		fmt.Sprintf("%+v", Verdict{Outcome: Sent}), fmt.Sprintf("%+v", Verdict{Outcome: Dropped, Level: limits.LevelCategory}),
		fmt.Sprintf("%+v", Verdict{Outcome: Duplicate}), fmt.Sprintf("%+v", Verdict{Outcome: Dropped, Level: limits.LevelUnpaired}),
		"bad_json", "alerts[1]: neither title nor text",
	} {
		testkit.Contains(t, "verdicts", verdicts, want)
	}
}
