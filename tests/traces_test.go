package tests

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// traceparentOf returns the trace context of a producer's span. The span's ID is a digit sixteen times.
func traceparentOf(digit string) string {
	return "00-" + strings.Repeat(digit, 32) + "-" + strings.Repeat(digit, 16) + "-01"
}

// tracesOfAllEnds are the spans of the events of TestTraces.
const tracesOfAllEnds = `
process /shop/7 shop admitted sent <- 2222222222222222
  POST slack 200
  decide admitted
  settle
process group alerts split <- 3333333333333333
  process group/f1 alerts part admitted sent <- 3333333333333333
    POST slack 200
    decide admitted
    settle
  process group/f2 alerts part admitted sent <- 3333333333333333
    POST slack 200
    decide admitted
    settle
  settle
process order-1 payments admitted sent <- 1111111111111111
  POST slack 200
  decide admitted
  settle
process order-2 payments denied payments dropped
  decide denied payments
  settle
process rejected errors admitted dead <- 4444444444444444 !
  POST slack 200 rejected !
  decide admitted
  process rejected errors replay admitted sent <- 4444444444444444
    POST slack 200
    decide admitted
    settle
  settle
process wait-0 waits admitted sent
  POST slack 200
  decide admitted
  settle
process wait-1 waits denied waits slot waiting
  decide denied waits
  process wait-1 waits slot admitted sent
    POST slack 200
    decide admitted
    settle
  settle
`

// TestTraces compares the spans of events with each outcome, and of events that wait, split or are replayed.
func TestTraces(t *testing.T) {
	t.Parallel()
	d, c := newDeployment(t), newCollector(t)
	rejectedPosts(d.slack)
	d.createStream() // both of these are decided about at once
	d.publish("notify.waits", eventBody("wait-0"))
	d.publish("notify.waits", eventBody("wait-1"))
	w := d.startTraced(c.server.URL, delaying("none", "waits=1m", "LIMITS", "payments=1/30m,waits=1/3s", "LOG_LEVEL", "debug")...)
	workers := w.alone()
	workers.awaitEvents(2, "outcome", "sent") // one of them has waited

	d.publishUntil(workers, "sent", "notify.payments", eventBody("order-1"), "traceparent", traceparentOf("1"), "tracestate", "a=b")
	d.publishUntil(workers, "dropped", "notify.payments", eventBody("order-2"), "Traceparent", "00-forged-01")
	d.publishUntil(workers, "sent", "notify.shop",
		strings.Replace(cloudEvent("/shop", "7", "stock is low"), "{", `{"traceparent": "`+traceparentOf("2")+`", `, 1), "Notifier-Traceparent", traceparentOf("9"))
	d.publish("notify.alerts", alertGroup("group", "Disk"), "traceparent", traceparentOf("3"))
	d.publishUntil(workers, "dead", "notify.errors", eventBody("rejected"), "traceparent", traceparentOf("4"))
	d.slack.Respond(nil)
	run(t, d.settings(), "dlq", "replay", "--all").want(0)
	workers.awaitOutcomes(map[string]int{"sent": 7, "dropped": 1, "dead": 1})
	c.awaitTrees(tracesOfAllEnds)
	c.wantConventions()
	w.wantTraced("order-1", c.traceOf("order-1"), `notifier_event_age_seconds_bucket{`)
	w.wantTraced("order-2", c.traceOf("order-2"), `notifier_dropped_total{category="payments",level="payments"}`)
	testkit.Equal(t, fmt.Sprint(w.lines("events ended as dead letters")[0]["trace_id"]), c.traceOf("rejected"), "the trace of the dead letter's line")
	testkit.Eventually(t, "the journal knows of the trace", func() bool {
		return strings.Contains(run(t, d.settings(), "why", "order-1").all(), "trace "+c.traceOf("order-1"))
	})
	for _, secret := range []string{slacktest.DefaultToken, collectorKey, "event order-1"} {
		testkit.Equal(t, strings.Contains(c.came(), secret), false, "the spans hold %q", secret)
	}
	testkit.Equal(t, strings.Contains(w.all(), collectorKey), false, "the log holds the collector's key")
}

func (c *collector) traceOf(id string) string {
	c.t.Helper()
	for _, span := range c.named("process") {
		if attribute(span.GetAttributes(), "messaging.message.id") == id {
			return hex.EncodeToString(span.GetTraceId())
		}
	}
	c.t.Fatalf("no span of %s", id)
	return ""
}

// wantConventions checks the attributes of OpenTelemetry's conventions for messaging.
func (c *collector) wantConventions() {
	c.t.Helper()
	for _, span := range c.named("process") {
		testkit.Equal(c.t, span.GetKind(), tracepb.Span_SPAN_KIND_CONSUMER, "kind of a process span")
		for name, want := range map[string]string{
			"messaging.system": "nats", "messaging.operation.type": "process", "messaging.consumer.group.name": consumerName,
			"messaging.destination.name": "notify." + attribute(span.GetAttributes(), "notifier.category"), "notifier.stream": streamName,
		} {
			testkit.Equal(c.t, attribute(span.GetAttributes(), name), want, "%s", name)
		}
	}
}

// wantTraced wants the trace ID of an event in a line of the log, and an exemplar of a metric.
func (w *worker) wantTraced(id, trace, series string) {
	w.t.Helper()
	for _, line := range w.lines("event has ended") {
		if line["id"] == id {
			testkit.Equal(w.t, fmt.Sprint(line["trace_id"]), trace, "the trace in the line of %s", id)
		}
	}
	request := testkit.Must(http.NewRequest(http.MethodGet, "http://"+w.address+"/metrics", http.NoBody))(w.t)
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	response, err := client.Do(request)
	testkit.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	text := string(testkit.Must(io.ReadAll(response.Body))(w.t))
	found := false
	for line := range strings.Lines(text) {
		found = found || strings.HasPrefix(line, series) && strings.Contains(line, `# {trace_id="`)
	}
	testkit.Equal(w.t, found, true, "an example of %s", series)
}

// TestUnavailableCollector delivers events without a collector. The log has one line about the collector.
func TestUnavailableCollector(t *testing.T) {
	t.Parallel()
	const events = 40
	d := newDeployment(t)
	w := d.startTraced(fmt.Sprintf("http://user:%s@127.0.0.1:%d", collectorKey, servertest.ReservePort(t)), "CATEGORY_LIMIT", "none")
	d.publishEvents([]string{"basket"}, events)
	w.alone().awaitOutcomes(map[string]int{"sent": events})
	testkit.Eventually(t, "lost spans", func() bool { return w.scrape().sum("notifier_spans_lost_total") > 0 })
	w.stop()
	testkit.Equal(t, w.logLines("cannot send spans to the collector"), 1, "lines about the collector")
	testkit.Equal(t, strings.Contains(w.all(), collectorKey), false, "the log holds the collector's password")
}
