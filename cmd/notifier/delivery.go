package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// openSink is a sink until it is closed.
type openSink struct {
	sink.Sink
	close func()
}

func newSink(settings config.Config, stdout io.Writer, colour bool, observe func(string, time.Duration), logger *slog.Logger) (openSink, error) {
	if settings.Sink == config.SinkConsole {
		return openSink{sink.NewConsole(stdout, colour), func() {}}, nil
	}
	template, err := slackTemplate(settings)
	if err != nil {
		return openSink{}, err
	}
	v, _, _ := buildInfo()
	slack, err := sink.NewSlack(sink.SlackOptions{
		Token:      settings.Slack.Token.Reveal(),
		WebhookURL: settings.Slack.WebhookURL.Reveal(),
		Channel:    settings.Slack.Channel,
		Routes:     settings.Slack.Routes,
		APIURL:     settings.Slack.APIURL,
		Timeout:    settings.Slack.Timeout,
		Mentions:   settings.Slack.Mentions,
		MentionFailed: func(handle string, err error) {
			logger.Warn("mention is left out", "handle", handle, "error", err)
		},
		Template: template,
		TemplateFailed: func(err error) {
			logger.Warn("message is rendered with the default template", "error", err)
		},
		Observe: func(result sink.Class, took time.Duration) { observe(string(result), took) },
		Version: v,
	})
	if err != nil {
		return openSink{}, err
	}
	return openSink{slack, slack.Close}, nil
}

// slackTemplate is the template of the settings, nil for the default one.
func slackTemplate(settings config.Config) (*sink.Template, error) {
	if settings.Slack.Template == "" {
		return nil, nil //nolint:nilnil // the default needs no template
	}
	return sink.ParseTemplate(settings.Slack.Template)
}

func checkTemplate(text string) error {
	_, err := sink.ParseTemplate(text)
	return err
}

// paceOf is how fast messages go to one destination. A terminal takes them as they come.
func paceOf(settings config.Config) throttle.Pace {
	rate := settings.Slack.Rate
	if settings.Sink == config.SinkConsole || rate.Count == 0 {
		return throttle.Pace{}
	}
	return throttle.Pace{Interval: rate.Window / time.Duration(rate.Count), Burst: settings.Slack.Burst}
}

// deliverer posts notifications and summaries, with what the gate knows of their limits.
type deliverer struct {
	sink.Sink
	gate       *throttle.Gate
	mentions   event.Table[[]string]
	mentionFor time.Duration // in which one event of a category mentions people
}

// defaultMentionFor stands in where there are no summaries, by whose interval mentions go.
const defaultMentionFor = 30 * time.Minute

func newDeliverer(s sink.Sink, gate *throttle.Gate, settings config.Config) deliverer {
	mentionFor := settings.SummaryInterval
	if mentionFor == 0 {
		mentionFor = defaultMentionFor
	}
	return deliverer{Sink: s, gate: gate, mentions: settings.Slack.Mentions, mentionFor: mentionFor}
}

// sendTimeout is the longest that one attempt takes: asking Redis for the usage and for a mention, Slack for the group of a
// mention, and the post.
func sendTimeout(settings config.Config) time.Duration {
	longest := settings.Slack.Timeout + 2*settings.Redis.Timeout
	if len(settings.Slack.Mentions.Entries()) > 0 {
		longest += settings.Slack.Timeout
	}
	return longest
}

// Destination implements [consume.Sink].
func (d deliverer) Destination(n consume.Notification) string {
	return d.Sink.Destination(sink.Delivery{Event: n.Event, Opened: n.Opened})
}

// Prepare makes an event's message, unless Redis or Slack have to be asked for something that it says.
func (d deliverer) Prepare(e event.Event) any {
	uses, known := d.gate.KnownUses(e.Category)
	if _, mentions := d.mentions.Nearest(e.Category); mentions || !known || e.Resolves() {
		return nil
	}
	return d.Sink.Prepare(sink.Delivery{Event: e, Usage: usageIn(uses)})
}

