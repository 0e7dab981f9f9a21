// Package clients_test has real clients send events to `notifier ingest`, and checks all answers with a validator of OpenAPI. The package is
// a module of its own, so the notifier does not depend on these libraries.
//
// The pages of docs are outside of this module, and the cache of test results does not see them: run the tests with -count=1.
package clients_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/prometheus/alertmanager/alert"
	"github.com/prometheus/alertmanager/notify"
	"github.com/prometheus/alertmanager/notify/webhook"
	"github.com/prometheus/alertmanager/template"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// uncounted ignores metrics.
type uncounted struct{}

func (uncounted) Request(int)             {}
func (uncounted) Client(string)           {}
func (uncounted) Count(string, string)    {}
func (uncounted) Bytes(int)               {}
func (uncounted) Published(time.Duration) {}
func (uncounted) Connections(int)         {}
func (uncounted) Evicted()                {}

// door is a running server, its stream, and a token.
type door struct {
	t     *testing.T
	js    jetstream.JetStream
	url   string
	token string
}

// sample returns the group of an expression that is found in a page or a sample file.
func sample(t *testing.T, file, expression string) string {
	t.Helper()
	found := regexp.MustCompile(expression).FindSubmatch(testkit.Must(os.ReadFile("../../" + file))(t))
	testkit.Require(t, found != nil, "%s has nothing like %s", file, expression)
	return string(found[1])
}

const producers = "docs/producers.md"

// open starts a server with a token for a pattern of categories.
func open(t *testing.T, pattern string) *door {
	t.Helper()
	d := &door{t: t, js: servertest.JetStream(t, servertest.StartNATS(t).URL)}
	testkit.Must(d.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NOTIFICATIONS", Subjects: []string{"notify.>"}, MaxMsgs: 50, Discard: jetstream.DiscardNew}))(t)
	token, line, err := ingest.NewToken("client", pattern)
	testkit.NoError(t, err)
	d.token = token
	file := filepath.Join(t.TempDir(), "tokens")
	testkit.NoError(t, os.WriteFile(file, []byte(line+"\n"), 0o600))
	server := testkit.Must(ingest.Listen(t.Context(), ingest.Options{
		Addr: "127.0.0.1:0", Subject: "notify", MaxBytes: 256 << 10, MaxGroupBytes: 16 << 20, Publisher: d.js, Available: func() error { return nil }, TokensFile: file,
		Rate: 1.0 / 3600, Burst: 100, Logger: slog.New(slog.DiscardHandler), Metrics: uncounted{}, Connections: uncounted{},
	}))(t)
	d.url = server.URL()
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		testkit.NoError(t, server.Shutdown(ctx))
		testkit.NoError(t, <-served)
	})
	return d
}

// events decodes the messages of the stream as a worker does.
func (d *door) events() (events []event.Event) {
	d.t.Helper()
	stream := testkit.Must(d.js.Stream(d.t.Context(), "NOTIFICATIONS"))(d.t)
	decoder := event.Decoder{Prefix: "notify"}
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		stored := testkit.Must(stream.GetMsg(d.t.Context(), sequence))(d.t)
		m := event.Message{Subject: stored.Subject, Header: stored.Header, Data: stored.Data, Stream: "NOTIFICATIONS", Sequence: sequence}
		parts, bad := decoder.Parts(m)
		if bad != nil {
			d.t.Error(bad)
		}
		if parts == nil {
			events = append(events, testkit.Must(decoder.Decode(m))(d.t))
		}
		for _, part := range parts {
			m.Data, m.Room = part.Data, &part.Room
			events = append(events, testkit.Must(decoder.Decode(m))(d.t))
		}
	}
	return events
}

// want compares the events with lines of category, status, severity, title and text.
func (d *door) want(lines ...string) {
	d.t.Helper()
	var got []string
	for _, e := range d.events() {
		got = append(got, strings.Join([]string{e.Category, string(e.Status), string(e.Severity), e.Title, e.Text}, "|"))
	}
	testkit.EqualSlices(d.t, got, lines, "events")
}

