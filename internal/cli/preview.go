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
func (p *publisher) show(ctx context.Context, settings config.Config, body []byte, out io.Writer) error {
	template, err := setup.SlackTemplate(settings)
	if err != nil {
		return err
	}
	preview := func(body []byte) error { return p.showMessages(out, template, settings.Slack.Mentions, body) }
	if !p.stdin {
		return preview(body)
	}
	refused, err := p.lines(ctx, preview)
	if err != nil {
		return err
	}
	return notTaken(refused)
}

// showMessages prints the messages of a body. A body may hold several events.
func (p *publisher) showMessages(out io.Writer, template *render.Template, mentions event.Table[[]string], body []byte) error {
	whole := event.Message{Subject: p.subject, Data: body, Stream: "preview", Sequence: 1}
	messages := []event.Message{whole}
	parts, bad := p.decoder.Parts(whole)
	if parts != nil {
		messages = nil
		for _, part := range parts {
			messages = append(messages, event.Message{
				Subject: part.Subject, Data: part.Data, Stream: whole.Stream, Sequence: whole.Sequence, Room: &part.Room,
			})
		}
	}
	for _, m := range messages {
		e, err := p.decoder.Decode(m)
		if err != nil {
			return err
		}
		rendered, picture, err := render.Preview(template, sink.Delivery{Event: e, Mention: slack.MentionPreview(mentions, e.Category)})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n%s\n", rendered, picture); err != nil {
			return err
		}
	}
	if bad != nil {
		return bad
	}
	return nil
}
