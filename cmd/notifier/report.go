package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/lua"
)

// countedOutcomes counts for the worker's report what the metrics count.
type countedOutcomes struct {
	consume.Metrics
	counts *status.Counts
}

func (m countedOutcomes) Event(category, outcome string, n int) {
	m.Metrics.Event(category, outcome, n)
	m.counts.Event(outcome, n)
}

func (m countedOutcomes) Dropped(category, level string, n int, trace string) {
	m.Metrics.Dropped(category, level, n, trace)
	m.counts.Denied(category, level, n)
}

func (m countedOutcomes) Delayed() {
	m.Metrics.Delayed()
	m.counts.Delay()
}

func (m countedOutcomes) InFlight(delta int) {
	m.Metrics.InFlight(delta)
	m.counts.InFlight(delta)
}

// countedOutage notes for the worker's report whether the failure policy acts.
type countedOutage struct {
	*telemetry.Metrics
	counts *status.Counts
}

func (m countedOutage) Degraded(on bool) {
	m.Metrics.Degraded(on)
	m.counts.Degraded(on)
}

// countedSink counts for the worker's report what each channel took.
type countedSink struct {
	*sink.Annotated
	counts *status.Counts
}

func (s countedSink) Send(ctx context.Context, d sink.Delivery) (receipt string, err error) {
	receipt, err = s.Annotated.Send(ctx, d)
	if err == nil {
		s.counts.Took(s.Destination(d))
	}
	return receipt, err
}

func (s countedSink) SendSummary(ctx context.Context, d summary.Digest) error {
	err := s.Annotated.SendSummary(ctx, d)
	if err == nil {
		s.counts.Digest(d.Channel)
	}
	return err
}

// callTimes notes for the worker's report how long calls to Redis take.
type callTimes struct{ counts *status.Counts }

func (callTimes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h callTimes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		defer h.note(time.Now())
		return next(ctx, command)
	}
}

func (h callTimes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		defer h.note(time.Now())
		return next(ctx, commands)
	}
}

func (h callTimes) note(began time.Time) { h.counts.Call(time.Since(began)) }

// fleetOptions say what this worker announces, and what it tells whoever asks.
func (w *worker) fleetOptions(ctx context.Context) fleet.Options {
	v, _, _ := buildInfo()
	return fleet.Options{
		Deployment: w.settings.Redis.Prefix,
		Version:    v,
		Settings:   w.settings.SharedHash(),
		Layout:     lua.Layout,
		Report:     func(instance string, most int64) ([]byte, error) { return w.report(ctx, instance).Encode(most) },
		Compared:   w.compareSettings,
		Logger:     w.logger,
	}
}

// mostNotReady is how many characters a report has of what keeps a worker from being ready.
const mostNotReady = 500

// report is what this worker tells of itself.
func (w *worker) report(ctx context.Context, instance string) status.Report {
	counted := w.counts.Now()
	host, _ := os.Hostname() // "" where the system does not know it
	v, _, _ := buildInfo()
	report := status.Report{
		Worker: status.Worker{
			Instance: instance, Name: host, Process: os.Getpid(), Version: v, Started: w.begun.UTC(), InHand: counted.InHand,
			PerMinute: counted.PerMinute, Settings: w.settings.Shared(),
		},
		Minutes: counted.Minutes, SlowestCall: counted.SlowestCall, Suppressed: w.suppressed.Now(),
		Limits: w.reportedLimits(counted), Channels: w.reportedChannels(counted),
	}
	err := w.ready(ctx)
	report.Ready = err == nil
	if err != nil {
		report.NotReady = plain.Short(strings.ReplaceAll(err.Error(), "\n", "; "), mostNotReady)
	}
	if health := w.journal.Health(); health != (journal.Health{}) {
		report.Journal = &health
	}
	if counted.Degraded {
		report.Degraded = w.settings.Redis.Failure
	}
	if limiter := w.limiter.Load(); limiter != nil {
		position := limiter.Position()
		report.Revision = fmt.Sprintf("%d:%d", position.Generation, position.Revision)
	}
	if changes := w.changes.Load(); changes != nil {
		report.Changes = status.Changes(*changes)
	}
	return report
}

