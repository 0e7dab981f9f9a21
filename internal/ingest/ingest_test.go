package ingest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const streamName = "NOTIFICATIONS"

// door is a running server with a NATS server and the stream of events.
type door struct {
	t      testing.TB
	nats   *servertest.NATS
	js     jetstream.JetStream
	server *ingest.Server
	counts *ingest.Counts
	log    *testkit.Log
	url    string
	client *http.Client
}

func open(t testing.TB, change func(o *ingest.Options), natsOptions ...func(*server.Options)) *door {
	t.Helper()
	n := servertest.StartNATS(t, natsOptions...)
	conn := servertest.Connect(t, n.URL)
	d := &door{t: t, nats: n, counts: new(ingest.Counts), log: testkit.NewLog(t), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	d.js = testkit.Must(jetstream.New(conn, jetstream.WithPublishAsyncTimeout(5*time.Second)))(t)
	testkit.Must(d.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"notify", "notify.>"}, Retention: jetstream.WorkQueuePolicy, MaxMsgs: 1000, Discard: jetstream.DiscardNew,
	}))(t)
	o := ingest.Options{
		Addr: "127.0.0.1:0", Subject: "notify", MaxBytes: 64 << 10, MaxGroupBytes: 4 << 20, Publisher: d.js, Logger: d.log.Logger(), Metrics: d.counts, Connections: d.counts,
		Available: func() error {
			if !conn.IsConnected() {
				return errors.New("nats is not connected")
			}
			return nil
		},
	}
	if change != nil {
		change(&o)
	}
	s := testkit.Must(ingest.Listen(t.Context(), o))(t)
	d.server, d.url = s, s.URL()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- s.Serve() }()
	go func() { s.Watch(ctx); ended <- nil }()
	t.Cleanup(func() {
		cancel()
		d.client.CloseIdleConnections()
		stopping, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		_ = s.Shutdown(stopping) // fails where it cuts off slow clients
		testkit.NoError(t, <-ended)
		testkit.NoError(t, <-ended)
	})
	return d
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

// receipt is the body of the answer to an event.
type receipt struct {
	ID, Stream, Problem, Detail, Reason string
	Sequence                            uint64
	Duplicate                           bool
}

func (a answer) receipt(t testing.TB) receipt {
	t.Helper()
	var r receipt
	testkit.NoError(t, json.Unmarshal([]byte(a.body), &r))
	return r
}

// send makes a request. The headers are pairs of a name and a value.
func (d *door) send(method, path, body string, headers ...string) answer {
	d.t.Helper()
	request := testkit.Must(http.NewRequest(method, d.url+path, strings.NewReader(body)))(d.t)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	request.Host = request.Header.Get("Host")
	response, err := d.client.Do(request)
	testkit.NoError(d.t, err)
	defer func() { _ = response.Body.Close() }()
	text := testkit.Must(io.ReadAll(response.Body))(d.t)
	return answer{response.StatusCode, response.Header, string(text)}
}

func (d *door) post(path, body string, headers ...string) answer {
	d.t.Helper()
	return d.send(http.MethodPost, path, body, headers...)
}

func (d *door) stored(sequence uint64) *jetstream.RawStreamMsg {
	d.t.Helper()
	stream := testkit.Must(d.js.Stream(d.t.Context(), streamName))(d.t)
	return testkit.Must(stream.GetMsg(d.t.Context(), sequence))(d.t)
}

func (d *door) left() int {
	d.t.Helper()
	return int(testkit.Must(d.js.Stream(d.t.Context(), streamName))(d.t).CachedInfo().State.Msgs)
}

const structured = `{"specversion":"1.0","id":"7","source":"/shop","type":"t","data":{"title":"paid"}}`

