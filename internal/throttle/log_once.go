package throttle

import (
	"log/slog"
	"sync"
	"time"
)

// maxNoted bounds the categories that are remembered.
const maxNoted = 1000

// logOnce keeps the log short: it says what concerns a category once, or once in a while.
type logOnce struct {
	mu       sync.Mutex
	tooLarge map[string]bool
	reported time.Time
}

// reportEvery is how often a log that cannot be read is complained about.
const reportEvery = time.Minute

// exceedsCapacity says once for each category that an event asks for more slots than a limit has. A limit of 0 is meant to block.
func (r *logOnce) exceedsCapacity(logger *slog.Logger, request Request, d Decision) {
	if d.Limit.Count == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tooLarge == nil {
		r.tooLarge = make(map[string]bool)
	}
	if r.tooLarge[request.Category] || len(r.tooLarge) >= maxNoted {
		return
	}
	r.tooLarge[request.Category] = true
	logger.Warn("event never fits its limit", "category", request.Category, "cost", request.Cost,
		"limit_level", d.Node.Level, "limit", d.Limit.String())
}

// report says that an event cannot be evaluated.
func (r *logOnce) report(logger *slog.Logger, category string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.reported) < reportEvery {
		return
	}
	r.reported = time.Now()
	logger.Error("event cannot be evaluated", "category", category, "error", err)
}
