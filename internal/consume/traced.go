package consume

import (
	"cmp"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// trace begins the span of a message that has none, if it is to have one: admitted events have spans, those that had one before they
// waited, and few of all others. A body has many parts, so its span is no reason for theirs.
func (w *Worker) trace(m *message, begun time.Time, admitted bool) {
	if w.o.Tracer == nil || m.span != nil || m.untraced && !admitted {
		return
	}
	goesOn := m.entry.Trace != "" && m.entry.Reason != room.Part
	if m.untraced = !w.o.Tracer.Wants(begun, admitted || goesOn); m.untraced {
		return
	}
	m.span = w.o.Tracer.Process(tracing.Message{
		Subject: m.entry.Subject, Stream: m.entry.Origin.Stream, Sequence: m.entry.Origin.Sequence, ID: w.shownID(m), Category: m.category,
		Size: len(m.Data()), Delivered: m.delivered, WaitedFor: string(m.entry.Reason), Producer: m.producerSpan(), Parent: m.entry.Trace,
	}, begun)
}

// traceDecision tells the span of a candidate how it was decided about, in a batch.
func (w *Worker) traceDecision(c *candidate, asked, answered time.Time, d *throttle.Decision, denial *throttle.Denial, batch int) {
	if w.o.Tracer == nil {
		return
	}
	w.trace(c.message, c.received, d.Grant != nil)
	c.span.Decided(asked, answered, d.Verdict.String(), levelOf(denial), batch)
}

// producerSpan is the span in which the event was published.
func (m *message) producerSpan() tracing.Context { return tracing.Parse(m.asStored().TraceContext()) }

// traceID is the ID of the event's trace, else of its producer's; "" if there is none.
func (m *message) traceID() string {
	if id := m.span.TraceID(); id != "" {
		return id
	}
	return m.producerSpan().TraceID()
}

// traceparent names the span in which the event was last stored, or goes on now; "" if there is none.
func (m *message) traceparent() string { return cmp.Or(m.span.Traceparent(), m.entry.Trace) }

// producerTrace are the headers with which the parts of a body name the producer's span.
func (m *message) producerTrace() nats.Header {
	headers := make(nats.Header)
	for name, value := range m.producerSpan().Headers() {
		headers.Set(name, value)
	}
	return headers
}

// traced are the attributes of a log line that name the event's trace.
func (m *message) traced(attributes ...any) []any {
	if id := m.span.TraceID(); id != "" {
		return append(attributes, "trace_id", id)
	}
	return attributes
}
