package tests

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/hostile"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// maxPayload is what NATS takes in one message, headers and body together, unless it is configured otherwise.
const maxPayload = 1 << 20

// maxBody is what a worker takes unless it is configured otherwise.
const maxBody = 256 << 10

// input is a message as a producer may send it.
type input struct {
	name    string
	subject string // notify.errors if empty
	header  nats.Header
	body    string
	reason  string // of its dead letter; none for a message that is an event
	says    string // what the dead letter's error has to mention; for an event, what its post shows
	pile    string // the last part of its dead letter's subject; errors if empty
}

// cloud are the headers of a binary CloudEvent, but for changes, given as name, value, …; an empty value leaves one out.
func cloud(changes ...string) nats.Header {
	h := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}}
	for change := range slices.Chunk(changes, 2) {
		if h.Del(change[0]); change[1] != "" {
			h[change[0]] = []string{change[1]}
		}
	}
	return h
}

func typed(contentType string) nats.Header { return nats.Header{"Content-Type": {contentType}} }

func manyHeaders() nats.Header {
	many := nats.Header{}
	for i := range 1000 {
		many[fmt.Sprintf("X-Header-%d", i)] = []string{"a", "b"}
	}
	return many
}

func deep(levels int) string {
	return strings.Repeat(`{"text":`, levels) + `"x"` + strings.Repeat("}", levels)
}

