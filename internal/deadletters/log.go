package deadletters

import (
	"log/slog"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

// writeLog logs the first dead letter of a reason at once. It logs the following letters once a minute, with their number and the newest
// letter.
type writeLog struct{ *oplog.Repeated[event.Reason] }

func newWriteLog(logger *slog.Logger) writeLog {
	return writeLog{oplog.NewRepeated(func(reason event.Reason, count int, newest []any) {
		logger.Info("events ended as dead letters", append([]any{"reason", string(reason), "count", count}, newest...)...)
	})}
}

func (l writeLog) add(d Dead) {
	attributes := []any{"subject", plain.Header(d.Entry.Subject), "error", plain.Header(d.Fault.Detail)}
	if d.TraceID != "" {
		attributes = append(attributes, "trace_id", d.TraceID)
	}
	l.Add(d.Fault.Reason, 1, attributes...)
}
