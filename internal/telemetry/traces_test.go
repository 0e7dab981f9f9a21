package telemetry_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// traces starts the exporter with variables OTEL_*, given as name, value, …
func traces(t *testing.T, log *testkit.Log, lost *atomic.Int64, variables ...string) (*telemetry.Traces, error) {
	t.Helper()
	for i := 0; i < len(variables); i += 2 {
		t.Setenv("OTEL_"+variables[i], variables[i+1])
	}
	return telemetry.NewTraces(t.Context(), telemetry.TracesOptions{
		Version: "1.2.3", Instance: "worker-1", Lost: func(n int) { lost.Add(int64(n)) }, Logger: log.Logger(),
	})
}

func TestTracesSettings(t *testing.T) {
	const secret = "s3cret"
	for name, test := range map[string]struct {
		variables []string
		on        bool
		fault     string
	}{
		"nothing":                {nil, false, ""},
		"endpoint":               {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"}, true, ""},
		"endpoint of traces":     {[]string{"EXPORTER_OTLP_TRACES_ENDPOINT", "https://127.0.0.1:1/x"}, true, ""},
		"disabled":               {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "SDK_DISABLED", "true"}, false, ""},
		"another exporter":       {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "TRACES_EXPORTER", "none"}, false, ""},
		"no URL":                 {[]string{"EXPORTER_OTLP_ENDPOINT", secret + ":4317"}, false, "EXPORTER_OTLP_ENDPOINT is not of the form"},
		"grpc":                   {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_PROTOCOL", "grpc"}, false, "only http/protobuf"},
		"headers":                {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_HEADERS", "a=b%20c, d = e"}, true, ""},
		"header without a value": {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_HEADERS", secret}, false, "HEADERS is not of the form"},
		"header with a line end": {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_HEADERS", "a=%0a" + secret}, false, "HEADERS is not of the form"},
		"name with a blank":      {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_HEADERS", secret + " x=y"}, false, "HEADERS is not of the form"},
		"compression":            {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_COMPRESSION", "zstd"}, false, "COMPRESSION is"},
		"timeout":                {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_TIMEOUT", "10s"}, false, "TIMEOUT is"},
		"certificate":            {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_CERTIFICATE", "absent.pem"}, false, "reading OTEL_EXPORTER_OTLP_CERTIFICATE"},
		"client certificate":     {[]string{"EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", "EXPORTER_OTLP_CLIENT_KEY", "absent.pem"}, false, "reading OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"},
	} {
		t.Run(name, func(t *testing.T) {
			var lost atomic.Int64
			started, err := traces(t, testkit.NewLog(t), &lost, test.variables...)
			testkit.Equal(t, started != nil, test.on, "traces are sent")
			if started != nil {
				started.Stop(t.Context())
			}
			if text := errorText(err); !strings.Contains(text, test.fault) || test.fault == "" && text != "" || strings.Contains(text, secret) {
				t.Errorf("error %q, want %q", text, test.fault)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The collector answers the first batch with 503, takes its repetition, and answers later batches with 401.
func TestTracesAreSent(t *testing.T) {
	var requests, taken, lost atomic.Int64
	var refused atomic.Bool
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var spans tracepb.TracesData
		body := testkit.Must(io.ReadAll(testkit.Must(gzip.NewReader(r.Body))(t)))(t)
		testkit.NoError(t, proto.Unmarshal(body, &spans))
		testkit.Equal(t, r.URL.Path+" "+r.Header.Get("A")+" "+r.UserAgent(), "/below/v1/traces b c notifier/1.2.3", "a request")
		switch {
		case refused.Load():
			w.WriteHeader(http.StatusUnauthorized)
		case requests.Add(1) == 1:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			for _, a := range spans.GetResourceSpans()[0].GetResource().GetAttributes() {
				if a.GetKey() == "service.name" {
					testkit.Equal(t, a.GetValue().GetStringValue(), "mine", "the name of the service")
				}
			}
			taken.Add(int64(len(spans.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans())))
		}
	}))
	defer collector.Close()
	log := testkit.NewLog(t)
	started := testkit.Must(traces(t, log, &lost, "EXPORTER_OTLP_ENDPOINT", collector.URL+"/below/", "EXPORTER_OTLP_HEADERS", "a=b%20c",
		"EXPORTER_OTLP_COMPRESSION", "gzip", "SERVICE_NAME", "mine", "BSP_SCHEDULE_DELAY", "10"))(t)
	tracer := started.Tracer("test")
	end := func(n int) {
		for range n {
			_, span := tracer.Start(t.Context(), "span")
			span.End()
		}
	}
	end(3)
	testkit.Eventually(t, "spans that the collector takes", func() bool { return taken.Load() == 3 })
	refused.Store(true)
	for range 2 {
		before := lost.Load()
		end(1)
		testkit.Eventually(t, "a span that is lost", func() bool { return lost.Load() == before+1 })
	}
	testkit.Equal(t, log.Count("cannot send spans to the collector"), 1, "lines about the beginning")
	refused.Store(false)
	end(1)
	testkit.Eventually(t, "a line about the end", func() bool { return log.Count("sending spans to the collector again") == 1 })
	end(1)
	started.Stop(t.Context())
	testkit.Equal(t, taken.Load(), 5, "spans that the collector took")
}

// TestRetryAfter has a collector that takes nothing name the time of the next request. Neither zero nor a huge time makes a storm of requests.
func TestRetryAfter(t *testing.T) {
	for after, most := range map[string]int64{"0": 5, "9223372037": 1, "1000000": 1, "Fri, 31 Dec 9999 23:59:59 GMT": 1} {
		t.Run(after, func(t *testing.T) {
			var requests, lost atomic.Int64
			collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.Header().Set("Retry-After", after)
				w.WriteHeader(http.StatusServiceUnavailable)
			}))
			defer collector.Close()
			log := testkit.NewLog(t)
			started := testkit.Must(traces(t, log, &lost, "EXPORTER_OTLP_ENDPOINT", collector.URL, "EXPORTER_OTLP_TIMEOUT", "1000", "BSP_SCHEDULE_DELAY", "10"))(t)
			_, span := started.Tracer("test").Start(t.Context(), "span")
			span.End()
			testkit.Eventually(t, "the span is lost", func() bool { return lost.Load() == 1 })
			got := requests.Load()
			testkit.Check(t, got <= most, "got %d requests, want at most %d", got, most)
			log.WantCount(t, 1, "sending spans to "+collector.Listener.Addr().String()+": the answer is 503 Service Unavailable")
			started.Stop(t.Context())
		})
	}
}

// TestSpansNeverBlock ends more spans than the queue holds while the collector does not answer. Each span is sent or counted as lost.
func TestSpansNeverBlock(t *testing.T) {
	const spans, most = 1000, 16
	var lost, taken atomic.Int64
	asked, answer := make(chan struct{}), make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var sent tracepb.TracesData
		testkit.NoError(t, proto.Unmarshal(testkit.Must(io.ReadAll(r.Body))(t), &sent))
		taken.Add(int64(len(sent.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans())))
		select {
		case <-asked:
		default:
			close(asked)
		}
		<-answer
	}))
	defer collector.Close()
	started := testkit.Must(traces(t, testkit.NewLog(t), &lost, "EXPORTER_OTLP_ENDPOINT", collector.URL,
		"BSP_MAX_QUEUE_SIZE", "16", "BSP_MAX_EXPORT_BATCH_SIZE", "8", "BSP_SCHEDULE_DELAY", "1"))(t)
	tracer := started.Tracer("test")
	for i := range spans {
		if i == most {
			<-asked // the first batch is on its way, and not answered
		}
		_, span := tracer.Start(t.Context(), "span")
		span.End()
	}
	testkit.Equal(t, lost.Load(), spans-most, "lost spans")
	close(answer)
	started.Stop(t.Context())
	testkit.Equal(t, taken.Load(), most, "spans that were sent")
}