var inputs = []input{
	{name: "plain text", body: "disk full", says: "disk full"},
	{name: "null", body: "null", says: "null"},
	{name: "array", body: `[{"title":"x"}]`, says: `[{"title":"x"}]`},
	{name: "number", body: "42", says: "42"},
	{name: "string", body: `"quoted"`, says: `"quoted"`},
	{name: "brackets twenty thousand deep", body: strings.Repeat("[", 20_000), says: "[[[["},
	{name: "NUL in the text", body: "a\x00b", says: "ab"},
	{name: "byte order mark and blanks", body: " \ufeff\n{\"text\":\"marked\"}", says: "marked"},
	{name: "unknown members", body: `{"text":"known","more":[1,{"a":2}]}`, says: "known"},
	{name: "duplicate members", body: `{"text":1,"text":"last"}`, says: "last"},
	{name: "largest body", body: strings.Repeat("a", maxBody), says: "aaaa"},
	{name: "1970", body: `{"text":"x","time":"1970-01-01T00:00:00Z"}`, says: "1970-01-01T00:00:00Z"},
	{name: "2100", body: `{"text":"x","time":"2100-01-01T00:00:00Z"}`, says: "2100-01-01T00:00:00Z"},
	{name: "year 0", body: `{"text":"x","time":"0000-01-01T00:00:00Z"}`, says: "0000-01-01T00:00:00Z"},
	{name: "cost 100", body: `{"text":"costly","cost":100}`, says: "costly"},
	{name: "a thousand headers", header: manyHeaders(), body: "with headers", says: "with headers"},
	{name: "upper-case subject", subject: "notify.PayMents.EU", body: "x", says: "category payments.eu"},
	{name: "eight levels", subject: "notify.a.b.c.d.e.f.g.h", body: "x", says: "category a.b.c.d.e.f.g.h"},
	{name: "category global", subject: "notify.global", body: "x", says: "category global"},
	{name: "bare subject", subject: "notify", body: "x", says: "category default"},
	{name: "bare subject with a category", subject: "notify", body: `{"text":"x","category":"From.Body"}`, says: "category from.body"},
	{name: "category in subject and body", body: `{"text":"x","category":"other"}`, says: "category errors"},
	{name: "structured CloudEvent", body: `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"text":"inside"}}`, says: "inside"},
	{name: "binary CloudEvent", header: cloud(), body: "in binary", says: "in binary"},
	{name: "binary CloudEvent in upper case", header: nats.Header{"CE-SPECVERSION": {"1.0"}, "CE-ID": {"1"}, "CE-SOURCE": {"/s"}, "CE-TYPE": {"t"}}, body: "loud", says: "loud"},

	{name: "empty", reason: "empty"},
	{name: "blank", body: " \n\t", reason: "empty"},
	{name: "neither title nor text", body: `{"severity":"error"}`, reason: "empty", says: "title"},
	{name: "empty object", body: "{}", reason: "empty"},
	{name: "truncated", body: `{"text":"x`, reason: "bad_json"},
	{name: "trailing junk", body: `{"text":"x"} more`, reason: "bad_json"},
	{name: "two objects", body: `{"text":"x"}{"text":"y"}`, reason: "bad_json"},
	{name: "brace", body: "{", reason: "bad_json"},
	{name: "deeper than ten thousand", body: deep(10_001), reason: "bad_json"},
	{name: "ten thousand deep, truncated", body: strings.Repeat(`{"text":`, 10_000), reason: "bad_json"},
	{name: "declared JSON", header: cloud("datacontenttype", "", "Content-Type", "application/json"), body: "no json", reason: "bad_json"},
	{name: "invalid UTF-8", body: "caf\xe9", reason: "bad_utf8", says: "byte 4"},
	{name: "invalid UTF-8 in JSON", body: "{\"text\":\"\xff\"}", reason: "bad_utf8"},
	{name: "too large", body: strings.Repeat("x", maxBody+1), reason: "too_large", says: "262145"},
	{name: "title is a number", body: `{"title":1}`, reason: "bad_field", says: "title"},
	{name: "text is an array", body: `{"text":["x"]}`, reason: "bad_field", says: "text"},
	{name: "id is a number", body: `{"text":"x","id":7}`, reason: "bad_field", says: "id"},
	{name: "severity unknown", body: `{"text":"x","severity":"fatal"}`, reason: "bad_field", says: "fatal"},
	{name: "severity is true", body: `{"text":"x","severity":true}`, reason: "bad_field", says: "severity"},
	{name: "source is an object", body: `{"text":"x","source":{}}`, reason: "bad_field", says: "source"},
	{name: "link to a script", body: `{"text":"x","link":"javascript:alert(1)"}`, reason: "bad_field", says: "link"},
	{name: "link is relative", body: `{"text":"x","link":"/x"}`, reason: "bad_field", says: "link"},
	{name: "fields is an array", body: `{"text":"x","fields":[]}`, reason: "bad_field", says: "fields"},
	{name: "field is a number", body: `{"text":"x","fields":{"a":1}}`, reason: "bad_field", says: "fields.a"},
	{name: "time is no time", body: `{"text":"x","time":"yesterday"}`, reason: "bad_field", says: "yesterday"},
	{name: "time is a number", body: `{"text":"x","time":1}`, reason: "bad_field", says: "time"},
	{name: "cost 0", body: `{"text":"x","cost":0}`, reason: "bad_field", says: "cost"},
	{name: "cost -1", body: `{"text":"x","cost":-1}`, reason: "bad_field", says: "-1"},
	{name: "cost 1.5", body: `{"text":"x","cost":1.5}`, reason: "bad_field", says: "1.5"},
	{name: "cost 101", body: `{"text":"x","cost":101}`, reason: "bad_field", says: "101"},
	{name: "cost is a string", body: `{"text":"x","cost":"1"}`, reason: "bad_field", says: "cost"},
	{name: "cost is huge", body: `{"text":"x","cost":1e400}`, reason: "bad_field", says: "cost"},
	{name: "emoji in the subject", subject: "notify.fire.🔥", body: "x", reason: "bad_category", pile: "fire"},
	{name: "nine levels", subject: "notify.a.b.c.d.e.f.g.h.i", body: "x", reason: "bad_category", says: "9", pile: "a"},
	{name: "long category", subject: "notify." + strings.Repeat("a", 129), body: "x", reason: "bad_category", says: "129", pile: "_"},
	{name: "odd character in the subject", subject: "notify.a$b", body: "x", reason: "bad_category", pile: "_"},
	{name: "Kelvin sign", subject: "notify.\u212aelvin", body: "x", reason: "bad_category", pile: "_"},
	{name: "bad category in the body", subject: "notify", body: `{"text":"x","category":"a b"}`, reason: "bad_category", pile: "_"},
	{name: "category in the body is a number", subject: "notify", body: `{"text":"x","category":1}`, reason: "bad_category", pile: "_"},
	{name: "CloudEvent of another version", body: `{"specversion":"0.3","id":"1","source":"/s","type":"t","data":"x"}`, reason: "bad_cloudevent", says: "0.3"},
	{name: "CloudEvent without a source", body: `{"specversion":"1.0","id":"1","type":"t","data":"x"}`, reason: "bad_cloudevent", says: "source"},
	{name: "CloudEvent by its content type alone", header: typed("application/cloudevents+json"), body: `{"text":"x"}`, reason: "bad_cloudevent"},
	{name: "CloudEvent that is no object", header: typed("application/cloudevents+json"), body: `[]`, reason: "bad_cloudevent"},
	{name: "batch of CloudEvents", header: typed("application/cloudevents-batch+json"), body: `[]`, reason: "bad_cloudevent", says: "batch"},
	{name: "binary CloudEvent without a type", header: cloud("ce-type", ""), body: "x", reason: "bad_cloudevent", says: "type"},
	{name: "CloudEvent with bad data", body: `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"text":1}}`, reason: "bad_field", says: "text"},
	{name: "CloudEvent without data", body: `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`, reason: "empty"},
	{name: "bad, with headers that command the server", header: nats.Header{
		"Nats-Expected-Stream": {"NOTIFICATIONS"}, "Nats-Rollup": {""}, "Notifier-Reason": {"mine"}, "X-Keep": {"kept"},
	}, body: "{", reason: "bad_json"},
	{name: "bad, with a thousand headers", header: manyHeaders(), body: "{", reason: "bad_json"},
}