// Send is one attempt, its failure in the consumer's words.
func (d deliverer) Send(ctx context.Context, n consume.Notification) (string, *consume.Failure) {
	delivery, prepared := n.Prepared.(sink.Delivery)
	if !prepared {
		delivery = sink.Delivery{Event: n.Event, Opened: n.Opened}
		if !n.Event.Resolves() {
			delivery.Usage = usageIn(d.gate.Uses(ctx, n.Event.Category))
			delivery.Mention = d.mention(ctx, n.Event)
		}
	}
	receipt, err := d.Sink.Send(ctx, delivery)
	if err == nil {
		return receipt, nil
	}
	failure, known := errors.AsType[*sink.Error](err)
	if !known {
		return "", &consume.Failure{Class: consume.Uncertain, Err: err}
	}
	return "", &consume.Failure{Class: classes[failure.Class], Code: failure.Code, RetryAfter: failure.RetryAfter, Err: failure}
}

// classes maps the sink's classes to what the consumer does about them.
var classes = map[sink.Class]consume.FailureClass{
	sink.Transient:     consume.Transient,
	sink.Unknown:       consume.Uncertain,
	sink.RateLimited:   consume.RateLimited,
	sink.Rejected:      consume.Rejected,
	sink.Misconfigured: consume.Misconfigured,
}

func usageIn(uses []throttle.NodeUse) []sink.Usage {
	var usage []sink.Usage
	for _, use := range uses {
		usage = append(usage, sink.Usage{Level: use.Node, Limit: use.Limit.String(), Used: use.Used, Size: use.Limit.Count})
	}
	return usage
}

// mention is whom an event's message mentions, if anybody: one message of a category in each interval does.
func (d deliverer) mention(ctx context.Context, e event.Event) string {
	markup, wanted := d.Mention(e)
	if !wanted || !d.gate.Mention(ctx, e.Category, e.ID, d.mentionFor) {
		return ""
	}
	return markup
}

// summaryHorizon is how long a summary waits for its channel before it is put off.
const summaryHorizon = time.Minute

// sendSummary posts a summary when its channel takes it, as it would an event. It takes no slot of any limit.
func (d deliverer) sendSummary(ctx context.Context, s summary.Summary) error {
	told := sink.Summary{
		Path: s.Path, Dropped: s.Dropped, AtLeast: s.AtLeast, First: s.First, Last: s.Last, Opens: s.Opens,
	}
	for _, by := range s.Limits {
		told.Limits = append(told.Limits, sink.SuppressedBy(by))
	}
	for _, title := range s.Titles {
		told.Titles = append(told.Titles, sink.TitleCount(title))
	}
	destination := d.SummaryDestination(s.Path)
	wait, ok := d.gate.AwaitMoment(ctx, destination, summaryHorizon)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ok:
		return &summaryFailure{error: fmt.Errorf("%s takes no message for %v", destination, wait), retryAfter: wait}
	}
	failpoint.Reach(failpoint.AfterClaim)
	err := d.SendSummary(ctx, told)
	if err == nil {
		failpoint.Reach(failpoint.AfterSummary)
	}
	failure, known := errors.AsType[*sink.Error](err)
	if !known {
		return err
	}
	if failure.Class == sink.RateLimited {
		d.gate.Pause(ctx, destination, failure.RetryAfter)
	}
	return &summaryFailure{error: failure, retryAfter: failure.RetryAfter, permanent: failure.Class == sink.Rejected}
}

// summaryFailure tells the keeper of summaries what to do about it.
type summaryFailure struct {
	error

	retryAfter time.Duration
	permanent  bool
}

func (f *summaryFailure) Unwrap() error             { return f.error }
func (f *summaryFailure) RetryAfter() time.Duration { return f.retryAfter }
func (f *summaryFailure) Permanent() bool           { return f.permanent }

// newSummaries makes what tells the channels of drops.
func (w *worker) newSummaries(limiter *throttle.Redis, gate *throttle.Gate, d deliverer, metrics *telemetry.Metrics) *summary.Keeper {
	return summary.NewKeeper(summary.Options{
		Store:    limiter,
		Interval: w.settings.SummaryInterval,
		Logger:   w.logger,
		Send:     d.sendSummary,
		Describe: gate.LimitOf,
		Opens:    gate.Opens,
		Observe:  metrics.Summary,
	})
}

// countDrops takes note of what the consumer dropped.
func (w *worker) countDrops(dropped []consume.Drop) {
	drops := make([]summary.Drop, len(dropped))
	for i, d := range dropped {
		drops[i] = summary.Drop{Category: d.Category, Level: d.Level, Title: d.Title, N: d.Count}
	}
	w.summaries.Load().Counter().Add(drops)
}