// alertmanager starts a server with the sample token for Alertmanager, and the webhook notifier of Alertmanager with the configuration of
// docs/producers.md.
func alertmanager(t *testing.T) (*door, *webhook.Notifier) {
	t.Helper()
	d := open(t, sample(t, producers, `(?m)^alertmanager +sha256:\S+ (\S+)$`))
	secret := filepath.Join(t.TempDir(), "token")
	testkit.NoError(t, os.WriteFile(secret, []byte(d.token+"\n"), 0o600))
	text := strings.NewReplacer("http://127.0.0.1:8082", d.url, "/etc/alertmanager/notifier-token", secret).
		Replace(sample(t, producers, "(?s)```yaml\n(route:.*?)```"))
	var loaded struct {
		Receivers []struct {
			Webhooks []*webhook.WebhookConfig `yaml:"webhook_configs"`
		}
	}
	testkit.NoError(t, yaml.Unmarshal([]byte(text), &loaded))
	templates := testkit.Must(template.FromGlobs(nil))(t)
	templates.ExternalURL = testkit.Must(url.Parse("http://127.0.0.1:9093"))(t)
	return d, testkit.Must(webhook.New(loaded.Receivers[0].Webhooks[0], templates, slog.New(slog.DiscardHandler)))(t)
}

// TestAlertmanager sends alerts with Alertmanager's code. A repeated notification is a duplicate, and a resolved alert is not.
func TestAlertmanager(t *testing.T) {
	d, sender := alertmanager(t)
	of := func(name string, ends time.Time) *alert.Alert {
		return &alert.Alert{Alert: model.Alert{
			Labels: model.LabelSet{"alertname": model.LabelValue(name), "severity": "critical"}, Annotations: model.LabelSet{"summary": model.LabelValue(name + " fails")},
			StartsAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), EndsAt: ends,
		}}
	}
	ctx := notify.WithGroupKey(notify.WithReceiverName(notify.WithGroupLabels(t.Context(), model.LabelSet{}), "notifier"), "group")
	for _, alerts := range [][]*alert.Alert{
		{of("Disk", time.Time{})}, {of("Disk", time.Time{})},
		{of("Disk", time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC))},
		{of("Disk", time.Time{}), of("CPU", time.Time{})}, {of("Disk", time.Time{}), of("CPU", time.Time{})}, // the first alert is known
	} {
		retry, err := sender.Notify(ctx, alerts...)
		testkit.NoError(t, err)
		testkit.Equal(t, retry, false, "Alertmanager repeats what was taken")
	}
	for _, e := range d.events() {
		testkit.Equal(t, e.Source, "http://127.0.0.1:9093", "source of %s", e.Title)
	}
	d.want("alerts|firing|critical|Disk fails|", "alerts|resolved|critical|Disk fails|", "alerts|firing|critical|CPU fails|")
	testkit.NoError(t, d.js.DeleteStream(t.Context(), "NOTIFICATIONS"))
	retry, err := sender.Notify(ctx, of("Lost", time.Time{}))
	testkit.Check(t, err != nil && retry, "Alertmanager repeats %t after %v, and the alert is not stored", retry, err)
}

// TestLargeGroup sends 300 alerts at once with Alertmanager's code. All of them are stored, and Alertmanager sends none of them again.
func TestLargeGroup(t *testing.T) {
	d, sender := alertmanager(t)
	testkit.Must(d.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "NOTIFICATIONS", Subjects: []string{"notify.>"}, MaxMsgs: 1000, Discard: jetstream.DiscardNew}))(t)
	alerts := make([]*alert.Alert, 300)
	for i := range alerts {
		alerts[i] = &alert.Alert{Alert: model.Alert{
			Labels:      model.LabelSet{"alertname": "KubePodCrashLooping", "pod": model.LabelValue(strconv.Itoa(i))},
			Annotations: model.LabelSet{"summary": model.LabelValue(strings.Repeat("a pod crashes ", 70)), "runbook_url": "https://runbooks.example.com/crash"},
			StartsAt:    time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), GeneratorURL: "https://prometheus.example.com/graph",
		}}
	}
	ctx := notify.WithGroupKey(notify.WithReceiverName(notify.WithGroupLabels(t.Context(), model.LabelSet{}), "notifier"), "group")
	retry, err := sender.Notify(ctx, alerts...)
	testkit.NoError(t, err)
	testkit.Equal(t, retry, false, "Alertmanager repeats what was taken")
	events := d.events()
	testkit.Equal(t, len(events), 300, "events")
	testkit.EqualSlices(t, events[299].Links, []event.Field{
		{Name: "Runbook", Value: "https://runbooks.example.com/crash"}, {Name: "Source", Value: "https://prometheus.example.com/graph"},
	}, "links")
}

// TestGrafana sends the sample body of Grafana's documentation twice.
func TestGrafana(t *testing.T) {
	d := open(t, "open.>")
	body := testkit.Must(os.ReadFile("../testdata/grafana.json"))(t)
	for range 2 {
		request := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/v1/alertmanager/open.grafana", strings.NewReader(string(body))))(t)
		request.Header.Set("Authorization", "Bearer "+d.token)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		testkit.NoError(t, err)
		_ = response.Body.Close()
		testkit.Equal(t, response.StatusCode, http.StatusAccepted, "status")
	}
	d.want("open.grafana|firing|critical|payments fails for 7.3 % of the requests|More than 5 % of the requests to payments fail.",
		"open.grafana|firing|critical|basket fails for 5.6 % of the requests|More than 5 % of the requests to basket fail.")
}

