package slack

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// answering is a transport. It reads a request and answers at once.
type answering struct{ body string }

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	_, err := io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: io.NopCloser(strings.NewReader(a.body))}, err
}

// BenchmarkSend measures a post without the network: whole, its preparation, and the rest.
func BenchmarkSend(b *testing.B) {
	s := newTestSlack(b, Options{Token: "xoxb-1", Channel: "C0000001", APIURL: "http://slack.invalid"})
	s.transport.RegisterProtocol("http", answering{`{"ok":true,"channel":"C0000001","ts":"1700000000.000100","message":{"text":"` +
		strings.Repeat("x", 1000) + `"}}`})
	d := usual()
	prepared := s.Prepare(d)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"whole", func() error { _, err := s.Send(b.Context(), d); return err }},
		{"prepare", func() error { s.Prepare(d); return nil }},
		{"prepared", func() error { _, err := s.Send(b.Context(), prepared); return err }},
	} {
		b.Run(step.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				testkit.NoError(b, step.do())
			}
		})
	}
}
