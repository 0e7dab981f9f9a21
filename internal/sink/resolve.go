package sink

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// opened returns what d tells of the message that it resolves; nil if it resolves none. A webhook can neither update nor
// reply, so the place of that message counts for nothing there.
func (s *Slack) opened(d Delivery) *receipt {
	opened := openedBy(d)
	if opened != nil && s.o.WebhookURL != "" {
		opened.Timestamp = ""
	}
	return opened
}

// resolve updates the first message and replies in its thread, within the timeout for both. The update comes first because it
// can be repeated; the reply is the delivery. Where a reply would reach nobody the event becomes a message of its own.
func (s *Slack) resolve(ctx context.Context, v view, opened *receipt) *Error {
	deadline := time.Now().Add(s.o.Timeout)
	own := s.SummaryDestination(v.Event.Category)
	first := place{cmp.Or(opened.Destination, own), opened.Channel, opened.Timestamp}
	rewritten := v
	rewritten.Rewrite, rewritten.Mention = true, ""
	// Half of the time is left for the reply, whatever becomes of the update.
	failure := s.update(ctx, s.o.Timeout/2, first, s.render(rewritten))
	if failure == nil || failure.Class == Rejected && !failure.lost() {
		_, failure = s.post(ctx, time.Until(deadline), first, s.render(v))
	}
	if failure == nil || !failure.lost() {
		return failure
	}
	unseen := *opened
	unseen.Timestamp = ""
	v.Resolved = &unseen
	_, failure = s.post(ctx, time.Until(deadline), place{destination: own, channel: own}, s.render(v))
	return failure
}

// lost reports whether the message that was to be updated or replied to is out of reach for good.
func (e *Error) lost() bool {
	return (e.Class == Rejected || e.Class == Misconfigured) && slices.Contains(lostCodes, e.Code)
}
