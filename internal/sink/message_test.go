package sink

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// wire is a request as it arrived: the last part of the path, and the members of the form or of the JSON.
type wire struct {
	method  string
	members map[string]string
}

// newWire starts a server that takes every request and hands it on.
func newWire(t *testing.T) (address string, requests <-chan wire) {
	t.Helper()
	arrived := make(chan wire, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		request := wire{r.URL.Path[1:], make(map[string]string)}
		switch kind := r.Header.Get("Content-Type"); kind {
		case "application/json":
			var members map[string]json.RawMessage
			if err := json.Unmarshal(body, &members); err != nil {
				t.Errorf("%v in %s", err, body)
			}
			for name, value := range members {
				request.members[name] = string(value)
			}
		case "application/x-www-form-urlencoded":
			form, err := url.ParseQuery(string(body))
			if err != nil {
				t.Errorf("%v in %s", err, body)
			}
			for name, values := range form {
				request.members[name] = strings.Join(values, " and ")
			}
		default:
			t.Errorf("a body of type %s", kind)
		}
		arrived <- request
		_, _ = io.WriteString(w, `{"ok":true,"channel":"C0000001","ts":"1.000001"}`)
	}))
	t.Cleanup(server.Close)
	return server.URL, arrived
}

// wantWire compares the members, those of JSON by value.
func wantWire(t *testing.T, name string, got wire, method string, want map[string]string) {
	t.Helper()
	testkit.Equal(t, got.method, method, "%s: requested", name)
	for member := range got.members {
		if _, wanted := want[member]; !wanted {
			t.Errorf("%s: sent %s: %s", name, member, got.members[member])
		}
	}
	for member, value := range want {
		sent := got.members[member]
		if sent == value {
			continue
		}
		var sentValue, wantValue any
		if json.Unmarshal([]byte(sent), &sentValue) != nil || json.Unmarshal([]byte(value), &wantValue) != nil ||
			!reflect.DeepEqual(sentValue, wantValue) {
			t.Errorf("%s: %s is\n%s\nwant\n%s", name, member, sent, value)
		}
	}
}

