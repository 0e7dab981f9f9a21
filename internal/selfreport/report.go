package selfreport

import (
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/livelimits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Reporter makes the reports of a worker.
type Reporter struct {
	Settings   config.Config
	Version    string
	Started    time.Time
	Counts     *status.Counts
	Suppressed *status.Suppression
	Journal    *journal.Recorder // nil: there is no journal
	Channels   []string          // that the settings name

	// Ready returns an error that explains why the worker is not ready.
	Ready func() error
	// Failing returns why the latest post failed, or storing what the worker stores, or why live limits are not followed; nil after a success.
	Failing func() error
	// Parts returns what decides and paces; found is false while the worker starts.
	Parts func() (parts Parts, found bool)
}

// Parts are what a report asks about limits and channels.
type Parts struct {
	Limiter *throttle.Limiter
	Pacer   *pacing.Pacer
	Live    *livelimits.Live
}

// mostReason bounds the characters of the reason why a worker is not ready, or of what fails.
const mostReason = 500

// reasonOf returns an error on one line; "" for nil.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	return plain.Short(strings.ReplaceAll(err.Error(), "\n", "; "), mostReason)
}

// Report returns the present report of the instance.
func (r Reporter) Report(instance string) status.Report {
	counted := r.Counts.Now()
	host, _ := os.Hostname() // "" if the system does not know it
	report := status.Report{
		Worker: status.Worker{
			Instance: instance, Name: host, Process: os.Getpid(), Version: r.Version, Started: r.Started.UTC(), Up: time.Since(r.Started), InHand: counted.InHand,
			PerMinute: counted.PerMinute, Settings: r.Settings.Shared, NotReady: reasonOf(r.Ready()), Failing: reasonOf(r.Failing()),
		},
		Minutes: counted.Minutes, SlowestCall: counted.SlowestCall, Suppressed: r.Suppressed.Now(), LimitsUnread: true,
	}
	report.Ready = report.NotReady == ""
	if health := r.Journal.Health(); health != (journal.Health{}) {
		report.Journal = &health
	}
	parts, found := r.Parts()
	if found {
		if cause := parts.Limiter.Usage().PolicyActs(); cause != nil {
			report.Degraded = r.Settings.Redis.Failure
			if report.Ready { // otherwise it has said why
				report.Failing = reasonOf(errors.Join(cause, r.Failing()))
			}
		}
		report.Revision = parts.Limiter.Rules().Position.ID()
		report.Limits, report.LimitsUnread = limitsInUse(parts.Limiter.Usage(), counted)
		if applied := parts.Live.Applied(); applied != nil {
			report.Changes, report.Mutes = status.Changes(*applied), status.Mutes(*applied)
		}
	}
	report.Channels = r.channels(counted, parts.Pacer)
	if found {
		report.Budgets = r.budgets(parts.Pacer.Use())
	}
	return report
}

// limitsInUse returns the limits that have used slots or denied events in the last minute, and whether their use is not known.
func limitsInUse(usage *throttle.Usage, counted status.Counted) (reported []status.Limit, isUnread bool) {
	type place struct{ level, path string }
	denials := make(map[place]int64)
	for denial, n := range counted.Denials {
		if node, found := usage.NodeOf(denial.Category, denial.Level); found {
			denials[place{denial.Level, node.Path}] += n
		}
	}
	uses, known := usage.Latest()
	for _, use := range uses {
		limit, denied := status.Limit{Use: use}, denials[place{use.Level, use.Path}]
		if use.Used == 0 && denied == 0 {
			continue
		}
		if node, _ := usage.NodeOf(use.Path, use.Level); use.Full() || len(node.Limits) == 1 {
			limit.PerMinute = denied
		}
		reported = append(reported, limit)
	}
	slices.SortFunc(reported, status.CompareLimits)
	return reported, !known
}

func (r Reporter) channels(counted status.Counted, pacer *pacing.Pacer) []status.Channel {
	rate := 0.0
	if setup.Budgets(r.Settings).Channel.Interval > 0 {
		rate = float64(r.Settings.Slack.Rate.Count) / r.Settings.Slack.Rate.Window.Seconds()
	}
	paced := make(map[string]time.Time)
	if pacer != nil {
		use := pacer.Use()
		for _, channel := range use.Channels {
			paced[channel.Channel] = use.At.Add(channel.Wait).UTC().Truncate(time.Millisecond)
		}
	}
	var channels []status.Channel
	for _, name := range r.Channels {
		channel := status.Channel{Name: name, PerMinute: counted.Taken[name], Rate: rate, Held: counted.Held[name], PacedUntil: paced[name]}
		if last, known := counted.Digests[name]; known {
			channel.LastDigest = last.UTC()
		}
		if pacer != nil && pacer.Paused(name) > 0 {
			channel.PausedUntil = time.Now().Add(pacer.Paused(name)).UTC().Truncate(time.Millisecond)
		}
		channels = append(channels, channel)
	}
	return channels
}

// budgets returns the use of the budgets that are set.
func (r Reporter) budgets(use pacing.Use) (budgets []status.Budget) {
	set := setup.Budgets(r.Settings)
	add := func(name string, rate limits.Limit, window pacing.Window, use pacing.BudgetUse) {
		if window.Count == 0 {
			return
		}
		budget := status.Budget{Name: name, Limit: rate.String(), Used: int64(use.Used), Size: int64(window.Count), Waiting: int64(use.Waiting)}
		if use.Paused > 0 {
			budget.PausedUntil = time.Now().Add(use.Paused).UTC().Truncate(time.Millisecond)
		}
		budgets = append(budgets, budget)
	}
	add("workspace", r.Settings.Slack.WorkspaceRate, set.Workspace, use.Workspace)
	add("updates", r.Settings.Slack.UpdateRate, set.Updates, use.Updates)
	add("lookups", r.Settings.Slack.LookUpRate, set.LookUps, use.LookUps)
	return budgets
}
