package ingest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// FuzzMessage makes messages of any request. A message has the category of the path and the chosen headers alone. A worker decodes it to
// the ID in the answer.
func FuzzMessage(f *testing.F) {
	for _, seed := range []struct{ contentType, key, id, body string }{
		{"", "", "", `{"title":"x","id":"1","category":"security"}`}, {"text/plain", "key", "", "text"}, {cloudEvent, "", "", `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"x"}`},
		{cloudEventBatch, "k", "", `[{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"x"}]`}, {"application/json", "", "%C3%BC", `{"title":"x"}`},
		{"", "\x7f ", "", `{"alerts":[{"labels":{"alertname":"x"},"fingerprint":"1"},{"labels":{"alertname":"y"}}]}`},
		{"", "k", "", `{"alerts":[{"labels":{"alertname":"x"},"startsAt":"2026-01-02T03:04:05Z"}]}`}, {"", strings.Repeat("k", 100), "", "x"},
	} {
		f.Add(seed.contentType, seed.key, seed.id, seed.body)
	}
	f.Fuzz(func(t *testing.T, contentType, key, id, body string) {
		header := http.Header{
			"Content-Type": {contentType}, "Idempotency-Key": {key}, "Nats-Rollup": {"all"}, "Notifier-Id": {"forged"}, "Nats-Msg-Id": {"forged"},
		}
		if id != "" {
			header["Ce-Id"], header["Ce-Source"], header["Ce-Type"], header["Ce-Specversion"] = []string{id}, []string{"/s"}, []string{"t"}, []string{"1.0"}
		}
		asked, refusal := formOf(header)
		if refusal != nil {
			return
		}
		h := handler{decoder: event.Decoder{Prefix: "notify", MaxBytes: 1 << 16}}
		messages, refusal := h.messages([]byte(body), asked, maker{decoder: h.decoder, category: "payments.eu", header: header})
		if refusal != nil {
			return
		}
		for i, m := range messages {
			for name := range m.Header {
				if name != headerMessageID && name != headerContentType && !strings.HasPrefix(name, "ce-") {
					t.Errorf("header %q: got it in the message, want it left out", name)
				}
			}
			if msgID := m.Header.Get(headerMessageID); msgID != "" && !strings.HasPrefix(msgID, "payments.eu/") {
				t.Errorf("Nats-Msg-Id: got %q, want one of payments.eu/", msgID)
			}
			ack := &jetstream.PubAck{Stream: "NOTIFICATIONS", Sequence: uint64(i) + 1}
			stored := event.Message{Subject: m.Subject, Header: m.Header, Data: m.Data, Stream: ack.Stream, Sequence: ack.Sequence}
			decoded, err := h.decoder.Decode(stored)
			parts, _ := h.decoder.Parts(stored)
			told := maker{decoder: h.decoder, category: "payments.eu"}.idOf(m, ack)
			if decoded.ID != told || len(parts) == 0 && (err != nil || decoded.Category != "payments.eu") {
				t.Errorf("ID in the answer: got %q, want that of the worker, %q of %q with %v", told, decoded.ID, decoded.Category, err)
			}
		}
	})
}
