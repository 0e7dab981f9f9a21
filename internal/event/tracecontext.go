package event

// TraceContext returns the producer's W3C trace context: the headers traceparent and tracestate or the extension attributes of a
// CloudEvent. The texts are unchecked, and empty if there are none.
func (m Message) TraceContext() (traceparent, tracestate string) {
	if traceparent = headerValue(m.Header, "traceparent"); traceparent != "" {
		return traceparent, headerValue(m.Header, "tracestate")
	}
	if traceparent = headerValue(m.Header, "ce-traceparent"); traceparent != "" {
		return traceparent, percentDecoded(headerValue(m.Header, "ce-tracestate"))
	}
	if !looksLikeObject(m.Data) || !mayHold(m.Data, `"traceparent"`) {
		return "", ""
	}
	o := splitObject(trimStart(m.Data))
	if o.get("specversion") == nil {
		return "", ""
	}
	return stringValue(o.get("traceparent")), stringValue(o.get("tracestate"))
}
