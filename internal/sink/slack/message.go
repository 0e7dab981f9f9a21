package slack

import (
	"context"
	"fmt"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
)

// place is where a message goes.
type place struct {
	destination string // names it in failures
	channel     string // as Slack takes it; unused with a webhook
	timestamp   string // of the message to reply to or to update; empty for none
	name        string // of the post, by which a look-up finds it; empty for none
}

// metadataEvent is the event type of the metadata of posts. The payload has their name as metadataName.
const (
	metadataEvent = "notifier_event"
	metadataName  = "name"
)

// metadata makes a post carry its name.
func metadata(name string) slack.MsgOption {
	return slack.MsgOptionMetadata(slack.SlackMetadata{EventType: metadataEvent, EventPayload: map[string]any{metadataName: name}})
}

// options returns what chat.postMessage and chat.update take alike.
func options(m render.Message) []slack.MsgOption {
	return []slack.MsgOption{
		slack.MsgOptionText(m.Text, false),
		slack.MsgOptionBlocks(m.Blocks...),
		slack.MsgOptionAttachments(m.Attachments...),
		slack.MsgOptionDisableMarkdown(),
		slack.MsgOptionDisableLinkUnfurl(),
		slack.MsgOptionDisableMediaUnfurl(),
	}
}

// post makes one request to post a message. The answer names the message, unless it was a webhook's.
func (s *Sink) post(ctx context.Context, to place, m render.Message) (answer, *sink.Error) {
	var posted answer
	call := client.Call{Method: "chat.postMessage", Destination: to.destination, Timeout: s.o.Timeout}
	call.Judge = func(r client.Reply, err error) client.Verdict {
		if err != nil { // an answer that was cut short may prove a post
			posted = decodeAnswer(r.Body)
		}
		v := judgePost(r, err, posted)
		if to.timestamp != "" {
			v = rejectLost(v)
		}
		return v
	}
	call.Do = func(ctx context.Context) error {
		all := options(m)
		if to.timestamp != "" {
			all = append(all, slack.MsgOptionTS(to.timestamp))
		}
		if to.name != "" {
			all = append(all, metadata(to.name))
		}
		channel, ts, err := s.web.api.PostMessageContext(ctx, to.channel, all...)
		posted = answer{ok: err == nil, channel: channel, ts: ts}
		return err
	}
	if s.o.WebhookURL != "" {
		call.Method, call.Judge = webhookDestination, judgeWebhook
		call.Do = func(ctx context.Context) error {
			whole := &slack.WebhookMessage{Text: m.Text, Attachments: m.Attachments, UnfurlLinks: new(bool), UnfurlMedia: new(bool)}
			if len(m.Blocks) > 0 {
				whole.Blocks = &slack.Blocks{BlockSet: m.Blocks}
			}
			return slack.PostWebhookCustomHTTPContext(ctx, s.o.WebhookURL, s.web.client.HTTP, whole)
		}
	}
	if _, failure := s.web.client.Send(ctx, call); failure != nil {
		failure.Lost = isLost(failure, to)
		return answer{}, failure
	}
	if to.channel == to.destination { // a reply goes to the channel of its message, which may have had this name before
		s.channels.learn(ctx, to.destination, posted.channel)
	}
	return posted, nil
}

// update makes one request to change a message. A request whose answer is unknown is repeated, so it counts as transient.
func (s *Sink) update(ctx context.Context, timeout time.Duration, at place, m render.Message) *sink.Error {
	// Without these two, chat.update looks for links in the text and keeps the old attachments.
	all := append(options(m), slack.MsgOptionParse(false))
	if len(m.Attachments) == 0 {
		all = append(all, slack.MsgOptionAttachments([]slack.Attachment{}...))
	}
	_, failure := s.web.client.Send(ctx, client.Call{
		Method: "chat.update", Destination: at.destination, Timeout: timeout, Judge: judgeUpdate,
		Do: func(ctx context.Context) error {
			_, _, _, err := s.web.api.UpdateMessageContext(ctx, at.channel, at.timestamp, all...)
			return err
		},
	})
	if failure == nil {
		return nil
	}
	if failure.Class == sink.Unknown {
		failure.Class = sink.Transient
	}
	failure.Err = fmt.Errorf("update of a message: %w", failure.Err)
	return failure
}
