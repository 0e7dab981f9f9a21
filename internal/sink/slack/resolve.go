package slack

import (
	"cmp"
	"context"
	"errors"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
)

// opened returns the receipt of the message that d resolves; nil if it resolves none. A webhook can neither update nor reply, so
// its receipt has no message.
func (s *Sink) opened(d sink.Delivery) *sink.Receipt {
	opened := sink.OpenedBy(d)
	if opened != nil && s.o.WebhookURL != "" {
		opened.Timestamp = ""
	}
	return opened
}

// Updatable reports whether a receipt names its message. A receipt from a webhook does not.
func (s *Sink) Updatable(receipt string) bool {
	return s.opened(sink.Delivery{Opened: receipt}).Repliable()
}

// errOutOfReach is the failure to update a message that the settings no longer reach.
var errOutOfReach = errors.New("the message cannot be updated with these settings")

// Update changes a message, as resolved by d.
func (s *Sink) Update(ctx context.Context, d sink.Delivery, receipt string) error {
	d.Opened = receipt
	opened := s.opened(d)
	if !opened.Repliable() {
		return &sink.Error{Class: sink.Rejected, Channel: s.Destination(d), Err: errOutOfReach}
	}
	rewritten := render.NewView(d, opened)
	rewritten.Rewrite, rewritten.Mention = true, ""
	at := place{cmp.Or(opened.Destination, s.o.route(d.Event.Category)), opened.Channel, opened.Timestamp, ""}
	return s.update(ctx, s.o.Timeout, at, s.o.render(rewritten)).AsError()
}
