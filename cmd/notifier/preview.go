package main

import (
	"fmt"
	"io"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// show prints what Slack would be handed for each event, instead of publishing it.
func (p *publisher) show(
	settings config.Config, decoder event.Decoder, subject string, body []byte, in io.Reader, out, problems io.Writer,
) error {
	template, err := slackTemplate(settings)
	if err != nil {
		return err
	}
	preview := func(body []byte) error {
		return showMessages(out, template, settings, decoder, event.Message{Subject: subject, Data: body, Stream: "preview", Sequence: 1})
	}
	if !p.stdin {
		return preview(body)
	}
	refused, err := publishLines(decoder, subject, in, problems, preview)
	if err != nil {
		return err
	}
	return notTaken(refused)
}

// showMessages prints the messages of a body, which may hold several events.
func showMessages(out io.Writer, template *sink.Template, settings config.Config, decoder event.Decoder, m event.Message) error {
	messages := []event.Message{m}
	parts, bad := decoder.Parts(m)
	if parts != nil {
		messages = nil
		for _, part := range parts {
			messages = append(messages, event.Message{Subject: part.Subject, Data: part.Data, Stream: m.Stream, Sequence: m.Sequence, Room: part.Room()})
		}
	}
	for _, m := range messages {
		e, err := decoder.Decode(m)
		if err != nil {
			return err
		}
		mention := sink.MentionPreview(settings.Slack.Mentions, e.Category)
		rendered, picture, err := sink.Preview(template, sink.Delivery{Event: e, Mention: mention})
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
