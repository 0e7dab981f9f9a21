package setup

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/console"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/sink/slack"
)

// SinkOptions are what a sink needs beside the settings.
type SinkOptions struct {
	Console  io.Writer // where the console sink prints
	Colour   bool      // the console sink prints colours
	Version  string    // of this program, for the User-Agent
	Observe  func(context.Context, sink.Request)
	Pacer    slack.Pacer      // nil: look-ups are not paced
	IDs      slack.IDs        // nil: no other instance knows the ID of a channel
	Readings *pacing.Readings // nil: no other instance reads channels
	Logger   *slog.Logger
}

// Sink makes what the settings deliver with. The caller calls done when it sends nothing more.
func Sink(settings config.Config, o SinkOptions) (made sink.Outlet, done func(), err error) {
	if settings.Sink == config.SinkConsole {
		printer := console.New(console.Options{Writer: o.Console, Colour: o.Colour})
		return sink.Outlet{Sink: printer, Finder: printer, Digests: printer}, func() {}, nil
	}
	poster, done, err := Slack(settings, o)
	if err != nil {
		return sink.Outlet{}, nil, err
	}
	made = sink.Outlet{Sink: poster, Finder: poster, Digests: poster, Mention: poster.Mention}
	if settings.Slack.Token.IsSet() {
		made.CheckToken = poster.CheckToken
	}
	return made, done, nil
}

// Slack makes the Slack sink of the settings. The caller calls done when it sends nothing more.
func Slack(settings config.Config, o SinkOptions) (made *slack.Sink, done func(), err error) {
	template, err := SlackTemplate(settings)
	if err != nil {
		return nil, nil, err
	}
	failures := oplog.NewRepeated(func(_ string, messages int, newest []any) { // a template may fail for every event
		o.Logger.Warn("template failed; used the default template", append(newest, "messages", messages)...)
	})
	var readings func(thread string) slack.Reading
	if o.Readings != nil {
		readings = func(thread string) slack.Reading { return o.Readings.Of(thread) }
	}
	made = slack.New(slack.Options{
		Token:      settings.Slack.Token.Reveal(),
		WebhookURL: settings.Slack.WebhookURL.Reveal(),
		Channel:    settings.Slack.Channel,
		Routes:     settings.Slack.Routes,
		APIURL:     settings.Slack.APIURL,
		Timeout:    settings.Slack.Timeout,
		Mentions:   settings.Slack.Mentions,
		MentionFailed: func(handle string, err error) {
			o.Logger.Warn("omitted a mention", "handle", handle, "error", err)
		},
		Template:       template,
		TemplateFailed: func(err error) { failures.Add("", 1, "error", err) },
		LookUp:         settings.Slack.LookUp == config.LookUpAuto,
		Settle:         settings.Slack.Settle,
		Pacer:          o.Pacer,
		IDs:            o.IDs,
		Readings:       readings,
		Observe:        o.Observe,
		Version:        o.Version,
	})
	return made, func() { made.Close(); failures.Stop() }, nil
}

// Channels returns the channels that the settings name; none if the sink cannot be made.
func Channels(settings config.Config) []string {
	made, done, err := Sink(settings, SinkOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil
	}
	defer done()
	return made.Sink.Destinations()
}

// ChannelIDs returns the IDs of channels that the workers share.
func ChannelIDs(client redis.UniversalClient, settings config.Redis) slack.IDs {
	return pacing.NewChannels(Runner(client, settings), nil)
}

// PostNames returns the part of the names of posts (sink.NameOf) that the deployments of a channel do not share. It outlives a new token: an
// operator sets one while posts are in doubt. Nobody can post the name of an event that is yet to come, which depends on the nanosecond in which
// the event is stored.
func PostNames(settings config.Config) string { return sink.NameOf(settings.Redis.Prefix, "", "") }

// SlackTemplate returns the template of the settings. It returns nil for the default template.
func SlackTemplate(settings config.Config) (*render.Template, error) {
	if settings.Slack.Template == "" {
		return nil, nil //nolint:nilnil // nil is the default template
	}
	return render.Parse(settings.Slack.Template)
}

// CheckTemplate returns what is wrong with the text of a template.
func CheckTemplate(text string) error {
	_, err := render.Parse(text)
	return err
}

// Budgets returns how many requests all workers may make together. The console takes any number at once.
func Budgets(settings config.Config) (budgets pacing.Budgets) {
	if settings.Sink == config.SinkConsole {
		return pacing.Budgets{}
	}
	if rate := settings.Slack.Rate; rate.Count > 0 {
		budgets.Channel = pacing.Pace{Interval: stretch(rate.Window) / time.Duration(rate.Count), Burst: settings.Slack.Burst}
	}
	budgets.Workspace, budgets.Updates = window(settings.Slack.WorkspaceRate), window(settings.Slack.UpdateRate)
	budgets.LookUps = window(settings.Slack.LookUpRate)
	return budgets
}

// window returns the budget of a rate.
func window(rate limits.Limit) pacing.Window {
	return pacing.Window{Count: int(rate.Count), Length: stretch(rate.Window)}
}

// stretch lengthens a window by a fortieth. Slack counts a request when it arrives: of two requests a window apart, the second one may be
// faster than the first.
func stretch(window time.Duration) time.Duration { return window + window/40 }
