package ingest

import (
	"log/slog"

	"github.com/seed-4578ace9/notifier/internal/oplog"
)

// losses logs events that do not reach Slack because of their senders, which show nobody the answers of this server.
type losses struct {
	refusals  *oplog.Repeated[string]   // requests that would fail again, by client
	strangers *oplog.Repeated[struct{}] // requests without a valid token
	truncated *oplog.Repeated[string]   // alerts that Alertmanager left out of a group, by client
}

func newLosses(logger *slog.Logger) losses {
	return losses{
		refusals: oplog.NewRepeated(func(client string, requests int, newest []any) {
			logger.Warn("refused requests of a client", append([]any{"client", client, "requests", requests}, newest...)...)
		}),
		strangers: oplog.NewRepeated(func(_ struct{}, requests int, newest []any) {
			logger.Warn("refused requests without a valid token", append([]any{"requests", requests}, newest...)...)
		}),
		truncated: oplog.NewRepeated(func(client string, alerts int, newest []any) {
			logger.Warn("Alertmanager left out the alerts above max_alerts of its webhook", append([]any{"client", client, "alerts", alerts}, newest...)...)
		}),
	}
}

func (l losses) stop() {
	l.refusals.Stop()
	l.strangers.Stop()
	l.truncated.Stop()
}
