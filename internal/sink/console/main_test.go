package console

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	fired = event.Event{
		ID: "e-1", Category: "payments.refunds", Title: "refunds fail", Text: "all of them", Severity: event.SeverityError,
		Status: event.StatusFiring, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	ended = event.Event{
		ID: "e-2", Category: "payments.refunds", Title: "refunds work", Severity: event.SeverityError,
		Status: event.StatusResolved, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 9, 5, 0, time.UTC),
	}
)

// send prints an event without a usage or a receipt.
func send(ctx context.Context, s sink.Sink, e event.Event) error {
	_, err := s.Send(ctx, sink.Delivery{Event: e})
	return err
}

// wantFailure checks the class, the channel and the cause of a failure.
func wantFailure(t *testing.T, what string, err error, class sink.Class, cause error) {
	t.Helper()
	failure, known := errors.AsType[*sink.Error](err)
	if !known || failure.Class != class || failure.Channel != "console" || !errors.Is(failure, cause) {
		t.Errorf("%s: got %v, want %s of the console because of %v", what, err, class, cause)
	}
}

// Preparing an event changes nothing.
func TestPrepare(t *testing.T) {
	t.Parallel()
	c := New(Options{})
	d := sink.Delivery{Event: fired}
	testkit.EqualDeeply(t, c.Prepare(d), d, "prepared")
}
