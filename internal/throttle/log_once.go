package throttle

import (
	"log/slog"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/oplog"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// maxNoted bounds the categories that are remembered.
const maxNoted = 1000

// logOnce keeps the log short: it limits the lines about categories.
type logOnce struct {
	logger *slog.Logger

	mu       sync.Mutex
	tooLarge map[string]bool // categories with a line about the cost of an event
	reported time.Time       // when the last line of report was written
}

// exceedsCapacity logs once per category that an event costs more slots than a limit has. It ignores a limit of 0, which blocks on purpose.
func (r *logOnce) exceedsCapacity(request store.Request, d store.Decision) {
	if d.Limit.Count == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tooLarge[request.Category] || len(r.tooLarge) >= maxNoted {
		return
	}
	r.tooLarge[request.Category] = true
	r.logger.Warn("event costs more than its limit", "category", request.Category, "cost", request.Cost,
		"limit_level", d.Node.Level, "limit", d.Limit.String())
}

// report logs that an event cannot be evaluated, at most once a minute.
func (r *logOnce) report(category string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.reported) >= oplog.Every {
		r.reported = now
		r.logger.Error("event cannot be evaluated", "category", category, "error", err)
	}
}
