package tests

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// maxBody is the default of NOTIFIER_EVENT_MAX_BYTES.
const maxBody = 256 << 10

// input is a message of a producer.
type input struct {
	name    string
	subject string // notify.errors if empty
	header  nats.Header
	body    string
	reason  string // of its dead letter; none for a message that is an event
	says    string // what the dead letter's error has to mention; for an event, what its post shows
	pile    string // the last part of its dead letter's subject; errors if empty
}

func manyHeaders() nats.Header {
	many := nats.Header{}
	for i := range 1000 {
		many[fmt.Sprintf("X-Header-%d", i)] = []string{"a", "b"}
	}
	return many
}

var inputs = []input{
	{name: "plain text", body: "disk full", says: "disk full"},
	{name: "NUL in the text", body: "a\x00b", says: "ab"},
	{name: "byte order mark and blanks", body: " \ufeff\n{\"text\":\"marked\"}", says: "marked"},
	{name: "largest body", body: strings.Repeat("a", maxBody), says: "aaaa"},
	{name: "a thousand headers", header: manyHeaders(), body: "with headers", says: "with headers"},
	{name: "upper-case subject", subject: "notify.PayMents.EU", body: "x", says: "category payments.eu"},
	{name: "bare subject", subject: "notify", body: "x", says: "category default"},
	{name: "bare subject with a category", subject: "notify", body: `{"text":"x","category":"From.Body"}`, says: "category from.body"},
	{name: "structured CloudEvent", body: `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"text":"inside"}}`, says: "inside"},
	{name: "binary CloudEvent", header: nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}},
		body: "in binary", says: "in binary"},

	{name: "empty", reason: "empty"},
	{name: "truncated", body: `{"text":"x`, reason: "bad_json"},
	{name: "declared JSON", header: nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "Content-Type": {"application/json"},
	}, body: "no json", reason: "bad_json"},
	{name: "invalid UTF-8", body: "caf\xe9", reason: "bad_utf8", says: "byte 4"},
	{name: "too large", body: strings.Repeat("x", maxBody+1), reason: "too_large", says: "262145"},
	{name: "severity unknown", body: `{"text":"x","severity":"fatal"}`, reason: "bad_field", says: "fatal"},
	{name: "link to a script", body: `{"text":"x","link":"javascript:alert(1)"}`, reason: "bad_field", says: "link"},
	{name: "field is a number", body: `{"text":"x","fields":{"a":1}}`, reason: "bad_field", says: "fields.a"},
	{name: "cost 101", body: `{"text":"x","cost":101}`, reason: "bad_field", says: "101"},
	{name: "emoji in the subject", subject: "notify.fire.🔥", body: "x", reason: "bad_category", pile: "fire"},
	{name: "nine levels", subject: "notify.a.b.c.d.e.f.g.h.i", body: "x", reason: "bad_category", says: "9", pile: "a"},
	{name: "odd character in the subject", subject: "notify.a$b", body: "x", reason: "bad_category", pile: "_"},
	{name: "bad category in the body", subject: "notify", body: `{"text":"x","category":"a b"}`, reason: "bad_category", pile: "_"},
	{name: "CloudEvent without a source", body: `{"specversion":"1.0","id":"1","type":"t","data":"x"}`, reason: "bad_cloudevent", says: "source"},
	{name: "batch of CloudEvents", header: nats.Header{"Content-Type": {"application/cloudevents-batch+json"}}, body: `[]`, reason: "bad_cloudevent", says: "batch"},
	{name: "bad, with headers that command the server", header: nats.Header{
		"Nats-Expected-Stream": {"NOTIFICATIONS"}, "Nats-Rollup": {""}, "Notifier-Reason": {"mine"}, "X-Other": {"x"},
	}, body: "{", reason: "bad_json"},
	{name: "bad, with a thousand headers", header: manyHeaders(), body: "{", reason: "bad_json"},
}

