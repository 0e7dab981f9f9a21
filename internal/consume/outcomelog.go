package consume

import (
	"context"
	"log/slog"
)

// logOutcomes logs a line for each event of a batch that has ended, if debug lines are enabled. Otherwise it looks at no event.
func (w *Worker) logOutcomes(settled ...settlement) {
	if !w.logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, s := range settled {
		if s.outcome == "" {
			continue
		}
		attributes := []any{"id", w.shownID(s.message), "category", s.category, "outcome", string(s.outcome)}
		if level := levelOf(s.denial); level != "" {
			attributes = append(attributes, "limit_level", level) // "level" is the line's own
		}
		w.logger.Debug("event has ended", s.traced(attributes...)...)
	}
}