// What Slack is sent, to the last member: what slack-go made of its own types.
func TestRequests(t *testing.T) {
	t.Parallel()
	firing := usualView().Delivery
	firing.Event.Title, firing.Event.Status, firing.Mention = "Refunds <stuck> & \"late\"\u2028", event.StatusFiring, "<!here>"
	own, err := ParseTemplate(`{"text": {{json (cut 100 .Title)}}, "blocks": [
		{"type": "divider"},
		{"type": "header", "text": {"type": "plain_text", "text": ":tada:", "emoji": true}},
		{"type": "section", "text": {"type": "mrkdwn", "text": "*a*", "emoji": true}},
		{"type": "section", "text": {"type": "plain_text", "text": "b", "verbatim": true}, "fields": [{"type": "plain_text", "text": "c"}]}
	]}`)
	if err != nil {
		t.Fatal(err)
	}
	const (
		firingText   = `[FIRING ERROR] Refunds &lt;stuck&gt; &amp; "late"`
		firingBlocks = `[
			{"type": "section", "text": {"type": "mrkdwn", "text": "<!here>", "verbatim": true}},
			{"type": "header", "text": {"type": "plain_text", "text": "[FIRING ERROR] Refunds &lt;stuck&gt; &amp; \"late\"", "emoji": false}}
		]`
		details = `{"type": "section", "text": {"type": "plain_text", "text": "42 refunds wait\nfor approval", "emoji": false}},
			{"type": "section", "fields": [
				{"type": "mrkdwn", "text": "*region*\neu-1", "verbatim": true},
				{"type": "mrkdwn", "text": "*oldest*\n2 h", "verbatim": true}
			]},
			{"type": "section", "text": {"type": "mrkdwn", "text": "<https://example.org/refunds|Open>", "verbatim": true}}`
		smallPrint = `{"type": "plain_text", "text": "category payments.refunds", "emoji": false},
			{"type": "plain_text", "text": "source api-7", "emoji": false},
			{"type": "mrkdwn", "text": "<!date^1767323045^{date_short_pretty} {time}|2026-01-02T03:04:05Z>", "verbatim": true}`
		firingAttachments = `[{
			"color": "#dc2626",
			"fallback": "[FIRING ERROR] Refunds &lt;stuck&gt; &amp; \"late\"\n42 refunds wait\nfor approval",
			"blocks": [` + details + `, {"type": "context", "elements": [` + smallPrint + `,
				{"type": "plain_text", "text": "id e-1", "emoji": false},
				{"type": "plain_text", "text": "payments 7 of 10 in 30m, global 61 of 100 in 30m", "emoji": false}
			]}]
		}]`
		leastBlocks = `[{"type": "header", "text": {"type": "plain_text", "text": "[INFO] t", "emoji": false}}]`
		ownBlocks   = `[
			{"type": "divider"},
			{"type": "header", "text": {"type": "plain_text", "text": ":tada:", "emoji": true}},
			{"type": "section", "text": {"type": "mrkdwn", "text": "*a*", "verbatim": true}},
			{"type": "section", "text": {"type": "plain_text", "text": "b", "emoji": false},
				"fields": [{"type": "plain_text", "text": "c", "emoji": false}]}
		]`
		summaryText = "5321 notifications were suppressed between 10:02 and 10:31 UTC: " +
			"4698 × other paths below debug; " +
			"112 × payments.refunds (payments.* 10/30m, next slot opens 10:35 UTC, such as Refund &lt;stuck&gt;); " +
			"and at least 290 more paths: 499; 12 resolved alerts had no open notification; " +
			"the live limit of payments.* was set to 10/30m at 10:12 UTC"
		summaryAttachments = `[{
			"color": "#6b7280",
			"fallback": "` + summaryText + `",
			"blocks": [
				{"type": "section", "text": {"type": "mrkdwn", "text": "5321 notifications were suppressed between <!date^1767348120^{time}|10:02 UTC> and <!date^1767349860^{time}|10:31 UTC>", "verbatim": true}},
				{"type": "section", "text": {"type": "plain_text", "text": "4698 × other paths below debug", "emoji": false}},
				{"type": "section", "text": {"type": "plain_text", "text": "112 × payments.refunds\nRefund &lt;stuck&gt;", "emoji": false}},
				{"type": "context", "elements": [
					{"type": "plain_text", "text": "payments.* 10/30m", "emoji": false},
					{"type": "mrkdwn", "text": "next slot opens <!date^1767350100^{date_short_pretty} {time}|2026-01-02T10:35:00Z>", "verbatim": true}
				]},
				{"type": "section", "text": {"type": "plain_text", "text": "and at least 290 more paths: 499", "emoji": false}},
				{"type": "section", "text": {"type": "plain_text", "text": "12 resolved alerts had no open notification", "emoji": false}},
				{"type": "context", "elements": [
					{"type": "plain_text", "text": "the live limit of payments.* was set to 10/30m", "emoji": false},
					{"type": "mrkdwn", "text": "<!date^1767348720^{date_short_pretty} {time}|2026-01-02T10:12:00Z>", "verbatim": true}
				]}
			]
		}]`
	)
	receipt := newReceipt(firing.Event, "C0000001", posted, firing.Event.Time)
	type request struct {
		method  string
		members map[string]string
	}
	for _, test := range []struct {
		name     string
		template *Template
		send     func(s *Slack) error
		want     []request
		webhook  map[string]string
	}{
		{
			"firing", nil,
			func(s *Slack) error { _, err := s.Send(t.Context(), firing); return err },
			[]request{{"chat.postMessage", map[string]string{
				"text": firingText, "blocks": firingBlocks, "attachments": firingAttachments,
			}}},
			map[string]string{"text": quoted(firingText), "blocks": firingBlocks, "attachments": firingAttachments},
		},
		{
			"a title alone", nil,
			func(s *Slack) error { return send(t.Context(), s, event.Event{Title: "t"}) },
			[]request{{"chat.postMessage", map[string]string{"text": "[INFO] t", "blocks": leastBlocks}}},
			map[string]string{"text": `"[INFO] t"`, "blocks": leastBlocks},
		},
		{
			"summary", nil,
			func(s *Slack) error { return s.SendSummary(t.Context(), sampleSummary()) },
			[]request{{"chat.postMessage", map[string]string{"text": summaryText, "blocks": "[]", "attachments": summaryAttachments}}},
			map[string]string{"text": quoted(summaryText), "attachments": summaryAttachments},
		},
		{
			"resolved", nil,
			func(s *Slack) error { _, err := s.Send(t.Context(), resolved(receipt)); return err },
			[]request{
				{"chat.update", map[string]string{
					"ts": posted.ts, "parse": "none", "text": `[RESOLVED] Refunds &lt;stuck&gt; &amp; "late"`,
					"blocks": `[{"type": "header", "text":
						{"type": "plain_text", "text": "[RESOLVED] Refunds &lt;stuck&gt; &amp; \"late\"", "emoji": false}}]`,
					"attachments": `[{
						"color": "#16a34a",
						"fallback": "[RESOLVED] Refunds &lt;stuck&gt; &amp; \"late\"\n42 refunds wait\nfor approval",
						"blocks": [` + details + `, {"type": "context", "elements": [` + smallPrint + `,
							{"type": "plain_text", "text": "after 5m", "emoji": false},
							{"type": "plain_text", "text": "id e-1", "emoji": false}
						]}]
					}]`,
				}},
				{"chat.postMessage", map[string]string{
					"thread_ts": posted.ts, "text": "[RESOLVED] refunds work",
					"blocks": `[{"type": "header", "text": {"type": "plain_text", "text": "[RESOLVED] refunds work", "emoji": false}}]`,
					"attachments": `[{
						"color": "#16a34a", "fallback": "[RESOLVED] refunds work\n",
						"blocks": [{"type": "context", "elements": [
							{"type": "plain_text", "text": "category payments.refunds", "emoji": false},
							{"type": "mrkdwn", "text": "<!date^1767323345^{date_short_pretty} {time}|2026-01-02T03:09:05Z>", "verbatim": true},
							{"type": "plain_text", "text": "after 5m", "emoji": false},
							{"type": "plain_text", "text": "id e-2", "emoji": false}
						]}]
					}]`,
				}},
			},
			nil,
		},
		{
			"resolved, by a template of one's own", own,
			func(s *Slack) error { _, err := s.Send(t.Context(), resolved(receipt)); return err },
			[]request{
				{"chat.update", map[string]string{
					"ts": posted.ts, "parse": "none", "text": `Refunds &lt;stuck&gt; &amp; "late"`, "blocks": ownBlocks, "attachments": "[]",
				}},
				{"chat.postMessage", map[string]string{"thread_ts": posted.ts, "text": "refunds work", "blocks": ownBlocks}},
			},
			map[string]string{"text": `"refunds work"`, "blocks": ownBlocks},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			address, requests := newWire(t)
			s := newTestSlack(t, SlackOptions{Token: "xoxb-1", Channel: "C0000001", APIURL: address, Template: test.template})
			testkit.NoError(t, test.send(s))
			for _, want := range test.want {
				maps.Copy(want.members, map[string]string{
					"token": "xoxb-1", "channel": "C0000001", "mrkdwn": "false", "unfurl_links": "false", "unfurl_media": "false",
				})
				wantWire(t, "with a token", <-requests, want.method, want.members)
			}
			if test.webhook == nil {
				return
			}
			testkit.NoError(t, test.send(newTestSlack(t, SlackOptions{WebhookURL: address + "/hook", Template: test.template})))
			for _, name := range []string{"replace_original", "delete_original", "unfurl_links", "unfurl_media"} {
				test.webhook[name] = "false"
			}
			wantWire(t, "with a webhook", <-requests, "hook", test.webhook)
		})
	}
}

