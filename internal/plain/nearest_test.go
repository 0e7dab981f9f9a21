package plain_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"payments", "payments.refunds", "security", "db"}
	for text, want := range map[string]string{
		"paymets": "payments", "payment.refund": "payments.refunds", "securty": "security", "d": "db",
		"payments": "", "deploys": "", "": "", "x": "",
	} {
		testkit.Equal(t, plain.Nearest(text, names), want, "nearest to %q", text)
	}
}