// TestIdentity stores each event twice, on the subject of its path. The second one is a duplicate unless the event has no ID.
func TestIdentity(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	for _, test := range []struct {
		name, path, body string
		headers          []string
		subject, id      string // id "": the place in the stream
	}{
		{"key", "/v1/events/payments", `{"title":"x","id":"body"}`, []string{"Idempotency-Key", "k-1"}, "notify.payments", "payments/k-1"},
		{"upper case", "/v1/events/Payments.EU", `{"title":"x"}`, []string{"Idempotency-Key", "k-1"}, "notify.payments.eu", "payments.eu/k-1"},
		{"category of the body", "/v1/events/payments", `{"title":"x","category":"security","id":"own"}`, nil, "notify.payments", "payments/own"},
		{"structured", "/v1/events/shop", structured, []string{"Content-Type", "application/cloudevents+json; charset=utf-8"}, "notify.shop", "shop//shop/7"},
		{"structured without its type", "/v1/events/shop.plain", structured, nil, "notify.shop.plain", "shop.plain//shop/7"},
		{"binary", "/v1/events/shop.binary", `{"title":"paid"}`, []string{"Ce-Specversion", "1.0", "Ce-Id", "7", "Ce-Source", "/shop", "Ce-Type", "t", "Content-Type", "application/json"}, "notify.shop.binary", "shop.binary//shop/7"},
		{"body", "/v1/events/payments", `{"title":"x","id":"order-4711"}`, []string{"Content-Type", "application/x-www-form-urlencoded"}, "notify.payments", "payments/order-4711"},
		{"long key", "/v1/events/payments", "text", []string{"Idempotency-Key", strings.Repeat("k", 100)}, "notify.payments", "payments/sha256:*"},
		{"text", "/v1/events/payments", "disk full", []string{"Content-Type", "text/plain"}, "notify.payments", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			first, second := d.post(test.path, test.body, test.headers...), d.post(test.path, test.body, test.headers...)
			testkit.Equal(t, first.status, http.StatusAccepted, "status of %s", first.body)
			got, again := first.receipt(t), second.receipt(t)
			m := d.stored(got.Sequence)
			testkit.Equal(t, m.Subject, test.subject, "subject")
			testkit.Equal(t, string(m.Data), test.body, "body")
			if test.id == "" {
				testkit.Equal(t, got.ID, streamName+":"+itoa(got.Sequence), "ID")
				testkit.Equal(t, again.Duplicate, false, "an event without an ID is a duplicate")
				testkit.Equal(t, m.Header.Get(nats.MsgIdHdr), "", "Nats-Msg-Id")
				return
			}
			want, isHashed := strings.CutSuffix(test.id, "*")
			if id := m.Header.Get(nats.MsgIdHdr); !strings.HasPrefix(id, want) || !isHashed && id != want {
				t.Errorf("Nats-Msg-Id: got %q, want %q", id, test.id)
			}
			testkit.Equal(t, got.Duplicate, false, "the first is a duplicate")
			testkit.EqualDeeply(t, again, receipt{ID: got.ID, Stream: streamName, Sequence: got.Sequence, Duplicate: true}, "the second")
		})
	}
	testkit.Equal(t, d.counts.Get("duplicate anyone"), 8, "duplicates")
}

