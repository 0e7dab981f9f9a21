// Package oplog keeps the log of a long failure short.
//
// A [Condition] logs when something begins to fail and when it recovers. [Repeated] logs the first of many equal events at once, and the
// following ones at most once per interval, with their number.
//
// All methods may be called concurrently. Logging never fails. Repeated owns timers, and [Repeated.Stop] ends them.
package oplog

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Every is the usual interval between two log lines about one subject.
const Every = time.Minute

// Condition is something that fails at times. It starts as working.
type Condition struct {
	logger          *slog.Logger
	failed, working string

	err atomic.Pointer[error] // nil while it works
}

// NewCondition returns a condition. The message failed is logged as a warning, the message working as information.
func NewCondition(logger *slog.Logger, failed, working string) *Condition {
	return &Condition{logger: logger, failed: failed, working: working}
}

// Note records the result of an attempt, and logs it if the condition changes. A failure is logged with its error and the attributes.
func (c *Condition) Note(err error, attributes ...any) {
	if err != nil {
		if c.err.Swap(&err) == nil {
			c.logger.Warn(c.failed, append(attributes, "error", err)...) //nolint:sloglint // a constant of the caller
		}
		return
	}
	if c.err.Load() != nil && c.err.Swap(nil) != nil {
		c.logger.Info(c.working, attributes...) //nolint:sloglint // a constant of the caller
	}
}

// Failing returns the error of the latest attempt, behind the message with which the log reports it.
func (c *Condition) Failing() error {
	if err := c.Err(); err != nil {
		return fmt.Errorf("%s: %w", c.failed, err)
	}
	return nil
}

// Err returns the error of the latest attempt.
func (c *Condition) Err() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Repeated summarises events that may come in large numbers, separately for each key. The caller bounds the number of keys.
type Repeated[K comparable] struct {
	write func(key K, count int, newest []any)

	mu      sync.Mutex
	counts  map[K]*repeats
	stopped bool
}

// repeats are the events of one key since the last log line.
type repeats struct {
	count  int
	newest []any // attributes
	timer  *time.Timer
}

// NewRepeated returns a summary of events. It calls write for each line, with the number of events since the last line of the key and the
// attributes of the newest one. The function must not call the summary.
func NewRepeated[K comparable](write func(key K, count int, newest []any)) *Repeated[K] {
	return &Repeated[K]{write: write, counts: make(map[K]*repeats)}
}

// Add counts n events. The first events of a key are logged at once, and so is every event after Stop.
func (r *Repeated[K]) Add(key K, n int, attributes ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, isRunning := r.counts[key]
	if !isRunning {
		known = &repeats{timer: time.AfterFunc(Every, func() { r.again(key) })}
		r.counts[key] = known
	}
	known.count, known.newest = known.count+n, attributes
	if !isRunning || r.stopped {
		r.log(key, known)
	}
	if r.stopped {
		known.timer.Stop()
	}
}

// again logs the events of the last interval. If there were none, the next event is logged at once.
func (r *Repeated[K]) again(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.counts[key]
	switch {
	case r.stopped:
	case known.count == 0:
		delete(r.counts, key)
	default:
		r.log(key, known)
		known.timer.Reset(Every)
	}
}

func (r *Repeated[K]) log(key K, known *repeats) {
	if known.count > 0 {
		r.write(key, known.count, known.newest)
	}
	known.count, known.newest = 0, nil
}

// Stop logs what has not been logged yet, and stops the timers.
func (r *Repeated[K]) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	for key, known := range r.counts {
		known.timer.Stop()
		r.log(key, known)
	}
}
