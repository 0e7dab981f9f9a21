// Package selfreport makes the report that a worker gives about itself, and compares the settings of all workers.
//
// It owns two things: [Outcomes] and [Calls], which count events and calls to Redis for the report, and the [Reporter]. A new Reporter is complete;
// its reports leave out the parts that have not started yet. All methods may run at once, except that one goroutine calls
// [Comparison.Compare].
package selfreport

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// Outcomes counts the outcomes of events on their way to the metrics.
type Outcomes struct {
	outcome.EventMetrics
	consume.DeliveryMetrics
	outcome.RoomMetrics
	Counts *status.Counts
}

// Event implements [outcome.EventMetrics].
func (m Outcomes) Event(category, outcome string, n int) {
	m.EventMetrics.Event(category, outcome, n)
	m.Counts.Event(outcome, n)
}

// Dropped implements [outcome.EventMetrics].
func (m Outcomes) Dropped(category, level string, n int, trace string) {
	m.EventMetrics.Dropped(category, level, n, trace)
	m.Counts.Denied(category, level, n)
}

// Delayed implements [outcome.RoomMetrics].
func (m Outcomes) Delayed(category, level string) {
	m.RoomMetrics.Delayed(category, level)
	m.Counts.Delay(category, level)
}

// InFlight implements [consume.DeliveryMetrics].
func (m Outcomes) InFlight(delta int) {
	m.DeliveryMetrics.InFlight(delta)
	m.Counts.InFlight(delta)
}

// Held implements [consume.DeliveryMetrics].
func (m Outcomes) Held(channel string, delta int) {
	m.DeliveryMetrics.Held(channel, delta)
	m.Counts.Held(channel, delta)
}

// Calls is a hook of the Redis client that notes how long calls take.
type Calls struct{ Counts *status.Counts }

// DialHook implements [redis.Hook].
func (Calls) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h Calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		defer h.note(time.Now())
		return next(ctx, command)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (h Calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		defer h.note(time.Now())
		return next(ctx, commands)
	}
}

func (h Calls) note(began time.Time) { h.Counts.Call(time.Since(began)) }
