package ingest

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestRefusedPublishes names what is full if JetStream has certainly not stored an event. Other failures leave that open.
func TestRefusedPublishes(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	s := &store{storing: oplog.NewCondition(log.Logger(), "cannot store events", "storing events again")}
	refusal := func(code jetstream.ErrorCode) error { return &jetstream.APIError{Code: 400, ErrorCode: code} }
	for _, test := range []struct {
		err    error
		detail string
		pause  time.Duration
	}{
		{refusal(10002), "the stream of events or its storage is full", 10 * time.Second}, // of the account
		{refusal(10023), "the stream of events or its storage is full", 10 * time.Second}, // of the server
		{refusal(10077), "the stream of events or its storage is full", 10 * time.Second}, // of the stream
		{refusal(10008), "NATS is unavailable; the event may have been stored", 2 * time.Second},
		{errors.New("timeout waiting for ack"), "NATS is unavailable; the event may have been stored", 2 * time.Second},
	} {
		got := s.failed(test.err)
		testkit.Equal(t, got.Status, http.StatusServiceUnavailable, "status after %v", test.err)
		testkit.Equal(t, got.Detail, test.detail, "detail after %v", test.err)
		testkit.Equal(t, got.retryAfter, test.pause, "Retry-After after %v", test.err)
	}
	log.WantCount(t, 1, "cannot store events")
}
