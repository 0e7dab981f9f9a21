package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// newView returns what is to be rendered of d, whose firing may be known or not.
func newView(d Delivery, opened *receipt, now time.Time) view {
	v := view{Delivery: d}
	if d.Event.Status != event.StatusResolved {
		return v
	}
	if v.Ended = d.Event.Time; v.Ended.IsZero() {
		v.Ended = now.UTC()
	}
	if opened != nil {
		v.Resolved = &opened.firing
	}
	return v
}

// opened returns what d tells of the message that it resolves; nil if it resolves none. Where that message stands
// counts for nothing with a webhook, which can neither update nor reply.
func (s *Slack) opened(d Delivery) *receipt {
	opened := openedBy(d)
	if opened != nil && s.webhook != "" {
		opened.Timestamp = ""
	}
	return opened
}

// resolve updates the first message and replies in its thread. The update comes first because it can be repeated; the
// reply is the delivery. Where a reply would reach nobody the event becomes a message of its own. All of it takes no
// longer than the timeout.
func (s *Slack) resolve(ctx context.Context, v view, opened *receipt) *Error {
	deadline := time.Now().Add(s.timeout)
	own := s.SummaryDestination(v.Event.Category)
	first := place{opened.Destination, opened.Channel, opened.Timestamp}
	if first.destination == "" {
		first.destination = own
	}
	rewritten := v
	rewritten.Rewrite, rewritten.Mention = true, ""
	// Half of the time is left for the reply, whatever becomes of the update.
	failure := s.update(ctx, s.timeout/2, first, s.render(rewritten))
	if failure == nil || failure.Class == Rejected && !failure.lost() {
		_, failure = s.post(ctx, time.Until(deadline), first, s.render(v))
	}
	if failure == nil || !failure.lost() {
		return failure
	}
	unseen := opened.firing
	unseen.Timestamp = ""
	v.Resolved = &unseen
	_, failure = s.post(ctx, time.Until(deadline), place{own, own, ""}, s.render(v))
	return failure
}

// lost reports whether the message that was to be updated or replied to is out of reach for good.
func (e *Error) lost() bool {
	return (e.Class == Rejected || e.Class == Misconfigured) && lostCodes[e.Code]
}

// update makes one request to change a message, and observes it. Nothing was posted when it fails, whatever came of it.
func (s *Slack) update(ctx context.Context, timeout time.Duration, at place, m *message) *Error {
	// Unlike a post, an update keeps the old attachments where it names none, and has its text searched for links.
	options := append(m.options(), slack.MsgOptionParse(false))
	if len(m.Attachments) == 0 {
		options = append(options, slack.MsgOptionAttachments([]slack.Attachment{}...))
	}
	_, failure := s.observed(ctx, request{
		destination: at.destination, timeout: timeout, form: m.form, limit: maxReply, judge: judgeMethod,
		do: func(ctx context.Context) error {
			_, _, _, err := s.api.UpdateMessageContext(ctx, at.channel, at.thread, options...)
			return err
		},
	})
	if failure == nil {
		return nil
	}
	if failure.Class == Unknown {
		failure.Class = Transient
	}
	failure.Err = fmt.Errorf("update of the first message: %w", failure.Err)
	return failure
}
