package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/seed-4578ace9/notifier/internal/plain"
)

// scope names the instrumentation in what is exported.
const scope = "github.com/seed-4578ace9/notifier"

// fewPerSecond is how many events a second get spans although no limit admits them: enough for a look, cheap in a flood.
const fewPerSecond = 5

// Tracer begins the spans of events. A nil Tracer begins none.
type Tracer struct {
	tracer trace.Tracer
	group  string
	few    *rate.Limiter
}

// New makes a tracer of the spans of one consumer.
func New(provider trace.TracerProvider, consumer string) *Tracer {
	return &Tracer{tracer: provider.Tracer(scope), group: consumer, few: rate.NewLimiter(fewPerSecond, fewPerSecond)}
}

// Samples reports whether an event gets spans that is not admitted. It bounds such events.
func (t *Tracer) Samples(now time.Time) bool { return t.few.AllowN(now, 1) }

// Message holds the attributes of a message's span. The texts may come from a producer.
type Message struct {
	Subject   string // of the published event
	Stream    string // that stored the producer's message
	Sequence  uint64 // of that message
	ID        string // of the event, as shown to people
	Category  string
	Size      int    // of the body, in bytes
	Delivered uint64 // how often JetStream has delivered the message
	WaitedFor string // in the room; "" if the event did not wait there

	Producer Context // the producer's span
	Parent   string  // the traceparent of the span that stored the event in the room; "" if there is none
}

// Process begins the span of a message. It returns nil from a nil Tracer.
func (t *Tracer) Process(m Message, begun time.Time) *Span {
	if t == nil {
		return nil
	}
	parent := trace.ContextWithRemoteSpanContext(context.Background(), Parse(m.Parent, "").span)
	options := []trace.SpanStartOption{
		trace.WithTimestamp(begun), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			semconv.MessagingSystemKey.String("nats"),
			semconv.MessagingOperationTypeProcess,
			semconv.MessagingOperationName("process"),
			semconv.MessagingDestinationName(shown(m.Subject)),
			semconv.MessagingConsumerGroupName(t.group),
			semconv.MessagingMessageID(shown(m.ID)),
			semconv.MessagingMessageBodySize(m.Size),
			attribute.String("notifier.category", shown(m.Category)),
			attribute.String("notifier.stream", m.Stream),
			attribute.Int64("notifier.sequence", int64(m.Sequence)),    //nolint:gosec // far below the end of an int64
			attribute.Int64("notifier.deliveries", int64(m.Delivered)), //nolint:gosec // far below the end of an int64
		),
	}
	if m.WaitedFor != "" {
		options = append(options, trace.WithAttributes(attribute.String("notifier.waited_for", m.WaitedFor)))
	}
	if m.Producer.span.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: m.Producer.span}))
	}
	_, span := t.tracer.Start(parent, "process", options...)
	return &Span{tracer: t.tracer, span: span}
}

// maxShown bounds a producer's text in an attribute, in bytes.
const maxShown = 256

// shown returns a producer's text in the form for attributes.
func shown(text string) string { return plain.Line(text[:min(len(text), maxShown)]) }
