package throttle

import (
	"log/slog"
	"sync"
	"time"
)

// maxPauses bounds the destinations whose pauses an instance remembers; a workspace has fewer busy channels.
const maxPauses = 10_000

// pauses remembers which destinations rest.
type pauses struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (p *pauses) learn(now time.Time, durations map[string]time.Duration) {
	if len(durations) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil || len(p.until) >= maxPauses {
		p.until = make(map[string]time.Time)
	}
	for destination, d := range durations {
		if until := now.Add(d); until.After(p.until[destination]) {
			p.until[destination] = until
		}
	}
}

func (p *pauses) left(destination string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, known := p.until[destination]
	if !known {
		return 0
	}
	left := time.Until(until)
	if left <= 0 {
		delete(p.until, destination)
		return 0
	}
	return left
}

// maxNoted bounds the categories that refusals remembers.
const maxNoted = 1000

// refusals keeps the log short: what concerns a category is said once, or once in a while.
type refusals struct {
	mu       sync.Mutex
	tooLarge map[string]bool
	reported time.Time
}

// reportEvery is how often a log that cannot be read is complained about.
const reportEvery = time.Minute

// neverFits says once for each category that an event asks for more slots than a limit has. A limit of 0 is meant so.
func (r *refusals) neverFits(logger *slog.Logger, request Request, d Decision) {
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
		"level", d.Node.Level, "limit", d.Limit.String())
}

func (r *refusals) report(logger *slog.Logger, category string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.reported) < reportEvery {
		return
	}
	r.reported = time.Now()
	logger.Error("event cannot be judged", "category", category, "error", err)
}