// TestHeaders sends hostile headers. NATS gets the chosen headers alone.
func TestHeaders(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	hostile := []string{
		"Nats-Msg-Id", "forged", "Nats-Rollup", "all", "Nats-Schedule", "@at 2030-01-01T00:00:00Z", "Nats-Expected-Stream", "OTHER", "Notifier-Id", "forged",
		"Notifier-Origin", "forged", "X-Other", "x", "Cookie", "secret=1",
	}
	trace := []string{"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate", "a=1", "Tracestate", "b=2"}
	for _, test := range []struct {
		name    string
		headers []string
		body    string
		want    nats.Header
	}{
		{"none of them", nil, "text", nats.Header{}},
		{"trace", trace, "text", nats.Header{"traceparent": {trace[1]}, "tracestate": {"a=1,b=2"}}},
		{"no trace", []string{"Traceparent", "x\ty", "Tracestate", "a=1"}, "text", nats.Header{}},
		{
			"binary", []string{"Ce-Specversion", "1.0", "Ce-Id", "7", "Ce-Source", "/s", "Ce-Type", "t", "Ce-Extension", "e", "Content-Type", "text/plain"}, "text",
			nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"7"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-extension": {"e"}, "Content-Type": {"text/plain"}, "Nats-Msg-Id": {"c//s/7"}},
		},
		{
			"binary with curl's content type",
			[]string{"Ce-Specversion", "1.0", "Ce-Id", "8", "Ce-Source", "/s", "Ce-Type", "t", "Content-Type", "application/x-www-form-urlencoded"}, `{"title":"paid"}`,
			nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"8"}, "ce-source": {"/s"}, "ce-type": {"t"}, "Nats-Msg-Id": {"c//s/8"}},
		},
		{
			"structured", []string{"Content-Type", "application/cloudevents+json", "Ce-Id", "other", "Ce-Source", "other"}, structured,
			nats.Header{"Content-Type": {"application/cloudevents+json"}, "Nats-Msg-Id": {"c//shop/7"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := d.post("/v1/events/c", test.body, append(test.headers, hostile...)...)
			testkit.Equal(t, got.status, http.StatusAccepted, "status of %s", got.body)
			header := d.stored(got.receipt(t).Sequence).Header
			if len(header) == 0 {
				header = nats.Header{}
			}
			testkit.EqualDeeply(t, header, test.want, "headers")
		})
	}
}

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

