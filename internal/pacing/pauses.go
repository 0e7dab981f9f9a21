package pacing

import (
	"sync"
	"time"
)

// maxPauses bounds the channels and paths that an instance remembers. A workspace has fewer busy channels.
const maxPauses = 10_000

// pauses remembers what is paused: channels, the workspace, the updates, the look-ups.
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
	for name, d := range durations {
		if until := now.Add(d); until.After(p.until[name]) {
			p.until[name] = until
		}
	}
}

// left returns the longest remaining pause of the names.
func (p *pauses) left(now time.Time, names ...string) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		left := p.until[name].Sub(now)
		if left <= 0 {
			delete(p.until, name)
		}
		longest = max(longest, left)
	}
	return longest
}
