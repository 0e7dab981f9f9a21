package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// openSink is a sink until it is closed.
type openSink struct {
	sink.Sink
	close func()
}

func newSink(settings config.Config, stdout io.Writer, colour bool, observe func(context.Context, sink.Request), logger *slog.Logger) (openSink, error) {
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
		Observe: observe,
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

// paceOf is how fast messages go to one destination. A terminal takes any number at once.
func paceOf(settings config.Config) pacing.Pace {
	rate := settings.Slack.Rate
	if settings.Sink == config.SinkConsole || rate.Count == 0 {
		return pacing.Pace{}
	}
	return pacing.Pace{Interval: rate.Window / time.Duration(rate.Count), Burst: settings.Slack.Burst}
}

// longestLife returns the age at which the last event expires; 0: none does.
func longestLife(settings config.Config) time.Duration {
	return consume.LongestLife(settings.Event.MaxAge, settings.Delay.MostPatient())
}
