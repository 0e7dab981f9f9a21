package tests

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// maxBody is the default of NOTIFIER_EVENT_MAX_BYTES.
const maxBody = 256 << 10

// input is a message of a producer.
type input struct {
	name    string
	subject string
	header  nats.Header
	body    string
	reason  string // of its dead letter; none for a message that is an event
	says    string // the error of the dead letter, or the post of the event
}

func manyHeaders() nats.Header {
	many := nats.Header{}
	for i := range 1000 {
		many[fmt.Sprintf("X-Header-%d", i)] = []string{"a", "b"}
	}
	return many
}

// inputs are events of several forms, and a message for each reason of a dead letter.
var inputs = []input{
	{name: "byte order mark and blanks", subject: "notify.PayMents.EU", body: " \ufeff\n{\"text\":\"marked\"}", says: "marked"},
	{name: "largest body", subject: "notify.errors", body: strings.Repeat("a", maxBody), says: "aaaa"},
	{name: "a thousand headers", subject: "notify.errors", header: manyHeaders(), body: "with headers", says: "with headers"},
	{name: "bare subject with a category", subject: "notify", body: `{"text":"x","category":"From.Body"}`, says: "category from.body"},
	{name: "binary CloudEvent", subject: "notify", header: nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}},
		body: "in binary", says: "category default"},

	{name: "empty", subject: "notify.errors", reason: "empty"},
	{name: "truncated", subject: "notify.errors", header: manyHeaders(), body: `{"text":"x`, reason: "bad_json"},
	{name: "invalid UTF-8", subject: "notify.errors", body: "caf\xe9", reason: "bad_utf8", says: "byte 4"},
	{name: "too large", subject: "notify.errors", body: strings.Repeat("x", maxBody+1), reason: "too_large", says: "262145"},
	{name: "link to a script", subject: "notify.errors", body: `{"text":"x","link":"javascript:alert(1)"}`, reason: "bad_field", says: "link"},
	{name: "emoji in the subject", subject: "notify.fire.🔥", body: "x", reason: "bad_category"},
	{name: "CloudEvent without a source", subject: "notify.errors", body: `{"specversion":"1.0","id":"1","type":"t","data":"x"}`, reason: "bad_cloudevent", says: "source"},
}

// TestInput publishes good and bad messages, and reads the posts and the dead letters.
func TestInput(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.createStream()
	byName := make(map[string]input)
	for _, in := range inputs {
		byName[in.name] = in
		m := message(in.subject, in.body, "Nats-Msg-Id", in.name)
		maps.Copy(m.Header, in.header)
		testkit.Must(d.js.PublishMsg(t.Context(), m))(t)
	}
	w := d.startReady("worker", unlimited()...)
	d.awaitEmpty()
	for _, post := range d.slack.Accepted() {
		in := byName[post.Origin("id")]
		testkit.Equal(t, in.reason, "", "reason of %q, which was posted", in.name)
		testkit.Contains(t, in.name+": post", text(post.Message), in.says)
	}
	for _, letter := range d.deadLetters() {
		in := byName[letter.Header.Get("Notifier-Msg-Id")]
		testkit.Equal(t, letter.Header.Get("Notifier-Reason"), in.reason, "reason of the dead letter of %q", in.name)
		testkit.Contains(t, in.name+": dead letter", letter.Header.Get("Notifier-Error"), in.says)
		w.alone().awaitSum(1, "notifier_dead_letters_total", "reason", in.reason)
	}
	w.alone().awaitOutcomes(map[string]int{"sent": 5, "dead": len(inputs) - 5})
	w.awaitReady()
}
