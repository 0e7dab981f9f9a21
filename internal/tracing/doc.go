// Package tracing makes the OpenTelemetry spans of events.
//
// It owns the names and attributes of the spans, and says which events have spans: every event that a limit admits, and a few other
// events each second. It sends nothing: a [trace.TracerProvider] of the caller does. No text of an event and no URL is in a span.
//
//	process                 from the batch in which a worker decodes the message until NATS confirms its end;
//	│                       link: the producer's span; parent: the process span that stored the event in the room
//	├── decide              one batch of decisions, with its times
//	├── POST slack          one request to Slack
//	└── settle              from the worker's result until NATS confirms it
//
// A producer is not trusted. Its trace context becomes a link only, so a producer decides neither the trace nor the sampling. A
// malformed trace context is ignored.
//
// A nil [Tracer] and a nil [Span] do nothing and allocate nothing. All methods may be called at once.
package tracing
