package main

import (
	"context"
	"errors"
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
		longest += settings.Slack.Timeout + settings.Redis.Timeout // a mention that was not needed is given back
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
	takesMention := false
	if !prepared {
		delivery = sink.Delivery{Event: n.Event, Opened: n.Opened}
		if !n.Event.Resolves() {
			delivery.Usage = usageIn(d.gate.Uses(ctx, n.Event.Category))
			delivery.Mention, takesMention = d.mention(ctx, n.Event)
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
	if takesMention && failure.Class != sink.Unknown { // else an earlier attempt, or this one, may have mentioned
		d.gate.ReturnMention(context.WithoutCancel(ctx), n.Event.Category, n.Event.Identity())
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

// mention is whom an event's message mentions, if anybody: one message of a category in each interval does. It tells whether
// this message is the first of the event that may.
func (d deliverer) mention(ctx context.Context, e event.Event) (markup string, takes bool) {
	markup, wanted := d.Mention(e)
	if !wanted {
		return "", false
	}
	switch d.gate.Mention(ctx, e.Category, e.Identity(), d.mentionFor) {
	case throttle.TakesMention:
		return markup, true
	case throttle.HasMention:
		return markup, false
	case throttle.NoMention:
	}
	return "", false
}

// moment reserves a channel's next moment for a digest if that is now; else it tells how far it is.
func (d deliverer) moment(ctx context.Context, channel string) (wait time.Duration, now bool) {
	return d.gate.AwaitMoment(ctx, channel, 0)
}

// sendDigest posts a digest, its failure in the keeper's words. It takes no slot of any limit.
func (d deliverer) sendDigest(ctx context.Context, digest summary.Digest) error {
	failpoint.Reach(failpoint.AfterClaim)
	err := d.SendSummary(ctx, summaryOf(digest))
	if err == nil {
		failpoint.Reach(failpoint.AfterSummary)
		return nil
	}
	failure, known := errors.AsType[*sink.Error](err)
	if !known {
		return err
	}
	kind, posted := digestFailures[failure.Class]
	if !posted {
		return failure // nobody knows
	}
	if failure.Class == sink.RateLimited {
		d.gate.Pause(ctx, digest.Channel, failure.RetryAfter)
	}
	return &summary.SendError{Failure: kind, After: failure.RetryAfter, Err: failure}
}

// digestFailures maps the sink's classes to what the keeper of digests does about them. Whether a post of any other class has
// arrived is not known.
var digestFailures = map[sink.Class]summary.Failure{
	sink.Transient:     summary.NotPosted,
	sink.Misconfigured: summary.NotPosted,
	sink.RateLimited:   summary.Resting,
	sink.Rejected:      summary.Refused,
}

func summaryOf(d summary.Digest) sink.Summary {
	told := sink.Summary{
		Channel: d.Channel, Dropped: d.Dropped, AtLeast: d.AtLeast, Doubtful: d.Doubtful, Unpaired: d.Unpaired,
		First: d.First, Last: d.Last, MorePaths: d.MorePaths, MoreAtLeast: d.MoreAtLeast, MoreDropped: d.MoreDropped,
	}
	for _, path := range d.Paths {
		suppressed := sink.SuppressedPath{Path: path.Path, Rest: path.Rest, Dropped: path.Dropped, Title: path.Title, Opens: path.Opens}
		for _, reason := range path.Reasons {
			suppressed.Reasons = append(suppressed.Reasons, sink.SuppressedBy(reason))
		}
		told.Paths = append(told.Paths, suppressed)
	}
	for _, change := range d.Changes {
		told.Changes = append(told.Changes, sink.LimitChange(change))
	}
	return told
}

// describeLevel says why a level dropped notifications of a category: by its limit, or in words where it has none.
func describeLevel(gate *throttle.Gate) func(category, level string) string {
	return func(category, level string) string {
		switch level {
		case consume.LevelRoom:
			return "could not wait: too many waited already"
		case throttle.LevelClosed:
			return "the limits could not be asked"
		default:
			return level + " " + gate.LimitOf(category, level)
		}
	}
}

// newSummaries makes what tells the channels of drops. busy tells whether events wait for a channel.
func (w *worker) newSummaries(
	limiter *throttle.Redis, gate *throttle.Gate, d deliverer, busy func(channel string) bool,
	changes func(context.Context, time.Time) []summary.Change, metrics *telemetry.Metrics,
) *summary.Keeper {
	return summary.NewKeeper(summary.Options{
		Store:     limiter,
		Interval:  w.settings.SummaryInterval,
		Logger:    w.logger,
		ChannelOf: d.SummaryDestination,
		Busy:      busy,
		Moment:    d.moment,
		Send:      d.sendDigest,
		Describe:  describeLevel(gate),
		Opens:     gate.Opens,
		Changes:   changes,
		Observe:   metrics.Summary,
	})
}

// countDrops takes note of what the consumer dropped.
func (w *worker) countDrops(dropped []consume.Drop) {
	drops := make([]summary.Drop, len(dropped))
	for i, d := range dropped {
		drops[i] = summary.Drop{
			Category: d.Category, Level: d.Level, Unpaired: d.Level == consume.LevelUnpaired, Title: d.Title, N: d.Count,
		}
	}
	w.summaries.Load().Counter().Add(drops)
}