// reportedLimits are the limits of which something is used, or that deny.
func (w *worker) reportedLimits(counted status.Counted) []status.Limit {
	limiter := w.limiter.Load()
	if limiter == nil {
		return nil
	}
	type place struct{ level, path string }
	denials := make(map[place]int64)
	for denial, n := range counted.Denials {
		if node, found := limiter.NodeOf(denial.Category, denial.Level); found {
			denials[place{denial.Level, node.Path}] += n
		}
	}
	var reported []status.Limit
	for _, use := range limiter.PathUses() {
		limit := status.Limit{
			Level: use.Node.Level, Path: use.Node.Path, Limit: use.Limit.String(), Used: use.Used, Size: use.Limit.Capacity(),
		}
		if limit.Full() || len(use.Node.Limits) == 1 {
			limit.PerMinute = denials[place{limit.Level, limit.Path}]
		}
		if !use.Opens.IsZero() {
			opens := use.Opens.UTC()
			limit.Next = &opens
		}
		reported = append(reported, limit)
	}
	slices.SortFunc(reported, status.CompareLimits)
	return reported
}

// reportedChannels are the channels that the settings name.
func (w *worker) reportedChannels(counted status.Counted) []status.Channel {
	rate := 0.0
	if pace := paceOf(w.settings); pace.Interval > 0 {
		rate = float64(time.Second) / float64(pace.Interval)
	}
	var channels []status.Channel
	for _, name := range w.sink.Destinations() {
		channel := status.Channel{Name: name, PerMinute: counted.Taken[name], Rate: rate}
		if last, known := counted.Digests[name]; known {
			channel.LastDigest = last.UTC()
		}
		if pacer := w.pacer.Load(); pacer != nil && pacer.Paused(name) > 0 {
			channel.PausedUntil = time.Now().Add(pacer.Paused(name)).UTC().Truncate(time.Millisecond)
		}
		channels = append(channels, channel)
	}
	return channels
}

// mismatch is what was logged of settings that differ. One goroutine has it.
type mismatch struct {
	logged string // the variables and their values; "" if no settings differ
	asked  int    // how often the others were asked for theirs without an answer
}

// unansweredMismatch is how often the others are asked for their settings before the log says that these are not known.
const unansweredMismatch = 3

// compareSettings says once that settings of the workers differ, and which.
func (w *worker) compareSettings(ctx context.Context, differ bool) {
	w.metrics.SettingsMismatch(differ)
	if !differ {
		if w.mismatch.logged != "" {
			w.logger.Info("settings of the workers are equal again")
		}
		w.mismatch = mismatch{}
		return
	}
	reports, _ := status.Workers(ctx, w.connection.Conn, w.settings.Redis.Prefix, 0) // without an answer nothing is known to differ
	found := status.Mismatches(workersOf(reports))
	values := "" // without the names of workers, which come and go
	for _, m := range found {
		values += fmt.Sprint(m.Variable, slices.Sorted(maps.Keys(m.Values)))
	}
	if len(found) == 0 {
		if w.mismatch.asked++; w.mismatch.asked != unansweredMismatch || w.mismatch.logged != "" {
			return
		}
		values = "not known"
	}
	if values == w.mismatch.logged {
		return
	}
	w.mismatch.logged = values
	w.logger.Warn("settings of the workers differ",
		"differences", cmp.Or(describeMismatches(found), "not known: no other worker answers on "+fleet.StatusSubject))
}

func workersOf(reports []status.Report) []status.Worker {
	workers := make([]status.Worker, len(reports))
	for i, report := range reports {
		workers[i] = report.Worker
	}
	return workers
}

func describeMismatches(mismatches []status.Mismatch) string {
	texts := make([]string, len(mismatches))
	for i, m := range mismatches {
		texts[i] = m.String()
	}
	return strings.Join(texts, "; ")
}
