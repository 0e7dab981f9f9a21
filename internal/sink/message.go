package sink

import (
	"encoding/json"
	"net/url"

	"github.com/slack-go/slack"
)

// message is a layout as Slack is handed it. It does not change any more.
type message struct {
	layout
	// form holds blocks and attachments as they stand in a request, ready to go behind the rest of it: slack-go would encode
	// them by reflection, anew for each post. With a webhook it is empty, and slack-go does.
	form string
}

// message makes of a layout, which must have passed check, what is to be posted.
func (s *Slack) message(l layout) *message {
	m := message{layout: l}
	if s.webhook == "" {
		m.form = "&blocks=" + formValue(l.Blocks)
		if len(l.Attachments) > 0 {
			m.form += "&attachments=" + formValue(l.Attachments)
		}
	}
	return &m
}

func formValue[T any](value list[T]) string {
	if value == nil {
		value = list[T]{} // not null
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "" // no text is beyond JSON
	}
	return url.QueryEscape(string(encoded))
}

// options is the message without its form for chat.postMessage and chat.update.
func (m *message) options() []slack.MsgOption {
	return []slack.MsgOption{
		slack.MsgOptionText(m.Text, false),
		slack.MsgOptionDisableMarkdown(),
		slack.MsgOptionDisableLinkUnfurl(),
		slack.MsgOptionDisableMediaUnfurl(),
	}
}

// webhook is the message for an incoming webhook.
func (m *message) webhook() *slack.WebhookMessage {
	off := false
	w := &slack.WebhookMessage{Text: m.Text, UnfurlLinks: &off, UnfurlMedia: &off}
	if len(m.Blocks) > 0 {
		w.Blocks = &slack.Blocks{BlockSet: slackBlocks(m.Blocks)}
	}
	for _, a := range m.Attachments {
		blocks := slack.Blocks{BlockSet: slackBlocks(a.Blocks)}
		w.Attachments = append(w.Attachments, slack.Attachment{Color: a.Color, Fallback: a.Fallback, Blocks: blocks})
	}
	return w
}

func slackBlocks(blocks []block) []slack.Block {
	converted := make([]slack.Block, 0, len(blocks))
	for i := range blocks {
		converted = append(converted, &blocks[i])
	}
	return converted
}

// BlockType implements slack.Block.
func (b *block) BlockType() slack.MessageBlockType { return slack.MessageBlockType(b.Type) }

// ID implements slack.Block. A block that nobody presses has none.
func (b *block) ID() string { return "" }
