package ingest

import (
	"net/http"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestNobodyGuessesTheMessageID gives an alert a Nats-Msg-Id that only its client can cause, and always the same one.
func TestNobodyGuessesTheMessageID(t *testing.T) {
	t.Parallel()
	const id = "f1 firing 2026-01-02T03:04:05Z"
	of := func(category, token string) string {
		return maker{category: category, header: http.Header{"Authorization": {token}}}.secretMessageID(id)
	}
	own := of("security", "Bearer a")
	testkit.Equal(t, of("security", "Bearer a"), own, "Nats-Msg-Id of the repeated alert")
	for _, other := range []string{of("security", "Bearer b"), of("payments", "Bearer a"), of("security", ""), "security/" + id} {
		testkit.Equal(t, own == other, false, "another client or category has the same Nats-Msg-Id")
	}
}
