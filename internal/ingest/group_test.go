package ingest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// alertOf is an alert as Alertmanager sends it, with so many bytes more.
func alertOf(number, padding int) string {
	return fmt.Sprintf(`{"status":"firing","labels":{"alertname":"Down","pod":"pod-%d"},"annotations":{"summary":"%d is down","description":"%s"},`+
		`"startsAt":"2026-01-02T03:04:05Z","endsAt":"0001-01-01T00:00:00Z","generatorURL":"http://prometheus/graph","fingerprint":"f%d"}`,
		number, number, strings.Repeat("a", padding), number)
}

// groupOf is a webhook body with the members of Alertmanager in their order.
func groupOf(alerts ...string) string {
	return `{"receiver":"team","status":"firing","alerts":[` + strings.Join(alerts, ",") +
		`],"groupLabels":{},"commonLabels":{},"commonAnnotations":{},"externalURL":"http://alertmanager:9093","version":"4","groupKey":"{}","truncatedAlerts":0}`
}

func alertsOf(count, padding int) []string {
	alerts := make([]string, count)
	for i := range alerts {
		alerts[i] = alertOf(i, padding)
	}
	return alerts
}

// groupAnswer is the answer to a group.
type groupAnswer struct {
	Alerts, Duplicates int
	Events             []receipt
}

func (a answer) group(t testing.TB) (g groupAnswer) {
	t.Helper()
	testkit.Equal(t, a.status, http.StatusAccepted, "status of %s", a.body)
	testkit.NoError(t, json.Unmarshal([]byte(a.body), &g))
	return g
}

func (d *door) event(sequence uint64) event.Event {
	d.t.Helper()
	m := d.stored(sequence)
	return testkit.Must(event.Decoder{Prefix: "notify"}.Decode(event.Message{Subject: m.Subject, Header: m.Header, Data: m.Data, Stream: streamName, Sequence: sequence}))(d.t)
}

