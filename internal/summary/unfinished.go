package summary

import (
	"log/slog"
	"sync"
)

// unfinished collects the digests that a shutdown has interrupted, and logs one line about all of them.
type unfinished struct {
	mu       sync.Mutex
	stopping bool
	dropped  map[string]int64 // by channel: drops in the digest
	err      error            // of the first digest
}

func (u *unfinished) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopping = true
}

// add adds a digest of a channel during a shutdown. Otherwise it returns false, and the caller logs the digest itself.
func (u *unfinished) add(channel string, dropped int64, err error) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.stopping {
		return false
	}
	if u.dropped == nil {
		u.dropped, u.err = make(map[string]int64), err
	}
	u.dropped[channel] = max(dropped, u.dropped[channel])
	return true
}

func (u *unfinished) log(logger *slog.Logger) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.dropped) == 0 {
		return
	}
	var sum int64
	for _, dropped := range u.dropped {
		sum += dropped
	}
	logger.Warn("shutdown interrupted digests; their counts carry over", "digests", len(u.dropped), "dropped", sum, "error", u.err)
}
