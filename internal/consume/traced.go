package consume

import (
	"cmp"
	"time"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// trace starts the span of a message that has none, if its event belongs to the sample or had a span, other than a body's, before it waited.
func (r *reporter) trace(m *message, begun time.Time) {
	if r.tracer == nil || m.span != nil || m.untraced {
		return
	}
	goesOn := m.entry.Trace != "" && m.entry.Reason != room.Part
	if m.untraced = !goesOn && !r.tracer.Samples(begun); !m.untraced {
		r.startSpan(m, begun)
	}
}

func (r *reporter) startSpan(m *message, begun time.Time) {
	m.span = r.tracer.Process(tracing.Message{
		Subject: m.entry.Subject, Stream: m.entry.Origin.Stream, Sequence: m.entry.Origin.Sequence, ID: r.reader.shownID(m), Category: m.about.category,
		Size: len(m.Data), Delivered: m.meta.NumDelivered, WaitedFor: string(m.entry.Reason), Producer: m.producerSpan(), Parent: m.entry.Trace,
	}, begun)
}

type roundTrip struct {
	asked, answered time.Time
	events          int
}

func (r *reporter) traceDecision(c *candidate, by roundTrip, d *store.Decision, denial *store.Denial) {
	if r.tracer == nil {
		return
	}
	if d.Grant == nil {
		r.trace(c.message, c.received)
	} else if c.span == nil { // every admitted event has a span
		r.startSpan(c.message, c.received)
	}
	c.span.Decided(by.asked, by.answered, d.Verdict.String(), levelOf(denial), by.events)
}

func (m *message) producerSpan() tracing.Context { return tracing.Parse(m.published().TraceContext()) }

// traceID returns the ID of the event's trace or of its producer's trace; "" if there is none.
func (m *message) traceID() string {
	if id := m.span.TraceID(); id != "" {
		return id
	}
	return m.producerSpan().TraceID()
}

// traceparent names the event's current span, or else the span in which the event was last stored; "" if there is neither.
func (m *message) traceparent() string { return cmp.Or(m.span.Traceparent(), m.entry.Trace) }

// traced appends the ID of the event's trace to the attributes of a log line.
func (m *message) traced(attributes ...any) []any {
	if id := m.span.TraceID(); id != "" {
		return append(attributes, "trace_id", id)
	}
	return attributes
}
