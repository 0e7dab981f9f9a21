package tests

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// collectorKey is the API key that workers send to the collector.
const collectorKey = "s3cret-of-the-collector"

// collector is a stand-in for an OpenTelemetry collector.
type collector struct {
	t      testing.TB
	server *httptest.Server

	mu    sync.Mutex
	raw   strings.Builder // everything that came
	spans []*tracepb.Span
}

func newCollector(t testing.TB) *collector {
	c := &collector{t: t}
	c.server = httptest.NewServer(http.HandlerFunc(c.take))
	t.Cleanup(c.server.Close)
	return c
}

func (c *collector) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var traces tracepb.TracesData
	if err == nil {
		err = proto.Unmarshal(body, &traces)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || r.Header.Get("Api-Key") != collectorKey {
		c.t.Errorf("a request to %s of type %s: %v", r.URL.Path, r.Header.Get("Content-Type"), err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(body)
	for _, resource := range traces.GetResourceSpans() {
		testkit.Equal(c.t, attribute(resource.GetResource().GetAttributes(), "service.name"), "notifier", "the name of the service")
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
}

// startTraced starts a worker that sends its spans to an address.
func (d *deployment) startTraced(url string, changes ...string) *worker {
	d.t.Helper()
	address := freeAddress(d.t)
	command := exec.Command(program)
	command.Env = append(d.settings("HTTP_ADDR", address).with(changes...).environment(),
		"OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_EXPORTER_OTLP_HEADERS=api-key="+collectorKey,
		"OTEL_EXPORTER_OTLP_TIMEOUT=300", "OTEL_BSP_SCHEDULE_DELAY=100")
	w := &worker{launch(d.t, "traced worker", command), address}
	w.awaitReady()
	return w
}

// named returns the received spans of a name.
func (c *collector) named(name string) (found []*tracepb.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if span.GetName() == name {
			found = append(found, span)
		}
	}
	return found
}

func (c *collector) came() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raw.String()
}

// trees prints the received spans, each below its parent. Spans of one parent are sorted by text.
func (c *collector) trees() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	below := make(map[string][]*tracepb.Span)
	for _, span := range c.spans {
		below[string(span.GetParentSpanId())] = append(below[string(span.GetParentSpanId())], span)
	}
	var tree func(parent, indent string) string
	tree = func(parent, indent string) string {
		var texts []string
		for _, span := range below[parent] {
			texts = append(texts, indent+describe(span)+"\n"+tree(string(span.GetSpanId()), indent+"  "))
		}
		slices.Sort(texts)
		return strings.Join(texts, "")
	}
	return tree("", "")
}

// awaitTrees waits until the collector has received exactly these spans.
func (c *collector) awaitTrees(want string) {
	c.t.Helper()
	want = strings.TrimLeft(want, "\n")
	testkit.Await(c.t, "the spans", func() error {
		if got := c.trees(); got != want {
			return fmt.Errorf("got:\n%swant:\n%s", got, want)
		}
		return nil
	})
}

func describe(span *tracepb.Span) string {
	words := []string{span.GetName()}
	for _, name := range []string{
		"messaging.message.id", "notifier.category", "notifier.waited_for", "notifier.verdict", "notifier.level",
		"http.response.status_code", "error.type", "notifier.waits_for", "notifier.outcome",
	} {
		if value := attribute(span.GetAttributes(), name); value != "" {
			words = append(words, value)
		}
	}
	for _, link := range span.GetLinks() {
		words = append(words, "<- "+hex.EncodeToString(link.GetSpanId()))
	}
	if span.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		words = append(words, "!")
	}
	if span.GetStartTimeUnixNano() > span.GetEndTimeUnixNano() {
		words = append(words, "ends before it begins")
	}
	return strings.Join(words, " ")
}

func attribute(attributes []*commonpb.KeyValue, name string) string {
	for _, a := range attributes {
		if a.GetKey() == name {
			if number := a.GetValue().GetIntValue(); number != 0 {
				return fmt.Sprint(number)
			}
			return cmp.Or(a.GetValue().GetStringValue(), "empty")
		}
	}
	return ""
}
