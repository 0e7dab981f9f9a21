package pacing

import (
	"sync"
	"time"
)

// maxPauses bounds the destinations and paths that an instance remembers. A workspace has fewer busy channels.
const maxPauses = 10_000

// pauses remembers which destinations are paused.
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
