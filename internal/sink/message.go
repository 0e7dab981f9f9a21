package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/slack-go/slack"
)

// message is a layout as it is posted. It is encoded ahead of its requests: slack-go would encode it again in each of them.
type message struct {
	tail        string // goes behind what slack-go makes of a request's body
	attachments bool   // the tail holds some
}

// message makes what is to be posted of a layout that passed check.
func (s *Slack) message(l layout) *message {
	m := &message{attachments: len(l.Attachments) > 0}
	if s.o.WebhookURL != "" {
		m.tail = "," + encoded(l)[len("{"):] // the members join those that slack-go makes
		return m
	}
	if l.Blocks == nil {
		l.Blocks = list[block]{} // encoded as [], not null
	}
	m.tail = "&text=" + url.QueryEscape(l.Text) + "&blocks=" + url.QueryEscape(encoded(l.Blocks))
	if m.attachments {
		m.tail += "&attachments=" + url.QueryEscape(encoded(l.Attachments))
	}
	return m
}

// encoded is a part of a layout as JSON.
func encoded(part any) string {
	text, _ := json.Marshal(part) // nothing in a layout is beyond JSON
	return string(text)
}

// commonOptions is what chat.postMessage and chat.update are told beside the message.
func commonOptions() []slack.MsgOption {
	return []slack.MsgOption{
		slack.MsgOptionDisableMarkdown(),
		slack.MsgOptionDisableLinkUnfurl(),
		slack.MsgOptionDisableMediaUnfurl(),
	}
}

// place is where a message goes.
type place struct {
	destination string // names it in failures
	channel     string // as Slack takes it; unused with a webhook
	timestamp   string // of the message to reply to, or to update; empty for none
}

// post makes one request to post a message, and observes it.
func (s *Slack) post(ctx context.Context, timeout time.Duration, to place, m *message) (reply, *Error) {
	var r request
	if s.o.WebhookURL != "" {
		r = request{method: webhookDestination, limit: maxReply, classify: classifyWebhook, do: func(ctx context.Context, client *http.Client) error {
			beside := &slack.WebhookMessage{UnfurlLinks: new(bool), UnfurlMedia: new(bool)}
			return slack.PostWebhookCustomHTTPContext(ctx, s.o.WebhookURL, client, beside)
		}}
	} else {
		options := commonOptions()
		if to.timestamp != "" {
			options = append(options, slack.MsgOptionTS(to.timestamp))
		}
		r = s.method("chat.postMessage", func(ctx context.Context, api *slack.Client) error {
			_, _, err := api.PostMessageContext(ctx, to.channel, options...)
			return err
		})
		r.classify = classifyPost
	}
	r.destination, r.timeout, r.tail = to.destination, timeout, m.tail
	return s.observed(ctx, r)
}

// update makes one request to change a message, and observes it. When it fails, nothing was posted.
func (s *Slack) update(ctx context.Context, timeout time.Duration, at place, m *message) *Error {
	// Without these two, chat.update looks for links in the text and keeps the old attachments.
	options := append(commonOptions(), slack.MsgOptionParse(false))
	if !m.attachments {
		options = append(options, slack.MsgOptionAttachments([]slack.Attachment{}...))
	}
	r := s.method("chat.update", func(ctx context.Context, api *slack.Client) error {
		_, _, _, err := api.UpdateMessageContext(ctx, at.channel, at.timestamp, options...)
		return err
	})
	r.destination, r.timeout, r.tail = at.destination, timeout, m.tail
	_, failure := s.observed(ctx, r)
	if failure == nil {
		return nil
	}
	if failure.Class == Unknown {
		failure.Class = Transient
	}
	failure.Err = fmt.Errorf("update of the first message: %w", failure.Err)
	return failure
}
