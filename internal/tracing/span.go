package tracing

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Span is the process span of a message, with its children. A nil Span does nothing.
type Span struct {
	tracer trace.Tracer
	span   trace.Span
}

// Outcomes of a process span beside the outcomes of events.
const (
	Waiting     = "waiting"     // the event goes on in the room
	Split       = "split"       // the events of the body go on in the room
	GivenBack   = "given_back"  // NATS delivers the message again
	Lost        = "lost"        // NATS delivers the message again: another worker may have it by now
	Unconfirmed = "unconfirmed" // NATS delivers the message again: it did not confirm the acknowledgement
)

// failed are the outcomes that mark a span as failed.
var failed = map[string]bool{"dead": true, Lost: true, Unconfirmed: true}

// Decided adds the batch that decided about the event, and the rule that denied it. level is "" if no rule did.
func (s *Span) Decided(asked, answered time.Time, verdict, level string, batch int) {
	if s == nil {
		return
	}
	attributes := []attribute.KeyValue{
		attribute.String("notifier.verdict", verdict), semconv.MessagingBatchMessageCount(batch),
	}
	if level != "" {
		attributes = append(attributes, attribute.String("notifier.level", shown(level)))
	}
	_, decide := s.tracer.Start(s.In(context.Background()), "decide", trace.WithTimestamp(asked), trace.WithAttributes(attributes...))
	decide.End(trace.WithTimestamp(answered))
	s.span.SetAttributes(attributes[0])
	s.span.SetAttributes(attributes[2:]...)
}

// In returns a context that makes [Post] add to the span.
func (s *Span) In(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, s.span)
}

// Request is a request of a sink, as its span shows it.
type Request struct {
	Sink   string // kind of the sink, such as "slack"
	Method string // such as "chat.postMessage" or "webhook"
	Status int    // of the answer; 0 if none came
	Class  string // of the failure; "" if there was none
	Code   string // of the failure, without secrets
	Began  time.Time
	Took   time.Duration
}

// Post adds a request of a sink to the span of a context, if it has one.
func Post(ctx context.Context, r Request) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{semconv.HTTPRequestMethodPost, attribute.String("notifier.sink.method", r.Method)}
	if r.Status != 0 {
		attributes = append(attributes, semconv.HTTPResponseStatusCode(r.Status))
	}
	_, post := parent.TracerProvider().Tracer(scope).Start(ctx, http.MethodPost+" "+r.Sink,
		trace.WithTimestamp(r.Began), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	if r.Class != "" {
		post.SetAttributes(semconv.ErrorTypeKey.String(r.Class))
		post.SetStatus(codes.Error, shown(r.Code))
	}
	post.End(trace.WithTimestamp(r.Began.Add(r.Took)))
}

// Ended notes an outcome.
func (s *Span) Ended(outcome string) {
	if s == nil || outcome == "" {
		return
	}
	s.span.SetAttributes(attribute.String("notifier.outcome", outcome))
	if failed[outcome] {
		s.span.SetStatus(codes.Error, outcome)
	}
}

// WaitsFor notes what the event waits for in the room.
func (s *Span) WaitsFor(reason string) {
	if s != nil {
		s.span.SetAttributes(attribute.String("notifier.waits_for", reason))
	}
}

// Settled ends the span after NATS confirmed the acknowledgement. began is when the worker asked for it.
func (s *Span) Settled(outcome string, began time.Time) {
	if s == nil {
		return
	}
	_, settle := s.tracer.Start(s.In(context.Background()), "settle", trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.MessagingSystemKey.String("nats"), semconv.MessagingOperationTypeSettle))
	settle.End()
	s.Ended(outcome)
	s.span.End()
}

// Left ends the span of a message that another worker or a redelivery completes.
func (s *Span) Left(outcome string) {
	if s == nil {
		return
	}
	s.Ended(outcome)
	s.span.End()
}

// TraceID is the ID of the trace in hexadecimal digits; "" if the trace is not sampled.
func (s *Span) TraceID() string {
	if s == nil || !s.span.SpanContext().IsSampled() {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Traceparent returns the header that names the span, for the next span of the event; "" of a nil Span.
func (s *Span) Traceparent() string {
	if s == nil {
		return ""
	}
	return Context{s.span.SpanContext()}.Headers()[traceparent]
}
