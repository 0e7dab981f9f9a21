package bench

import (
	"bytes"
	"context"
	_ "embed" // the form of the picture
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var drawn = flag.String("picture", "", "file for the picture of BenchmarkWay")

//go:embed way.svg.tmpl
var wayForm string

// step is a part of the way of an event, and its median duration.
type step struct {
	Name, About string
	Took        time.Duration
}

// BenchmarkWay measures where the time of an admitted event goes, from the publish until NATS confirms the acknowledgement, at 20 events a
// second. The spans of the worker say when each step began and ended.
func BenchmarkWay(b *testing.B) {
	const events, gap = 200, 50 * time.Millisecond
	a := newArena(b)
	spans := newSpans(b)
	c := notifier.unlimited()
	c.environment = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + spans.url, "OTEL_BSP_SCHEDULE_DELAY=100"}
	a.start(c)
	a.publishPaced(20, gap) // the worker has its connections then
	published := a.publishPaced(events, gap)
	var ways [][]time.Duration
	testkit.Await(b, "the spans of the events", func() error {
		if ways = spans.ways(published); len(ways) < events {
			return fmt.Errorf("%d of %d", len(ways), events)
		}
		return nil
	})
	steps := []step{
		{Name: "receive", About: "until a worker decodes the message: NATS stores and delivers it"},
		{Name: "decode", About: "until the decision is asked for"},
		{Name: "decide", About: "one script call"},
		{Name: "turn", About: "lease, rendering, turn of the channel"},
		{Name: "post", About: "the request to a stand-in for Slack that answers at once"},
		{Name: "record", About: "one script call"},
		{Name: "settle", About: "until NATS confirms the acknowledgement"},
	}
	total := time.Duration(0)
	for i := range steps {
		took := make([]time.Duration, len(ways))
		for w, way := range ways {
			took[w] = way[i]
		}
		slices.Sort(took)
		steps[i].Took = percentile(took, 50)
		total += steps[i].Took
		b.ReportMetric(float64(steps[i].Took.Microseconds()), "µs-"+steps[i].Name)
	}
	line := make([]string, len(steps))
	for i, s := range steps {
		line[i] = fmt.Sprintf("%s %v", s.Name, s.Took.Round(time.Microsecond))
	}
	conclude("way of an admitted event at 20/s, %v at the median: %s", total.Round(time.Microsecond), strings.Join(line, ", "))
	if *drawn != "" {
		testkit.NoError(b, os.WriteFile(*drawn, drawWay(b, steps, total), 0o644))
	}
	once(b)
}

// publishPaced publishes events at a pace, and returns when each publish began, by sequence in the stream.
func (a *arena) publishPaced(events int, gap time.Duration) map[int64]time.Time {
	a.b.Helper()
	published := make(map[int64]time.Time)
	for i := range events {
		began := time.Now()
		ack := testkit.Must(a.js.Publish(context.Background(), eventSubject(i), eventBody(i)))(a.b)
		published[int64(ack.Sequence)] = began
		time.Sleep(gap) // the pace
	}
	return published
}

// spans receives the spans of a worker.
type spans struct {
	url string

	mu  sync.Mutex
	all []*tracepb.Span
}

func newSpans(b *testing.B) *spans {
	b.Helper()
	s := &spans{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var traces tracepb.TracesData
		if err == nil {
			err = proto.Unmarshal(body, &traces)
		}
		if err != nil {
			b.Error(err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, resource := range traces.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				s.all = append(s.all, scope.GetSpans()...)
			}
		}
	}))
	b.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// ways returns the durations of the steps of each published event whose spans are complete.
func (s *spans) ways(published map[int64]time.Time) (ways [][]time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := make(map[string]map[string]*tracepb.Span) // by span of the event and name
	for _, span := range s.all {
		event := string(span.GetParentSpanId())
		if event == "" { // the span of the event itself
			event = string(span.GetSpanId())
		}
		if parts[event] == nil {
			parts[event] = make(map[string]*tracepb.Span)
		}
		parts[event][span.GetName()] = span
	}
	for _, of := range parts {
		began, known := published[sequenceOf(of["process"])]
		decide, post, settle := of["decide"], of["POST slack"], of["settle"]
		if !known || decide == nil || post == nil || settle == nil {
			continue
		}
		moments := []uint64{
			uint64(began.UnixNano()), of["process"].GetStartTimeUnixNano(), decide.GetStartTimeUnixNano(), decide.GetEndTimeUnixNano(),
			post.GetStartTimeUnixNano(), post.GetEndTimeUnixNano(), settle.GetStartTimeUnixNano(), settle.GetEndTimeUnixNano(),
		}
		way := make([]time.Duration, len(moments)-1)
		for i := range way {
			way[i] = time.Duration(moments[i+1]) - time.Duration(moments[i])
		}
		ways = append(ways, way)
	}
	return ways
}

// sequenceOf returns the sequence of the message of a span, 0 for none.
func sequenceOf(process *tracepb.Span) int64 {
	for _, a := range process.GetAttributes() {
		if a.GetKey() == "notifier.sequence" {
			return a.GetValue().GetIntValue()
		}
	}
	return 0
}

// Places in the picture.
const (
	wayLeft, wayWidth = 8.0, 704.0
	wayTop, wayLine   = 94, 18 // of the list below the bar
)

// drawWay draws the steps as parts of a bar, with a list below.
func drawWay(b *testing.B, steps []step, total time.Duration) []byte {
	b.Helper()
	type part struct {
		step
		X, Width, Y string
		Color       int
		Share       string
	}
	view := struct {
		Total time.Duration
		Parts []part
	}{Total: total.Round(10 * time.Microsecond)}
	x := wayLeft
	for i, s := range steps {
		share := s.Took.Seconds() / total.Seconds()
		s.Took = s.Took.Round(10 * time.Microsecond)
		view.Parts = append(view.Parts, part{
			step: s, X: fmt.Sprintf("%.1f", x), Width: fmt.Sprintf("%.1f", share*wayWidth), Y: fmt.Sprint(wayTop + i*wayLine), Color: i,
			Share: fmt.Sprintf("%.0f %%", 100*share),
		})
		x += share * wayWidth
	}
	var picture bytes.Buffer
	testkit.NoError(b, template.Must(template.New("way").Parse(wayForm)).Execute(&picture, view))
	return picture.Bytes()
}
