package summary

import (
	"log/slog"
	"sync"
)

// unfinished is the digests that the stop of the worker has cut off. The log has one line about all of them.
type unfinished struct {
	mu       sync.Mutex
	stopping bool
	dropped  map[string]int64 // by channel: what the digest tells
	err      error            // of the first one
}

func (u *unfinished) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopping = true
}

// add notes a digest of a channel. It is false unless the worker stops: then the digest has a line of its own.
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

// tell writes the line, if there is something to tell.
func (u *unfinished) tell(logger *slog.Logger) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.dropped) == 0 {
		return
	}
	var sum int64
	for _, dropped := range u.dropped {
		sum += dropped
	}
	logger.Warn("digests are cut off by the stop, their counts go into the next ones", "digests", len(u.dropped), "dropped", sum, "error", u.err)
}
