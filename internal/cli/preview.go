package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/sink/slack"
)

// show prints the Slack message of each event and publishes nothing.
func (p *publisher) show(ctx context.Context, settings config.Config, body input, out io.Writer) error {
	template, err := setup.SlackTemplate(settings)
	if err != nil {
		return err
	}
	preview := func(body input) error { return showMessages(out, template, settings.Slack.Mentions, body.events) }
	if !p.stdin {
		return preview(body)
	}
	return p.lines(ctx, preview)
}

func showMessages(out io.Writer, template *render.Template, mentions event.Table[[]string], events []event.Event) error {
	for _, e := range events {
		rendered, picture, err := render.Preview(template, sink.Delivery{Event: e, Mention: slack.MentionPreview(mentions, e.Category)})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n%s\n", rendered, picture); err != nil {
			return err
		}
	}
	return nil
}
