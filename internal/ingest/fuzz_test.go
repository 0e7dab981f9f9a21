package ingest

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
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
		m := maker{decoder: event.Decoder{Prefix: "notify", MaxBytes: 1 << 16}, category: "payments.eu", header: header}
		messages, refusal := m.messages([]byte(body), asked)
		if refusal == nil {
			checkMessages(t, m, messages)
		}
	})
}

// checkMessages checks messages of the category payments.eu.
func checkMessages(t *testing.T, m maker, messages []*nats.Msg) {
	t.Helper()
	for i, message := range messages {
		for name := range message.Header {
			if name != headerMessageID && name != headerContentType && !strings.HasPrefix(name, "ce-") {
				t.Errorf("header %q: got it in the message, want it left out", name)
			}
		}
		if msgID := message.Header.Get(headerMessageID); msgID != "" && !strings.HasPrefix(msgID, "payments.eu/") {
			t.Errorf("Nats-Msg-Id: got %q, want one of payments.eu/", msgID)
		}
		ack := &jetstream.PubAck{Stream: "NOTIFICATIONS", Sequence: uint64(i) + 1}
		stored := event.Message{Subject: message.Subject, Header: message.Header, Data: message.Data, Stream: ack.Stream, Sequence: ack.Sequence}
		decoded, err := m.decoder.Decode(stored)
		parts, _ := m.decoder.Parts(stored)
		reported := m.idOf(message, ack)
		if decoded.ID != reported || len(parts) == 0 && (err != nil || decoded.Category != "payments.eu") {
			t.Errorf("ID in the answer: got %q, want that of the worker, %q of %q with %v", reported, decoded.ID, decoded.Category, err)
		}
	}
}

// stored is a publisher that stores everything at once.
type stored struct{ messages []*nats.Msg }

func (s *stored) PublishMsgAsync(m *nats.Msg, _ ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	s.messages = append(s.messages, m)
	done := make(acknowledged, 1)
	done <- &jetstream.PubAck{Stream: "NOTIFICATIONS", Sequence: uint64(len(s.messages))}
	return done, nil
}

type acknowledged chan *jetstream.PubAck

func (a acknowledged) Ok() <-chan *jetstream.PubAck { return a }
func (a acknowledged) Err() <-chan error            { return nil }
func (a acknowledged) Msg() *nats.Msg               { return nil }

// Counts is a fake of the metrics, for the tests of both packages.
type Counts struct{ testkit.Counts }

func (c *Counts) Request(status int)        { c.Add(http.StatusText(status), 1) }
func (c *Counts) Client(name string)        { c.Add("client "+name, 1) }
func (c *Counts) Count(client, what string) { c.Add(what+" "+client, 1) }
func (c *Counts) Bytes(n int)               { c.Add("bytes", n) }
func (c *Counts) Published(time.Duration)   { c.Add("published", 1) }
func (c *Counts) Connections(delta int)     { c.Add("connections", delta) }
func (c *Counts) Evicted()                  { c.Add("evicted", 1) }

// FuzzGroup splits any body, read in pieces of any size. Every alert of a whole body is published or refused, each as one message that a
// worker decodes. Nothing of the memory for bodies stays in use.
func FuzzGroup(f *testing.F) {
	for _, body := range []string{
		`{"alerts":[{"labels":{"alertname":"x"},"fingerprint":"1","startsAt":"2026-01-02T03:04:05Z"},{}],"externalURL":"http://a"}`, `{"receiver":"r","alerts":[{"labels":{"alertname":"y"}}]}`,
		"\ufeff {\"alerts\":[{\"status\":\"loud\"}]} ", `{"alerts":[]}`, `[]`, `{"alerts":[{]}`, `{"alerts":[1,"x",null]}`, `{"a":{"alerts":[{}]}}`, `{"alerts":[{}]}{`, "\xff", `{"\xff":1,"alerts":[{"labels":{"alertname":"\xff"}}]}`,
	} {
		f.Add(body, uint8(7))
	}
	f.Fuzz(func(t *testing.T, body string, size uint8) {
		publisher := new(stored)
		h := handler{
			decoder: event.Decoder{Prefix: "notify", MaxBytes: 1 << 10}, mostGroup: 1 << 16, metrics: new(Counts),
			store: store{publisher: publisher, available: func() error { return nil }, metrics: new(Counts), storing: oplog.NewCondition(slog.New(slog.DiscardHandler), "fails", "works")},
		}
		m := maker{decoder: h.decoder, category: "payments.eu"}
		in := &room{of: &h.bodies, from: newClient("client", 0, 0)}
		_, refusal := h.split(iotest.DataErrReader(&pieces{strings.NewReader(body), int(size)%64 + 1}), request{maker: m, from: in.from}, in)
		in.leave()
		testkit.Equal(t, h.bodies.held.Load(), 0, "bytes in use at the end")
		checkMessages(t, m, publisher.messages)
		var whole map[string]json.RawMessage
		var alerts []json.RawMessage
		if refusal != nil || json.Unmarshal([]byte(strings.TrimPrefix(body, "\ufeff")), &whole) != nil || json.Unmarshal(whole["alerts"], &alerts) != nil {
			testkit.Equal(t, refusal != nil, true, "%q is refused", body)
			return
		}
		testkit.Equal(t, len(publisher.messages), len(alerts), "messages of %q", body)
	})
}

// pieces reads a few bytes at a time.
type pieces struct {
	io.Reader
	most int
}

func (p *pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.most)]) }
