package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/seed-4578ace9/notifier/internal/oplog"
)

// TracesOptions configures Traces. All fields must be set.
type TracesOptions struct {
	Version  string // of the build
	Instance string // unique to this start of a worker
	Lost     func(spans int)
	Logger   *slog.Logger
}

// Traces sends spans to an OpenTelemetry collector, configured by the variables OTEL_*. Ending a span never blocks on the
// collector: spans are lost and counted if the queue is full or the collector refuses their batch.
type Traces struct{ *sdktrace.TracerProvider }

// tracesWanted reports whether the environment enables traces.
func tracesWanted() bool {
	disabled, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED"))
	return otlpSetting("ENDPOINT") != "" && !disabled && os.Getenv("OTEL_TRACES_EXPORTER") != "none"
}

// NewTraces starts sending spans; nil: no traces are wanted. The error is a fault in the settings, and names no secret.
func NewTraces(ctx context.Context, o TracesOptions) (*Traces, error) {
	if !tracesWanted() {
		return nil, nil //nolint:nilnil // traces are off unless asked for
	}
	client, err := newOTLPClient(strings.TrimSuffix("notifier/"+o.Version, "/"))
	if err != nil {
		return nil, err
	}
	// The SDK has one place for its own warnings, such as one about an unknown sampler.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { o.Logger.Warn("opentelemetry", "error", err) }))
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("notifier"), semconv.ServiceVersion(o.Version), semconv.ServiceInstanceID(o.Instance)),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
	)
	if err != nil {
		return nil, fmt.Errorf("reading OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	sending := oplog.NewCondition(o.Logger, "cannot send spans to the collector", "sending spans to the collector again")
	sender := &spanSender{Exporter: exporter, o: o, sending: sending}
	queue := &spanQueue{sdktrace.NewBatchSpanProcessor(sender, sdktrace.WithMaxQueueSize(queueSize())), sender, int64(queueSize())}
	o.Logger.Info("traces are sent", "collector", client.host)
	return &Traces{sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithSpanProcessor(queue))}, nil
}

// TracesStopPatience is how long [Traces.Stop] waits for the collector.
const TracesStopPatience = 2 * time.Second

// Stop sends what is left. Spans that the collector does not take in time are lost.
func (t *Traces) Stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, TracesStopPatience)
	defer cancel()
	_ = t.Shutdown(ctx) // what was lost is counted and logged
}

// queueSize is how many ended spans wait at most.
func queueSize() int {
	if size, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && size > 0 {
		return size
	}
	return sdktrace.DefaultMaxQueueSize
}

// spanQueue wraps the SDK's queue, which does not count the spans that it loses. It passes on no more spans than that queue holds.
type spanQueue struct {
	sdktrace.SpanProcessor
	sender *spanSender
	most   int64
}

// OnEnd queues a span. If the queue is full, the span is lost.
func (q *spanQueue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.sender.waiting.Add(1) > q.most {
		q.sender.waiting.Add(-1)
		q.sender.lose(1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// spanSender sends what the queue holds, and notes what is lost.
type spanSender struct {
	*otlptrace.Exporter
	o TracesOptions

	waiting atomic.Int64 // spans that have ended, and were neither sent nor lost
	lost    atomic.Int64 // since sending began to fail
	sending *oplog.Condition
}

// ExportSpans sends a batch. The log has one line when that begins to fail, and one when it works again. The error stays here: the SDK
// would only log each.
func (s *spanSender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := s.Exporter.ExportSpans(ctx, spans)
	s.waiting.Add(-int64(len(spans)))
	if err != nil {
		s.lose(len(spans))
		s.sending.Note(err)
	} else if s.sending.Err() != nil {
		s.sending.Note(nil, "lost_spans", s.lost.Swap(0))
	}
	return nil
}

func (s *spanSender) lose(n int) {
	s.lost.Add(int64(n))
	s.o.Lost(n)
}
