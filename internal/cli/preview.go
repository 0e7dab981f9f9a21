package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/seed-4578ace9/notifier/internal/config"
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
	preview := func(body input) error {
		for _, e := range body.events {
			d := sink.Delivery{Event: e, Mention: slack.MentionPreview(settings.Slack.Mentions, e.Category)}
			rendered, picture, err := render.Preview(template, d)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(out, "%s\n%s\n", rendered, picture); err != nil {
				return err
			}
		}
		return nil
	}
	if !p.stdin {
		return preview(body)
	}
	return p.lines(ctx, preview)
}
