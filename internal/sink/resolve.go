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

// Updatable returns those of d.Others that say where their messages are, none for a webhook.
func (s *Slack) Updatable(d Delivery) (updatable []string) {
	for _, d.Opened = range d.Others {
		if s.opened(d).repliable() {
			updatable = append(updatable, d.Opened)
		}
	}
	return updatable
}

// Update renders one more message as resolved by d.
func (s *Slack) Update(ctx context.Context, d Delivery, receipt string) error {
	d.Opened = receipt
	opened := s.opened(d)
	if !opened.repliable() {
		return nil
	}
	rewritten := newView(d, opened, time.Now())
	rewritten.Rewrite, rewritten.Mention = true, ""
	at := place{cmp.Or(opened.Destination, s.SummaryDestination(d.Event.Category)), opened.Channel, opened.Timestamp}
	failure := s.update(ctx, s.o.Timeout, at, s.render(rewritten))
	if failure != nil && (failure.Class == Rejected || failure.lost()) {
		return nil
	}
	return asError(failure)
}

// lost reports whether the message that was to be updated or replied to is out of reach for good.
func (e *Error) lost() bool {
	return (e.Class == Rejected || e.Class == Misconfigured) && slices.Contains(lostCodes, e.Code)
}
