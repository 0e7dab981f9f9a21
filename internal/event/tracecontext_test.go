package event_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
)

func TestTraceContext(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header        map[string][]string
		body          string
		parent, state string
	}{
		"none":                       {nil, `{"title":"x"}`, "", ""},
		"headers":                    {map[string][]string{"traceparent": {"a"}, "tracestate": {"b=c"}}, "x", "a", "b=c"},
		"headers in any case":        {map[string][]string{"TraceParent": {"a"}, "TRACESTATE": {"b=c"}}, "x", "a", "b=c"},
		"binary CloudEvent":          {map[string][]string{"Ce-Traceparent": {"a"}, "ce-tracestate": {"b=%22"}}, "x", "a", `b="`},
		"structured CloudEvent":      {nil, ` {"specversion":"1.0","traceparent":"a","tracestate":"b=c"}`, "a", "b=c"},
		"headers before attributes":  {map[string][]string{"traceparent": {"h"}}, `{"specversion":"1.0","traceparent":"a","tracestate":"b=c"}`, "h", ""},
		"escaped name":               {nil, `{"specversion":"1.0","tr\u0061ceparent":"a"}`, "a", ""},
		"member of no CloudEvent":    {nil, `{"title":"x","traceparent":"a"}`, "", ""},
		"member that is not a text":  {nil, `{"specversion":"1.0","traceparent":{"x":1}}`, "", ""},
		"member below another one":   {nil, `{"specversion":"1.0","data":{"traceparent":"a"}}`, "", ""},
		"an object that is cut":      {nil, `{"specversion":"1.0","traceparent":"a","tracest`, "a", ""},
		"an empty header and member": {map[string][]string{"traceparent": {""}}, `{"specversion":"1.0","traceparent":"a"}`, "a", ""},
	} {
		parent, state := event.Message{Header: test.header, Data: []byte(test.body)}.TraceContext()
		if parent != test.parent || state != test.state {
			t.Errorf("%s: got %q and %q, want %q and %q", name, parent, state, test.parent, test.state)
		}
	}
}
