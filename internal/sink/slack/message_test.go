package slack

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// wire is a request: the last part of its path, and the members of its form or JSON.
type wire struct {
	Method  string         `json:"method"`
	Members map[string]any `json:"members"`
}

// newWire starts a server that accepts every request and passes it to requests.
func newWire(t *testing.T) (token, webhook Options, requests <-chan wire) {
	t.Helper()
	arrived := make(chan wire, 10)
	token = answeredBy(t, func(w http.ResponseWriter, r *http.Request) {
		testkit.Equal(t, r.Header.Get("User-Agent"), "notifier/1.2.3", "user agent")
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		request := wire{r.URL.Path[1:], make(map[string]any)}
		if r.Header.Get("Content-Type") == "application/json" {
			err = json.Unmarshal(body, &request.Members)
		} else {
			request.Members, err = formMembers(string(body))
		}
		testkit.Check(t, err == nil, "%v in %s", err, body)
		arrived <- request
		_, _ = io.WriteString(w, `{"ok":true,"channel":"C0000001","ts":"1.000001"}`)
	})
	token.Version = "1.2.3"
	return token, Options{WebhookURL: token.APIURL + "/webhook", Version: token.Version}, arrived
}

// formMembers reads a form, whose blocks and attachments are JSON.
func formMembers(body string) (map[string]any, error) {
	form, err := url.ParseQuery(body)
	members := make(map[string]any)
	for name, values := range form {
		var list []any
		if (name == "blocks" || name == "attachments") && json.Unmarshal([]byte(values[0]), &list) == nil {
			members[name] = list
		} else {
			members[name] = strings.Join(values, " and ")
		}
	}
	return members, err
}

const ownTemplate = `{"text": {{json (cut 100 .Title)}}, "blocks": [
	{"type": "divider"},
	{"type": "header", "text": {"type": "plain_text", "text": ":tada:", "emoji": true}},
	{"type": "section", "text": {"type": "mrkdwn", "text": "*a*", "emoji": true}},
	{"type": "section", "text": {"type": "plain_text", "text": "b", "verbatim": true}, "fields": [{"type": "plain_text", "text": "c"}]}
]}`

// Compare each member of a request. A golden file in testdata/requests has the requests by token and by webhook.
func TestRequests(t *testing.T) {
	t.Parallel()
	firing := usual()
	firing.Name = sink.NameOf("notifier", firing.Event.Identity(), "NOTIFICATIONS:7")
	firing.Event.Title, firing.Event.Status, firing.Mention = "Refunds <stuck> & \"late\"\u2028", event.StatusFiring, "<!here>"
	opened := resolved(sink.NewReceipt(firing.Event, "C0000001", "C0000001", "1767322800.000100", firing.Event.Time))
	own := testkit.Must(render.Parse(ownTemplate))(t)
	deliver := func(d sink.Delivery) func(*Sink) error { // with its updates, which come first in the golden files
		return func(s *Sink) error {
			if s.Updatable(d.Opened) {
				testkit.NoError(t, s.Update(t.Context(), d, d.Opened))
			}
			_, err := s.Send(t.Context(), d)
			return err
		}
	}
	for name, test := range map[string]struct {
		template *render.Template
		send     func(s *Sink) error
	}{
		"firing":             {nil, deliver(firing)},
		"a-title-alone":      {nil, deliver(sink.Delivery{Event: event.Event{Title: "t"}})},
		"summary":            {nil, func(s *Sink) error { return s.SendSummary(t.Context(), sampleSummary()) }},
		"resolved":           {nil, deliver(opened)},
		"resolved-by-an-own": {own, deliver(opened)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token, webhook, requests := newWire(t)
			var got []wire
			for _, options := range []Options{token, webhook} {
				options.Template = test.template
				testkit.NoError(t, test.send(newTestSlack(t, options)))
				got = append(got, drain(requests)...)
			}
			var want []wire
			golden := testkit.Golden(t, filepath.Join("testdata", "requests", name+".json"), string(testkit.Must(json.MarshalIndent(got, "", "  "))(t))+"\n")
			testkit.NoError(t, json.Unmarshal([]byte(golden), &want))
			testkit.EqualDeeply(t, got, want, "requests")
		})
	}
}

func drain(requests <-chan wire) []wire {
	var all []wire
	for len(requests) > 0 {
		all = append(all, <-requests)
	}
	return all
}