// quoted is a text as JSON.
func quoted(text string) string {
	encoded, err := marshal(text)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// Whatever is prepared is posted just as if it were not, and so is what cannot be prepared.
func TestPrepare(t *testing.T) {
	t.Parallel()
	usual := usualView().Delivery
	for _, options := range []SlackOptions{{Token: "xoxb-1", Channel: "C0000001"}, {WebhookURL: "/hook"}} {
		address, requests := newWire(t)
		options.APIURL = address
		if options.WebhookURL != "" {
			options.WebhookURL = address + options.WebhookURL
		}
		s := newTestSlack(t, options)
		opened := resolved(newReceipt(fired, "C0000001", posted, fired.Time))
		for name, d := range map[string]Delivery{"usual": usual, "firing": {Event: fired}, "resolved": opened, "resolved alone": {Event: ended}} {
			want := testkit.Must(s.Send(t.Context(), d))(t)
			expected := drain(requests)
			prepared := s.Prepare(d)
			if len(drain(requests)) > 0 {
				t.Errorf("%s: asked somebody to prepare it", name)
			}
			testkit.Equal(t, s.Destination(prepared), s.Destination(d), "%s: goes to", name)
			for range 2 { // as often as it takes
				got, err := s.Send(t.Context(), prepared)
				if err != nil || got != want {
					t.Errorf("%s: receipt %q and %v, want %q", name, got, err, want)
				}
				if sent := drain(requests); len(sent) == 0 || !reflect.DeepEqual(sent, expected) {
					t.Errorf("%s: sent %v, want %v", name, sent, expected)
				}
			}
		}
	}
	var line bytes.Buffer
	console := NewConsole(&line, false)
	if _, err := console.Send(t.Context(), console.Prepare(usual)); err != nil || !strings.Contains(line.String(), usual.Event.Title) {
		t.Errorf("printed %q and %v", line.String(), err)
	}
}

func drain(requests <-chan wire) []wire {
	var all []wire
	for len(requests) > 0 {
		all = append(all, <-requests)
	}
	return all
}

// A template's failure is told when the message is made, and not again for each attempt to send it.
func TestPrepareTellsOfAFailureOnce(t *testing.T) {
	t.Parallel()
	broken := testkit.Must(parseTemplate("template", `{"text": "{{slice .Title 0 20}}"}`))(t)
	server := slacktest.New(t)
	o := byToken(server)
	told := 0
	o.Template, o.TemplateFailed = broken, func(error) { told++ }
	s := newTestSlack(t, o)
	prepared := s.Prepare(Delivery{Event: sample})
	if told != 1 {
		t.Errorf("told %d times before it was sent, want 1", told)
	}
	for range 2 {
		testkit.Must(s.Send(t.Context(), prepared))(t)
	}
	if told != 1 {
		t.Errorf("told %d times, want 1", told)
	}
}
