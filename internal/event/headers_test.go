package event_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestHeaders keeps what Decode and TraceContext read of a message's headers, and nothing else.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header map[string][]string
		want   []string // names
	}{
		"none":                      {nil, nil},
		"of a CloudEvent":           {map[string][]string{"ce-id": {"1"}, "Ce-Source": {"/a"}, "CE-TYPE": {"t"}, "ce-specversion": {"1.0"}}, []string{"ce-id", "ce-source", "ce-specversion", "ce-type"}},
		"several spellings":         {map[string][]string{"ce-id": {"1"}, "CE-ID": {"2"}, "Ce-Id": {"3"}}, []string{"ce-id"}},
		"a trace":                   {map[string][]string{"Traceparent": {"a"}, "tracestate": {"b"}, "ce-traceparent": {"c"}, "ce-tracestate": {"d"}}, []string{"ce-traceparent", "ce-tracestate", "traceparent", "tracestate"}},
		"a media type":              {map[string][]string{"content-type": {"text/plain"}}, []string{"Content-Type"}},
		"without a value":           {map[string][]string{"ce-id": {}, "Content-Type": {""}}, nil},
		"of nobody":                 {map[string][]string{"X-Trace": {"1"}, "ce-extension": {"x"}, "Bad Name": {"x"}}, nil},
		"of the server and workers": {map[string][]string{"Nats-Msg-Id": {"1"}, "Status": {"409"}, "Notifier-Id": {"x"}}, nil},
	} {
		got := event.Headers(test.header)
		testkit.EqualSlices(t, slices.Sorted(maps.Keys(got)), test.want, "%s: names of the headers", name)
		decoder := event.Decoder{Prefix: "notify"}
		before, _ := decoder.Decode(event.Message{Subject: "notify.a", Header: test.header, Data: []byte(`{"title":"x"}`)})
		after, _ := decoder.Decode(event.Message{Subject: "notify.a", Header: got, Data: []byte(`{"title":"x"}`)})
		if name != "of the server and workers" {
			testkit.Equal(t, after.ID, before.ID, "%s: ID of the event", name)
		}
		testkit.Equal(t, after.Title, before.Title, "%s: title of the event", name)
	}
}