// TestTokensOfSamples wants the sample files to make the same token for Alertmanager as docs/producers.md, whose URL it fits.
func TestTokensOfSamples(t *testing.T) {
	want := sample(t, producers, `(?m)^alertmanager +sha256:\S+ (\S+)$`)
	for _, file := range []string{"configs/helm/values.yaml", "configs/kubernetes/ingest-secret.yaml"} {
		testkit.Equal(t, sample(t, file, `notifier ingest token alertmanager (\S+) >> tokens`), want, "pattern in %s", file)
	}
}

// TestCloudEvents sends each event twice with the CloudEvents SDK, in both modes, with the token and the target of docs/producers.md. Each event
// is stored once.
func TestCloudEvents(t *testing.T) {
	d := open(t, sample(t, producers, `notifier ingest token shop '(\S+)'`))
	client := testkit.Must(cloudevents.NewClientHTTP(
		cloudevents.WithTarget(d.url+sample(t, producers, `WithTarget\("http://127.0.0.1:8082(\S+)"\)`)), cloudevents.WithHeader("Authorization", "Bearer "+d.token),
	))(t)
	for number, mode := range []func(context.Context) context.Context{cloudevents.WithEncodingBinary, cloudevents.WithEncodingStructured} {
		sent := cloudevents.NewEvent()
		sent.SetID([]string{"über 1", "2"}[number])
		sent.SetSource("/shop")
		sent.SetType("declined")
		testkit.NoError(t, sent.SetData(cloudevents.ApplicationJSON, map[string]string{"title": "card declined", "severity": "error"}))
		for range 2 {
			result := client.Send(mode(t.Context()), sent)
			testkit.Check(t, cloudevents.IsACK(result), "%v", result)
		}
	}
	d.want("shop.deploys||error|card declined|", "shop.deploys||error|card declined|")
	for i, id := range []string{"shop.deploys//shop/über 1", "shop.deploys//shop/2"} {
		testkit.Equal(t, d.events()[i].ID, id, "ID")
	}
}

// answers has a request for each status of a server without faults.
var answers = []struct {
	method, path, contentType, body string
	token                           bool
	status                          int
}{
	{"GET", "/openapi.json", "", "", false, 200},
	{"POST", "/v1/events/open.a", "application/json", `{"title":"x","severity":"error","fields":{"a":"b"},"id":"1"}`, true, 202},
	{"POST", "/v1/events/open.a", "text/plain", "text", true, 202},
	{"POST", "/v1/events/open.a", "application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"text"}`, true, 202},
	{"POST", "/v1/events/open.a", "application/cloudevents-batch+json", `[{"specversion":"1.0","id":"2","source":"/s","type":"t","data":"text"}]`, true, 202},
	{"POST", "/v1/alertmanager/open.a", "application/json", `{"alerts":[{"status":"firing","labels":{"alertname":"x"}}]}`, true, 202},
	{"POST", "/v1/events/open..a", "text/plain", "text", true, 400},
	{"POST", "/v1/events/open.a", "application/json", `{`, true, 400},
	{"POST", "/v1/events/open.a", "text/plain", "text", false, 401},
	{"POST", "/v1/events/closed", "text/plain", "text", true, 403},
	{"PUT", "/v1/events/open.a", "text/plain", "text", true, 405},
	{"POST", "/v1/events/open.a", "text/plain", strings.Repeat("x", 256<<10+1), true, 413},
	{"POST", "/v1/events/open.a", "image/png", "x", true, 415},
	{"POST", "/v1/events/open.a", "application/json", `{"title":"x","severity":"loud"}`, true, 422},
}

// reader checks requests and answers against the OpenAPI description.
type reader struct {
	*door
	described validator.Validator
	seen      map[int]bool
}

// check sends a request and returns the status. The description has to include each answer and each accepted request.
func (r *reader) check(method, path, contentType, body string, token bool) int {
	r.t.Helper()
	request := testkit.Must(http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body)))(r.t)
	request.Header.Set("Content-Type", contentType)
	if token {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	response, err := http.DefaultClient.Do(request)
	testkit.NoError(r.t, err)
	defer func() { _ = response.Body.Close() }()
	r.seen[response.StatusCode] = true
	if response.StatusCode == http.StatusMethodNotAllowed || response.StatusCode == http.StatusNotFound {
		return response.StatusCode // the description has no operation for the request
	}
	if response.StatusCode == http.StatusAccepted {
		request.Body = io.NopCloser(strings.NewReader(body))
		if valid, problems := r.described.ValidateHttpRequest(request); !valid {
			r.t.Errorf("%s %s is taken, and not described: %v", method, path, problems[0])
		}
	}
	request.Body = io.NopCloser(strings.NewReader(body))
	if valid, problems := r.described.ValidateHttpResponse(request, response); !valid {
		r.t.Errorf("the answer %d to %s %s is not described: %v", response.StatusCode, method, path, problems[0])
	}
	return response.StatusCode
}

