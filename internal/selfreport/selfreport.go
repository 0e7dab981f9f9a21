// Package selfreport makes the report that a worker gives about itself, and compares the settings of all workers.
//
// It owns two things: the decorators, which count the values of the metrics for the report, and the [Reporter]. A new Reporter is complete;
// its reports leave out the parts that have not started yet. All methods may run at once, except that one goroutine calls
// [Comparison.Compare].
package selfreport

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Outcomes counts the outcomes of events on their way to the metrics.
type Outcomes struct {
	consume.EventMetrics
	consume.DeliveryMetrics
	consume.RoomMetrics
	Counts *status.Counts
}

// Event implements [consume.EventMetrics].
func (m Outcomes) Event(category, outcome string, n int) {
	m.EventMetrics.Event(category, outcome, n)
	m.Counts.Event(outcome, n)
}

// Dropped implements [consume.EventMetrics].
func (m Outcomes) Dropped(category, level string, n int, trace string) {
	m.EventMetrics.Dropped(category, level, n, trace)
	m.Counts.Denied(category, level, n)
}

// Delayed implements [consume.RoomMetrics].
func (m Outcomes) Delayed() {
	m.RoomMetrics.Delayed()
	m.Counts.Delay()
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

// Outage notes whether the failure policy acts, on its way to the metrics.
type Outage struct {
	throttle.Metrics
	Counts *status.Counts
}

// PolicyActs implements [throttle.Metrics].
func (m Outage) PolicyActs() {
	m.Metrics.PolicyActs()
	m.Counts.PolicyActs()
}

// PolicyRests implements [throttle.Metrics].
func (m Outage) PolicyRests() {
	m.Metrics.PolicyRests()
	m.Counts.PolicyRests()
}

// Sink counts what each channel took.
type Sink struct {
	*sink.Annotated
	Counts *status.Counts
}

// Send delivers a notification.
func (s Sink) Send(ctx context.Context, d sink.Delivery) (receipt string, err error) {
	receipt, err = s.Annotated.Send(ctx, d)
	if err == nil {
		s.Counts.Took(s.Destination(d))
	}
	return receipt, err
}

// Digests counts the digests that each channel took.
type Digests struct {
	sink.Digests
	Counts *status.Counts
}

// SendSummary delivers a digest.
func (s Digests) SendSummary(ctx context.Context, d summary.Digest) error {
	err := s.Digests.SendSummary(ctx, d)
	if err == nil {
		s.Counts.Digest(d.Channel)
	}
	return err
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
