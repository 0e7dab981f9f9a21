package sink

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var fired = event.Event{
	ID: "e-1", Category: "payments.refunds", Title: "refunds fail", Text: "all of them", Severity: event.SeverityError,
	Status: event.StatusFiring, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
}