// raw sends text, checks the answer as check does, and returns the status.
func (r *reader) raw(text string) int {
	r.t.Helper()
	conn := testkit.Must(net.Dial("tcp", strings.TrimPrefix(r.url, "http://")))(r.t)
	defer func() { _ = conn.Close() }()
	testkit.Must(io.WriteString(conn, text))(r.t)
	request := testkit.Must(http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+"/v1/events/open.a", nil))(r.t)
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	testkit.NoError(r.t, err)
	defer func() { _ = response.Body.Close() }()
	r.seen[response.StatusCode] = true
	if valid, problems := r.described.ValidateHttpResponse(request, response); !valid {
		r.t.Errorf("the answer %d to %.60s is not described: %v", response.StatusCode, text, problems[0])
	}
	return response.StatusCode
}

// TestAnswersConform validates the description as OpenAPI 3.1, and every answer against it.
func TestAnswersConform(t *testing.T) {
	v, errs := validator.NewValidator(testkit.Must(libopenapi.NewDocument([]byte(testkit.Text(t, "../../internal/ingest/openapi.json"))))(t))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	valid, problems := v.ValidateDocument()
	testkit.Require(t, valid, "the description is not valid: %v", problems)
	r := &reader{open(t, "open.>"), v, make(map[int]bool)}
	for _, a := range answers {
		testkit.Equal(t, r.check(a.method, a.path, a.contentType, a.body, a.token), a.status, "status of %s %s %.40s", a.method, a.path, a.body)
	}
	testkit.Equal(t, r.check("GET", "/other", "", "", false), http.StatusNotFound, "status of an unknown path")
	for last := 202; last == 202; { // until the stream is full
		last = r.check("POST", "/v1/events/open.a", "text/plain", "text", true)
	}
	const batch = "application/cloudevents-batch+json"
	testkit.Equal(t, r.check("POST", "/v1/events/open.a", batch, `[{"specversion":"1.0","id":"2","source":"/s","type":"t","data":"text"},{"specversion":"1.0","id":"3","source":"/s","type":"t"}]`, true),
		http.StatusUnprocessableEntity, "status of a batch with an empty event")
	testkit.Equal(t, r.check("POST", "/v1/events/open.a", batch, `[{"specversion":"1.0","id":"2","source":"/s","type":"t","data":"text"},{"specversion":"1.0","id":"3","source":"/s","type":"t","data":"x"}]`, true),
		http.StatusServiceUnavailable, "status of a batch of which a part is stored")
	for last := 503; last == 503; { // until the rate is used up
		last = r.check("POST", "/v1/events/open.a", "text/plain", "text", true)
	}
	for request, want := range map[string]int{
		"Expect: a miracle\r\nContent-Length: 0\r\n": 417, "X-Long: " + strings.Repeat("a", 17_000) + "\r\n": 431, "X-Longer: " + strings.Repeat("a", 50_000) + "\r\n": 431,
		"Transfer-Encoding: gzip\r\n": 501,
	} {
		testkit.Equal(t, r.raw("POST /v1/events/open.a HTTP/1.1\r\nHost: localhost\r\n"+request+"\r\n"), want, "status of %.20s", request)
	}
	testkit.Equal(t, r.raw("POST /v1/events/open.a HTTP/4.0\r\nHost: localhost\r\n\r\n"), http.StatusHTTPVersionNotSupported, "status of another version")
	var document struct {
		Paths map[string]struct {
			Post struct{ Responses map[string]any }
		}
	}
	testkit.NoError(t, json.Unmarshal([]byte(testkit.Text(t, "../../internal/ingest/openapi.json")), &document))
	for _, status := range ingest.Answered() {
		if !r.seen[status] && status != http.StatusRequestTimeout { // which takes 15 seconds
			t.Errorf("no request was answered %d", status)
		}
		_, isDescribed := document.Paths["/v1/events/{category}"].Post.Responses[strconv.Itoa(status)]
		testkit.Equal(t, isDescribed, status != http.StatusOK, "%d is described", status)
	}
}