// TestRefused sends bad requests. The server stores nothing, and answers in the form of RFC 9457.
func TestRefused(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	large := strings.Repeat("a", 64<<10+1)
	for _, test := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		reason, says             string
	}{
		{"path", "POST", "/v1/other/a", "x", nil, 404, "", "/v1/events/{category}"},
		{"no category", "POST", "/v1/events/", "x", nil, 404, "", ""},
		{"levels as a path", "POST", "/v1/events/a/b", "x", nil, 404, "", ""},
		{"method", "PUT", "/v1/events/a", "x", nil, 405, "", "POST"},
		{"method of the description", "POST", "/openapi.json", "x", nil, 405, "", "GET"},
		{"category", "POST", "/v1/events/a..b", "x", nil, 400, "bad_category", "empty level"},
		{"wildcard", "POST", "/v1/events/%3E", "x", nil, 400, "bad_category", ""},
		{"browser", "POST", "/v1/events/a", "x", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://example.com"}, 403, "", "browsers"},
		{"browser with a name of this host", "POST", "/v1/events/a", "x", []string{"Host", "example.com:8082", "Origin", "http://example.com:8082"}, 403, "", "localhost"},
		{"type", "POST", "/v1/events/a", "x", []string{"Content-Type", "image/png"}, 415, "", "Content-Type"},
		{"format of CloudEvents", "POST", "/v1/events/a", "x", []string{"Content-Type", "application/cloudevents+avro"}, 415, "", ""},
		{"compressed", "POST", "/v1/events/a", "x", []string{"Content-Encoding", "gzip"}, 415, "", "compressed"},
		{"empty", "POST", "/v1/events/a", "", nil, 422, "empty", ""},
		{"broken JSON", "POST", "/v1/events/a", "{", nil, 400, "bad_json", ""},
		{"not UTF-8", "POST", "/v1/events/a", "\xff", nil, 400, "bad_utf8", ""},
		{"field", "POST", "/v1/events/a", `{"title":"x","severity":"loud"}`, nil, 422, "bad_field", "severity"},
		{"large", "POST", "/v1/events/a", large, nil, 413, "too_large", "65536"},
		{"CloudEvent", "POST", "/v1/events/a", `{"specversion":"0.3","id":"1"}`, []string{"Content-Type", "application/cloudevents+json"}, 422, "bad_cloudevent", "specversion"},
		{"CloudEvent with an invalid alert", "POST", "/v1/events/a", `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"alerts":[{"labels":{"alertname":"A"}},{"labels":{}}]}}`,
			[]string{"Content-Type", "application/cloudevents+json"}, 422, "empty", "alerts[1]"},
		{"no alerts", "POST", "/v1/alertmanager/a", `{"title":"x"}`, nil, 422, "bad_field", "alerts"},
		{"alerts without content", "POST", "/v1/alertmanager/a", `{"alerts":[{},{}]}`, nil, 422, "empty", "2 of 2"},
		{"batch of alerts", "POST", "/v1/alertmanager/a", `[]`, []string{"Content-Type", "application/cloudevents-batch+json"}, 422, "bad_field", "no alerts"},
		{"text of alerts", "POST", "/v1/alertmanager/a", `"alerts"`, nil, 422, "bad_field", "no alerts"},
		{"alerts that are no array", "POST", "/v1/alertmanager/a", `{"alerts":{}}`, nil, 422, "bad_field", "no alerts"},
		{"alerts that are no objects", "POST", "/v1/alertmanager/a", `{"alerts":["x"]}`, nil, 422, "bad_field", "alerts[0]: an alert must be an object"},
		{"no alert", "POST", "/v1/alertmanager/a", `{"alerts":[]}`, nil, 422, "empty", "empty array"},
		{"broken alerts", "POST", "/v1/alertmanager/a", `{"alerts":[{"labels":{"alertname":"x"}},{]}`, nil, 400, "bad_json", "JSON"},
		{"half of the alerts", "POST", "/v1/alertmanager/a", `{"alerts":[{"labels":{"alertname":"x"}}`, nil, 400, "bad_json", "JSON"},
		{"something behind the alerts", "POST", "/v1/alertmanager/a", `{"alerts":[{"labels":{"alertname":"x"}}]}{`, nil, 400, "bad_json", "followed by"},
		{"receiver", "POST", "/v1/alertmanager/a", `{"receiver":1,"alerts":[{"labels":{"alertname":"x"}}]}`, nil, 422, "bad_field", "receiver"},
		{"compressed alerts", "POST", "/v1/alertmanager/a", "x", []string{"Content-Encoding", "gzip"}, 415, "", "compressed"},
		{"large group", "POST", "/v1/alertmanager/a", strings.Repeat(" ", 4<<20+1), nil, 413, "too_large", "4194304"},
		{"headers", "POST", "/v1/events/a", "x", []string{"X-Long", strings.Repeat("a", 17_000)}, 431, "", "16384"},
		{"batch that is none", "POST", "/v1/events/a", `null`, []string{"Content-Type", "application/cloudevents-batch+json"}, 400, "bad_json", "array"},
		{"large batch", "POST", "/v1/events/a", "[" + strings.Repeat("{},", 1000) + "{}]", []string{"Content-Type", "application/cloudevents-batch+json"}, 413, "", "1001 events"},
		{"one of a batch", "POST", "/v1/events/a", "[" + structured + `,{"id":"1"}]`, []string{"Content-Type", "application/cloudevents-batch+json"}, 422, "bad_cloudevent", "event 1 of the batch"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := d.send(test.method, test.path, test.body, test.headers...)
			testkit.Equal(t, got.status, test.status, "status of %s", got.body)
			testkit.Equal(t, got.header.Get("Content-Type"), "application/problem+json", "content type")
			said := got.receipt(t)
			testkit.Equal(t, said.Reason, test.reason, "reason")
			testkit.Check(t, strings.Contains(said.Detail, test.says) && said.Detail != "", "detail: got %q, want %q in it", said.Detail, test.says)
			testkit.Equal(t, got.header.Get("Allow") != "", test.status == 405, "methods are named")
		})
	}
	testkit.Equal(t, d.left(), 0, "stored messages")
}

// TestBodies sends bodies without a length.
func TestBodies(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	for body, want := range map[string]int{strings.Repeat("a", 64<<10): 202, strings.Repeat("a", 64<<10+1): 413} {
		response, err := d.client.Post(d.url+"/v1/events/a", "text/plain", io.MultiReader(strings.NewReader(body)))
		testkit.NoError(t, err)
		_ = response.Body.Close()
		testkit.Equal(t, response.StatusCode, want, "status of %d bytes in chunks", len(body))
	}
}

