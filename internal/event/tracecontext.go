package event

// TraceContext returns the W3C trace context that the producer gave: of the headers traceparent and tracestate, else of the extension
// attributes of a CloudEvent. The texts are unchecked, and empty where there are none.
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
