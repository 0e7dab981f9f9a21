package tracing_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	producer = "00-" + traceID + "-b7ad6b7169203331-01"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ parent, state, want, wantState string }{
		"none":                    {"", "", "", ""},
		"sampled":                 {producer, "", producer, ""},
		"not sampled":             {"00-" + traceID + "-b7ad6b7169203331-00", "", "00-" + traceID + "-b7ad6b7169203331-00", ""},
		"state":                   {producer, "a=b,c=d", producer, "a=b,c=d"},
		"state of 512 bytes":      {producer, "a=" + strings.Repeat("b", 200) + ",c=" + strings.Repeat("d", 200) + ",e=" + strings.Repeat("f", 104), producer, "a=" + strings.Repeat("b", 200) + ",c=" + strings.Repeat("d", 200) + ",e=" + strings.Repeat("f", 104)},
		"longer state":            {producer, "a=" + strings.Repeat("b", 200) + ",c=" + strings.Repeat("d", 200) + ",e=" + strings.Repeat("f", 105), producer, ""},
		"malformed state":         {producer, "a\r\nX: y", producer, ""},
		"later version":           {"01-" + traceID + "-b7ad6b7169203331-01-more", "", producer, ""},
		"forbidden version":       {"ff-" + traceID + "-b7ad6b7169203331-01", "", "", ""},
		"upper case":              {strings.ToUpper(producer), "", "", ""},
		"no trace":                {"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", "", "", ""},
		"no span":                 {"00-" + traceID + "-" + strings.Repeat("0", 16) + "-01", "", "", ""},
		"short":                   {producer[:54], "", "", ""},
		"long":                    {producer + "0", "", "", ""},
		"no digits":               {strings.Replace(producer, "0af7", "0xf7", 1), "", "", ""},
		"header behind it":        {producer + "\r\nX: y", "", "", ""},
		"blanks":                  {" " + producer, "", "", ""},
		"no text":                 {"\xff\x00", "\xff", "", ""},
		"dashes":                  {strings.Repeat("-", 1<<16), "", "", ""},
		"unknown flags":           {producer[:53] + "ff", "", "", ""},
		"state without its trace": {"", "a=b", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parsed := tracing.Parse(test.parent, test.state)
			headers := parsed.Headers()
			testkit.Equal(t, headers["traceparent"], test.want, "traceparent")
			testkit.Equal(t, headers["tracestate"], test.wantState, "tracestate")
			want := ""
			if test.want != "" {
				want = traceID
			}
			testkit.Equal(t, parsed.TraceID(), want, "ID of the trace")
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(producer, "a=b")
	f.Add("00-", "\r\n")
	f.Fuzz(func(t *testing.T, parent, state string) {
		headers := tracing.Parse(parent, state).Headers()
		again := tracing.Parse(headers["traceparent"], headers["tracestate"]).Headers()
		testkit.EqualMaps(t, again, headers, "what was parsed, parsed again")
		testkit.Check(t, len(headers["traceparent"]) <= len(producer) && !strings.ContainsAny(headers["traceparent"]+headers["tracestate"], "\r\n"),
			"headers %q", headers)
	})
}

// TestSamples gives spans to a few events a second of those that are not admitted.
func TestSamples(t *testing.T) {
	t.Parallel()
	tracer := tracing.New(sdktrace.NewTracerProvider(), "notifier")
	now, denied := time.Now(), 0
	for i := range 3000 {
		if tracer.Samples(now.Add(time.Duration(i) * time.Millisecond)) {
			denied++
		}
	}
	testkit.Equal(t, denied, 19, "events with spans within 2.999 seconds, of which 5 at once")
}

// TestProducersTexts keeps spans fit to be sent, whatever producers write.
func TestProducersTexts(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)), "notifier")
	span := tracer.Process(tracing.Message{ID: "a\xff\x1b[2J" + strings.Repeat("ü", 1000), Subject: "notify.x", Parent: "forged"}, time.Now())
	span.Settled("sent", time.Now())
	process := spans.Ended()[1]
	testkit.Equal(t, process.Parent().IsValid(), false, "a malformed parent is one")
	for _, a := range process.Attributes() {
		if a.Key == "messaging.message.id" {
			testkit.Equal(t, strings.HasPrefix(a.Value.AsString(), "a\ufffd[2Jüü"), true, "the ID is %q", a.Value.AsString())
			testkit.AtMost(t, len(a.Value.AsString()), 260, "length of an ID")
		}
	}
	testkit.Equal(t, process.Attributes()[len(process.Attributes())-1], attribute.String("notifier.outcome", "sent"), "the last attribute")
}

// TestOff does everything without a tracer: nothing is allocated. It runs alone, since it counts the allocations of the process.
func TestOff(t *testing.T) {
	ctx, now := context.Background(), time.Now()
	cost := testing.AllocsPerRun(100, func() {
		var tracer *tracing.Tracer
		span := tracer.Process(tracing.Message{}, now)
		span.Decided(now, now, "admitted", "", 1)
		tracing.Post(span.In(ctx), tracing.Request{})
		span.Ended("sent")
		span.WaitsFor("slot")
		span.Settled("sent", now)
		span.Left(tracing.Lost)
		testkit.Check(t, span.TraceID()+span.Traceparent() == "", "a nil span has an ID")
	})
	testkit.Equal(t, cost, 0, "allocations")
}