// TestBatch fails to publish one event of a batch. The events behind it are not published: each of them would wait too. The answer names the events
// that are not stored. The client can send the whole batch again.
func TestBatch(t *testing.T) {
	t.Parallel()
	refuse := new(refusing)
	d := open(t, func(o *ingest.Options) { refuse.Publisher, o.Publisher = o.Publisher, refuse })
	batch := func(n int) string {
		var events []string
		for i := range n {
			events = append(events, strings.Replace(structured, `"7"`, `"`+itoa(uint64(i))+`"`, 1))
		}
		return "[" + strings.Join(events, ",") + "]"
	}
	const kind = "application/cloudevents-batch+json"
	testkit.Equal(t, d.post("/v1/events/a", "[]", "Content-Type", kind).body, "[]", "answer to an empty batch")
	testkit.Equal(t, d.post("/v1/events/a", batch(5), "Content-Type", kind, "Idempotency-Key", "k").status, 202, "status with a key")
	testkit.Equal(t, d.stored(5).Header.Get(nats.MsgIdHdr), "a/k/4", "ID of the last event")

	refuse.id = "/3"
	partly := d.post("/v1/events/b", batch(5), "Content-Type", kind)
	testkit.Equal(t, partly.status, 503, "status of %s", partly.body)
	testkit.Equal(t, partly.header.Get("Retry-After"), "2", "Retry-After")
	var problem struct{ Events []receipt }
	testkit.NoError(t, json.Unmarshal([]byte(partly.body), &problem))
	testkit.Equal(t, len(problem.Events), 5, "events of the answer")
	for i, event := range problem.Events {
		testkit.Equal(t, event.Problem == "", i < 3, "event %d is stored", i)
	}
	refuse.id = ""
	var receipts []receipt
	testkit.NoError(t, json.Unmarshal([]byte(d.post("/v1/events/b", batch(5), "Content-Type", kind).body), &receipts))
	testkit.Equal(t, len(receipts), 5, "events of the repeated batch")
	for i, event := range receipts {
		testkit.Equal(t, event.Duplicate, i < 3, "event %d is a duplicate", i)
	}
	testkit.Equal(t, d.left(), 10, "stored messages")
}

// refusing refuses messages whose ID ends with a text, or whose body has a text.
type refusing struct {
	ingest.Publisher
	id, body string
}

func (r *refusing) PublishMsgAsync(m *nats.Msg, options ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if r.id != "" && strings.HasSuffix(m.Header.Get(nats.MsgIdHdr), r.id) || r.body != "" && bytes.Contains(m.Data, []byte(r.body)) {
		return nil, jetstream.ErrTooManyStalledMsgs
	}
	return r.Publisher.PublishMsgAsync(m, options...)
}

// TestUnavailable fills the stream, and then kills NATS. The answers have Retry-After. No event with the answer 202 is lost.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	d := open(t, nil)
	d.client.Timeout = 30 * time.Second
	fill := func() (accepted int, last answer) {
		for {
			if last = d.post("/v1/events/a", "text"); last.status != 202 {
				return accepted, last
			}
			accepted++
		}
	}
	accepted, last := fill()
	testkit.Equal(t, accepted, 1000, "events until the stream is full")
	testkit.Equal(t, last.status, 503, "status of %s", last.body)
	testkit.Equal(t, last.header.Get("Retry-After"), "10", "Retry-After of a full stream")
	d.nats.Kill()
	testkit.Eventually(t, "an answer that NATS is unavailable", func() bool {
		last = d.post("/v1/events/a", "text")
		return strings.Contains(last.body, "unavailable")
	})
	testkit.Equal(t, last.status, 503, "status of %s", last.body)
	testkit.Equal(t, last.header.Get("Retry-After"), "2", "Retry-After")
	d.nats.Restart()
	servertest.AwaitAnswer(t, d.js)
	testkit.Equal(t, d.left(), accepted, "events after the restart")
	testkit.NoError(t, testkit.Must(d.js.Stream(t.Context(), streamName))(t).Purge(t.Context()))
	testkit.Eventually(t, "an event that is stored again", func() bool { return d.post("/v1/events/a", "text").status == 202 })
	d.log.WantCount(t, 1, "cannot store events")
	d.log.WantCount(t, 1, "storing events again")
}
