package main

import (
	"fmt"
	"io"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// show prints the message for Slack of each event, instead of publishing the event.
func (p *publisher) show(settings config.Config, body []byte, out io.Writer) error {
	template, err := slackTemplate(settings)
	if err != nil {
		return err
	}
	preview := func(body []byte) error { return p.showMessages(out, template, settings.Slack.Mentions, body) }
	if !p.stdin {
		return preview(body)
	}
	refused, err := p.lines(preview)
	if err != nil {
		return err
	}
	return notTaken(refused)
}

// showMessages prints the messages of a body, which may hold several events.
func (p *publisher) showMessages(out io.Writer, template *sink.Template, mentions event.Table[[]string], body []byte) error {
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
		rendered, picture, err := sink.Preview(template, sink.Delivery{Event: e, Mention: sink.MentionPreview(mentions, e.Category)})
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