// TestInput publishes every kind of message, good and bad, and looks where it ends.
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
		in := events[origin(post, "id")]
		if shown := text(post.Message); !strings.Contains(shown, in.says) {
			t.Errorf("%s: the post does not show %q: %.500q", in.name, in.says, shown)
		}
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
		if canonical := textproto.CanonicalMIMEHeaderKey(name); !strings.HasPrefix(canonical, "Nats-") && !strings.HasPrefix(canonical, "Notifier-") {
			header[name] = values
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

// TestInputOfGreatestSize sends as much as the server takes: the body must survive, and as much of the headers as
// there is room for.
func TestInputOfGreatestSize(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", unlimited("EVENT_MAX_BYTES", "1048576")...)

	full := bytes.Repeat([]byte("x"), maxPayload)
	d.publishUntil(w.alone(), "sent", "notify.errors", string(full))

	full[0] = '{'
	d.publishUntil(w.alone(), "dead", "notify.errors", string(full))

	// With the producer's headers there is no room for the notifier's own.
	headers := []string{"X-Padding", strings.Repeat("p", 10_000)}
	size := len("NATS/1.0\r\nX-Padding: \r\n\r\n") + 10_000
	d.publishUntil(w.alone(), "dead", "notify.errors", string(full[:maxPayload-size]), headers...)

	letters := d.deadLetters()
	testkit.Equal(t, len(letters), 2, "dead letters")
	for i, body := range [][]byte{full, full[:maxPayload-size]} {
		if letters[i].Subject != "notify-dlq.bad_json.errors" || !bytes.Equal(letters[i].Data, body) {
			t.Errorf("dead letter %d is on %s with a body of %d bytes, want notify-dlq.bad_json.errors and the body of %d", i+1, letters[i].Subject, len(letters[i].Data), len(body))
		}
	}
	if got := letters[1].Header; got.Get("Notifier-Reason") != "bad_json" || got.Get("Notifier-Error") == "" || got.Get("X-Padding") != "" {
		t.Errorf("the second dead letter has headers %v, want the notifier's own", got)
	}
	d.awaitEmpty()
	w.awaitReady()
}

// TestManyCategories invents a category for each event.
func TestManyCategories(t *testing.T) {
	t.Parallel()
	const admitted, labels, categories = 10, 20, 2000
	d := newDeployment(t)
	w := d.startReady("worker", "GLOBAL_LIMIT", fmt.Sprintf("%d/30m", admitted), "METRICS_MAX_CATEGORIES", fmt.Sprint(labels), "DENY_CACHE_TTL", "0")
	d.publishEvents(numbered("category-", categories), 1)
	w.alone().awaitEvents(categories)
	metrics := w.scrape()
	for _, metric := range []string{"notifier_events_total", "notifier_dropped_total"} {
		testkit.AtMost(t, len(metrics.labels(metric, "category")), labels+1, "categories of %s, with other", metric)
		if metrics.sum(metric, "category", "other") == 0 {
			t.Errorf("%s of \"other\" is 0", metric)
		}
	}
	logs := strings.Fields(d.redis.CLI("keys", rootLog+":*"))
	testkit.Equal(t, len(logs), admitted, "categories with a log")
	keys := slices.DeleteFunc(strings.Split(d.redis.CLI("keys", "*"), "\n"), func(key string) bool {
		return strings.Contains(key, ":scratch:") // of the rehearsal at the start, and gone soon
	})
	testkit.AtMost(t, len(keys), admitted+6, "keys %q", keys)
}

// TestLabelsBehindJunk has a flood of invented categories below one first level take no label from the others.
func TestLabelsBehindJunk(t *testing.T) {
	t.Parallel()
	const labels = 10
	junk := hostile.Times(t, 500, 50)
	n := startNeighboursIn(t, defaultChannel, "GLOBAL_LIMIT", "10/30m", "METRICS_MAX_CATEGORIES", fmt.Sprint(labels), "LIMITS", "payments.cards=5/1h,*.x=1/1h")
	w := n.worker.alone()
	if got := n.worker.scrape().labels("notifier_events_total", "category"); !slices.Equal(got, []string{"other", "payments.cards"}) {
		t.Errorf("the labels at the start are %q, want the configured category's", got)
	}
	testkit.NoError(t, n.hostile.Subcategories(t.Context(), junk))
	w.awaitEvents(junk)
	n.tell(3)
	n.publishEvents([]string{"payments.cards"}, 3)
	w.awaitEvents(junk + 6)
	w.awaitEvents(3, "category", "security.alerts")
	w.awaitEvents(3, "category", "payments.cards")
	w.awaitEvents(junk-1, "category", "other")
}
