package tracing

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Names of the headers and attributes of the W3C.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// maxStateBytes is the longest tracestate that is passed on: what the W3C asks for at least.
const maxStateBytes = 512

// Context names a span of another process. The zero value names none.
type Context struct{ span trace.SpanContext }

// Parse reads a traceparent and its tracestate, as the W3C defines them. A malformed traceparent gives the zero Context. A tracestate
// that is malformed or longer than 512 bytes is left out.
func Parse(parent, state string) Context {
	if parent == "" {
		return Context{}
	}
	if len(state) > maxStateBytes {
		state = ""
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: parent, tracestate: state})
	return Context{trace.SpanContextFromContext(ctx)}
}

// TraceID is the ID of the trace in hexadecimal digits; "" of the zero Context.
func (c Context) TraceID() string {
	if !c.span.IsValid() {
		return ""
	}
	return c.span.TraceID().String()
}

// Headers are the headers that name the span; none of the zero Context.
func (c Context) Headers() map[string]string {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), c.span), headers)
	return headers
}