// TestInput publishes good and bad messages, and reads the posts and the dead letters.
func TestInput(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.createStream()
	events, bad := make(map[string]input), make(map[string]input) // by name
	reasons := make(map[string]int)
	for _, in := range inputs {
		in.subject = cmp.Or(in.subject, "notify.errors")
		m := message(in.subject, in.body, "Nats-Msg-Id", in.name)
		maps.Copy(m.Header, in.header)
		testkit.Must(d.js.PublishMsg(t.Context(), m))(t)
		if in.reason == "" {
			events[in.name] = in
		} else {
			bad[in.name] = in
			reasons[in.reason]++
		}
	}
	w := d.startReady("worker", unlimited()...)
	d.awaitEmpty()
	w.alone().awaitOutcomes(map[string]int{"sent": len(events), "dead": len(bad)})
	for reason, n := range reasons {
		w.alone().awaitSum(n, "notifier_dead_letters_total", "reason", reason)
	}

	wantPostedOnce(t, d.slack.Accepted(), slices.Collect(maps.Keys(events))...)
	for _, post := range d.slack.Accepted() {
		in := events[post.Origin("id")]
		testkit.Contains(t, in.name+": post", text(post.Message), in.says)
	}
	for _, letter := range d.deadLetters() {
		name := letter.Header.Get("Notifier-Msg-Id")
		in, known := bad[name]
		if !known {
			t.Errorf("a dead letter of %q: %v", name, letter.Header)
			continue
		}
		delete(bad, name)
		in.wantLetter(t, letter)
	}
	for name := range bad {
		t.Errorf("no dead letter of %q", name)
	}
	w.awaitReady()
}

// wantLetter checks the dead letter of a message.
func (in input) wantLetter(t testing.TB, letter *jetstream.RawStreamMsg) {
	t.Helper()
	header := nats.Header{"Notifier-Reason": {in.reason}, "Notifier-Subject": {in.subject}, "Notifier-Deliveries": {"1"}}
	for name, values := range in.header {
		switch {
		case name == "Content-Type", strings.HasPrefix(name, "ce-"):
			header[name] = values
		case header[name] == nil: // it says nothing about the event
			header[name] = nil
		}
	}
	body := in.body[:min(len(in.body), maxBody)] // what is too large is cut
	if len(body) < len(in.body) {
		sum := sha256.Sum256([]byte(in.body))
		header.Set("Notifier-Body-Length", fmt.Sprint(len(in.body)))
		header["Notifier-Body-SHA256"] = []string{hex.EncodeToString(sum[:])}
	} else {
		header["Notifier-Body-Length"], header["Notifier-Body-SHA256"] = nil, nil
	}
	for name, want := range header {
		testkit.EqualSlices(t, letter.Header[name], want, "%s: %s of the dead letter", in.name, name)
	}
	for name := range letter.Header {
		if strings.HasPrefix(name, "Nats-") && name != "Nats-Msg-Id" {
			t.Errorf("%s: the dead letter has the producer's header %s", in.name, name)
		}
	}
	if words := letter.Header.Get("Notifier-Error"); words == "" || !strings.Contains(words, in.says) {
		t.Errorf("%s: the dead letter says %q, want it to mention %q", in.name, words, in.says)
	}
	testkit.Equal(t, letter.Subject, "notify-dlq."+in.reason+"."+cmp.Or(in.pile, "errors"), "%s: subject of the dead letter", in.name)
	if string(letter.Data) != body {
		t.Errorf("%s: the dead letter has a body of %d bytes, want the event's of %d", in.name, len(letter.Data), len(body))
	}
}

// TestLabelsBehindJunk floods with invented categories below one first level. Other categories keep their labels.
func TestLabelsBehindJunk(t *testing.T) {
	t.Parallel()
	const labels = 10
	junk := hostile.Times(t, 500, 50)
	n := startNeighboursIn(t, defaultChannel, "GLOBAL_LIMIT", "10/30m", "METRICS_MAX_CATEGORIES", fmt.Sprint(labels), "LIMITS", "payments.cards=5/1h,*.x=1/1h")
	w := n.worker.alone()
	testkit.EqualSlices(t, n.worker.scrape().labels("notifier_events_total", "category"), []string{"other", "payments.cards"}, "labels at the start")
	testkit.NoError(t, n.hostile.Subcategories(t.Context(), junk))
	w.awaitEvents(junk)
	n.tell(3)
	n.publishEvents([]string{"payments.cards"}, 3)
	w.awaitEvents(junk + 6)
	w.awaitEvents(3, "category", "security.alerts")
	w.awaitEvents(3, "category", "payments.cards")
	w.awaitEvents(junk-(labels-1)/2, "category", "other")
}
