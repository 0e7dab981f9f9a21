// Package tracing makes the OpenTelemetry spans of events.
//
// It owns the names and attributes of the spans, and says which events have any: every event that a limit admits, and of all others a
// few each second. It sends nothing: a [trace.TracerProvider] of the caller does. No text of an event and no URL is in a span.
//
//	process                 from the batch in which a worker decodes the message until NATS confirms its end;
//	│                       linked to the producer's span, child of the process span that stored the event in the room
//	├── decide              one batch of decisions, with its times
//	├── POST slack          one request to Slack
//	└── settle              from the worker's result until NATS confirms it
//
// What producers write is not trusted. A trace context of theirs is only linked to, so it decides neither the trace nor whether it is
// sampled. One that is malformed counts as none.
//
// A nil [Tracer] and a nil [Span] do nothing and allocate nothing. All methods may be called at once.
package tracing