// TestGroup sends groups of alerts that are larger than an event may be. Each alert is a message, which is stored once in whichever body it
// comes.
func TestGroup(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	alerts := alertsOf(300, 800)
	body := groupOf(alerts...)
	testkit.Require(t, len(body) >= 300<<10, "the body has %d bytes, want more than an event may have", len(body))
	got := d.post("/v1/alertmanager/team.alerts", body, "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").group(t)
	testkit.Equal(t, got.Alerts, 300, "alerts of the answer")
	testkit.Equal(t, got.Duplicates, 0, "duplicates of the answer")
	testkit.Equal(t, len(got.Events), 100, "alerts that the answer names")
	for i, named := range got.Events {
		e := d.event(named.Sequence)
		id := fmt.Sprintf("f%d firing 2026-01-02T03:04:05Z", i)
		testkit.Equal(t, named.ID, id, "ID in the answer")
		testkit.Equal(t, strings.Join([]string{e.ID, e.Category, e.Title, e.Key, e.Source}, "|"), fmt.Sprintf("%s|team.alerts|%d is down|f%d|http://alertmanager:9093", id, i, i), "event")
		m := d.stored(named.Sequence)
		messageID := m.Header.Get("Nats-Msg-Id")
		testkit.Check(t, strings.HasPrefix(messageID, "team.alerts/") && !strings.Contains(messageID, "firing"),
			"Nats-Msg-Id: got %q, want one that nobody guesses", messageID)
		testkit.EqualDeeply(t, m.Header, nats.Header{"Nats-Msg-Id": {messageID}, "traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}, "headers")
	}
	testkit.Equal(t, d.post("/v1/alertmanager/team.alerts", body).group(t).Duplicates, 300, "duplicates of the same body")
	alerts[7] = strings.Replace(alerts[7], "firing", "resolved", 1)
	again := d.post("/v1/events/team.alerts", groupOf(alerts[5:20]...)).group(t)
	testkit.Equal(t, again.Duplicates, 14, "duplicates of another body with one changed alert")
	testkit.Equal(t, again.Events[2].ID, "f7 resolved 2026-01-02T03:04:05Z", "ID of the changed alert")
	inEnvelope := d.post("/v1/events/team.alerts", `{"specversion":"1.0","id":"7","source":"/shop","type":"t","data":`+groupOf(alerts[8])+`}`, "Idempotency-Key", "k").receipt(t)
	testkit.EqualDeeply(t, inEnvelope, receipt{ID: "f8 firing 2026-01-02T03:04:05Z", Stream: streamName, Sequence: 9, Duplicate: true}, "alert in a CloudEvent")
	testkit.Equal(t, d.left(), 301, "stored messages")
	testkit.Equal(t, d.counts.Get("stored anyone"), 301, "counted events")
	testkit.Equal(t, d.counts.Get("refused anyone"), 0, "refused requests")
}

// TestGroupWithoutIdentity sends alerts without a start. A key of the request makes a repeated one a duplicate.
func TestGroupWithoutIdentity(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	body := groupOf(alertOf(1, 0), `{"labels":{"alertname":"Disk"}}`)
	key := []string{"Idempotency-Key", "k"}
	testkit.Equal(t, d.post("/v1/alertmanager/a", body).group(t).Events[1].ID, streamName+":2", "ID without a key")
	testkit.Equal(t, d.post("/v1/alertmanager/a", body, key...).group(t).Events[1].ID, "a/k/1", "ID with a key")
	testkit.Equal(t, d.post("/v1/alertmanager/a", body, key...).group(t).Duplicates, 2, "duplicates of a repeated request")
	testkit.Equal(t, d.left(), 3, "stored messages")
}

// TestTruncatedGroup sends groups of which Alertmanager has left out alerts, because of max_alerts. Nobody else learns of these alerts.
func TestTruncatedGroup(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	for number, left := range []string{"0", "40", `"many"`, "-1"} {
		body := strings.Replace(groupOf(alertOf(number, 0)), `"truncatedAlerts":0`, `"truncatedAlerts":`+left, 1)
		testkit.Equal(t, d.post("/v1/alertmanager/team.alerts", body).group(t).Alerts, 1, "alerts that are stored of a group without %s", left)
	}
	d.log.WantCount(t, 1, `"Alertmanager left out the alerts above max_alerts of its webhook" client=anyone alerts=40 category=team.alerts`)
	d.log.WantCount(t, 1, "Alertmanager left out the alerts")
}

// TestStreamedGroup sends groups that are too large to wait for what stands behind their alerts.
func TestStreamedGroup(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	alerts := alertsOf(100, 30_000)
	got := d.post("/v1/alertmanager/a", groupOf(alerts...)).group(t)
	testkit.Equal(t, got.Alerts, 100, "alerts of the answer")
	testkit.Equal(t, d.event(got.Events[99].Sequence).Source, "team", "source")

	before := strings.Replace(groupOf(alerts...), `{"receiver"`, `{"externalURL":"http://first","receiver"`, 1)
	got = d.post("/v1/alertmanager/b", before).group(t)
	testkit.Equal(t, d.event(got.Events[99].Sequence).Source, "http://first", "source that stands before the alerts")

	broken := d.post("/v1/alertmanager/c", groupOf(alerts...)[:2<<20])
	testkit.Equal(t, broken.status, http.StatusBadRequest, "status of half a body: %s", broken.body)
	if said := broken.receipt(t); said.Reason != "bad_json" || !strings.Contains(said.Detail, "stored alerts: ") {
		t.Errorf("half a body: got %q, want what is stored", said.Detail)
	}
	small := d.left()
	for _, half := range []string{groupOf(alerts[:20]...)[:500_000], before[:500_000]} {
		testkit.Equal(t, d.post("/v1/alertmanager/d", half).status, http.StatusBadRequest, "status of half a small body")
	}
	testkit.Equal(t, d.left(), small, "stored messages of half a small body")
	testkit.Equal(t, d.post("/v1/alertmanager/c", groupOf(alerts...)).group(t).Alerts, 100, "alerts of the whole body")
	testkit.Equal(t, d.left(), 300, "stored messages")
}

// TestRefusedAlerts sends groups with alerts that no worker could deliver. The others are stored.
func TestRefusedAlerts(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	for i, test := range []struct {
		name   string
		alerts []string
		status int
		says   string
		stored int
	}{
		{"a bad one", []string{alertOf(1, 0), `{"labels":{"alertname":"x"},"startsAt":"noon"}`, alertOf(2, 0), `{}`}, 422, "2 of 4 alerts are refused; alerts[1]: startsAt must be", 2},
		{"a large one", []string{alertOf(1, 0), alertOf(3, 64<<10), alertOf(2, 0)}, 413, "1 of 3 alerts are refused; alerts[1]: the body has", 2},
		{"one that is too large to skip", []string{alertOf(1, 0), alertOf(3, 4*64<<10), alertOf(2, 0)}, 413, "larger than 262144 bytes", 1},
		{"not UTF-8", []string{"{\"labels\":{\"alertname\":\"\xff\"}}", alertOf(2, 0)}, 400, "alerts[0]: the body is not valid UTF-8", 1},
		{"nothing but bad ones", []string{"{}", "{}"}, 422, "2 of 2 alerts are refused", 0},
	} {
		before := d.left()
		got := d.post("/v1/alertmanager/"+string(rune('a'+i)), groupOf(test.alerts...))
		testkit.Equal(t, got.status, test.status, "status of %s: %s", test.name, got.body)
		detail := got.receipt(t).Detail
		if !strings.Contains(detail, test.says) || test.stored > 0 && !strings.HasSuffix(detail, fmt.Sprintf("; stored alerts: %d", test.stored)) {
			t.Errorf("%s: got %q, want %q", test.name, detail, test.says)
		}
		testkit.Equal(t, d.left()-before, test.stored, "stored messages of %s", test.name)
	}
	many := d.post("/v1/alertmanager/many", groupOf(strings.Repeat("{},", 20_000)+"{}"))
	testkit.Equal(t, many.status, http.StatusRequestEntityTooLarge, "status of too many alerts: %s", many.body)
	testkit.Equal(t, d.counts.Get("refused anyone"), 6, "refused requests")
	d.log.WantCount(t, 1, "refused requests of a client") // one a minute
	d.log.WantCount(t, 1, "alerts[1]: startsAt must be")
}

// TestGroupInAnOutage loses NATS in the middle of a group. The client is asked to repeat it, and nothing is stored twice.
func TestGroupInAnOutage(t *testing.T) {
	t.Parallel()
	refuse := new(refusing)
	d := open(t, func(o *ingest.Options) { refuse.Publisher, o.Publisher = o.Publisher, refuse })
	body := groupOf(alertsOf(300, 800)...)
	refuse.body = `"f250"`
	got := d.post("/v1/alertmanager/a", body)
	testkit.Equal(t, got.status, http.StatusServiceUnavailable, "status of %s", got.body)
	testkit.Equal(t, got.header.Get("Retry-After"), "2", "Retry-After")
	testkit.Contains(t, "answer", got.body, "stored alerts: 250")
	testkit.Equal(t, d.counts.Get("refused anyone"), 0, "refused requests")
	testkit.Equal(t, d.counts.Get("unstored anyone"), 1, "requests that NATS did not store")
	refuse.body = ""
	testkit.Equal(t, d.post("/v1/alertmanager/a", body).group(t).Duplicates, 250, "duplicates of the repeated group")
	testkit.Equal(t, d.left(), 300, "stored messages")
}

// TestRateOfGroups owes what a group has more of than the rate allows.
func TestRateOfGroups(t *testing.T) {
	t.Parallel()
	d := open(t, func(o *ingest.Options) { o.Rate, o.Burst = 1.0/3600, 10 })
	testkit.Equal(t, d.post("/v1/alertmanager/a", groupOf(alertsOf(25, 0)...)).group(t).Alerts, 25, "alerts of a group above the rate")
	got := d.post("/v1/alertmanager/a", groupOf(alertOf(26, 0)))
	testkit.Equal(t, got.status, http.StatusTooManyRequests, "status of the next group")
	testkit.Equal(t, got.header.Get("Retry-After"), itoa(16*3600), "Retry-After")
	testkit.Equal(t, d.counts.Get("limited anyone"), 1, "requests above the rate")
}
