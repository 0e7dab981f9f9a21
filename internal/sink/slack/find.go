package slack

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// hiddenCodes holds Slack's error codes that mean that this token can never look there. After every other failure the worker looks again.
// That includes a token that Slack no longer accepts, because such a token cannot post either.
var hiddenCodes = []string{
	"missing_scope", "no_permission", "not_allowed_token_type", "team_access_not_granted", "access_denied",
	"channel_not_found", "not_in_channel", "method_not_supported_for_channel_type", "unknown_method",
	codeTooMany,
}

// Find looks for the post of an event in its channel. The reply to a firing event's message is in the thread of that message, or in the
// channel if the message is gone. Instances with other routes may have posted the event to another channel.
func (s *Sink) Find(ctx context.Context, d sink.Doubt) (sink.Finding, error) {
	own := s.o.route(d.Delivery.Event.Category)
	search := search{name: d.Delivery.Name, first: d.First, last: d.Last, destination: own}
	opened := s.opened(d.Delivery)
	if opened.Repliable() {
		search.threads = []thread{{opened.Channel, opened.Timestamp}, {channel: opened.Channel}}
	}
	var others []string
	if s.o.WebhookURL == "" && s.o.LookUp { // before a request to Slack, which would be useless without the routes
		var err error
		if others, err = s.routes.others(ctx); err != nil {
			return sink.Finding{}, notLookedUp(own, fmt.Errorf("asking for the routes of other workers: %w", err))
		}
	}
	at, found, failure := s.find(ctx, search)
	if failure == nil && found.Presence != sink.Present {
		var destination string
		if at, destination, failure = s.findElsewhere(ctx, search, own, channelsOf(others, d.Delivery.Event.Category)); destination != "" {
			own, found = destination, sink.Finding{Presence: sink.Present}
		}
	}
	if failure != nil {
		return sink.Finding{}, failure
	}
	if found.Presence == sink.Present {
		found.Receipt = sink.NewReceipt(d.Delivery.Event, own, at.channel, at.timestamp, d.Delivery.Stored)
	}
	return found, nil
}

// FindSummary looks for the post of a digest in its channel.
func (s *Sink) FindSummary(ctx context.Context, channel, claim string, claimed time.Time) (sink.Finding, error) {
	_, found, failure := s.find(ctx, search{
		name: sink.DigestName(channel, claim), first: claimed, last: time.Now(), destination: channel,
	})
	return found, failure.AsError()
}

// search is a post that may be in one of several threads.
type search struct {
	name        string
	first, last time.Time // as in sink.Doubt
	threads     []thread
	destination string // a channel of the settings, behind the threads; "" for none
}

// find looks for a post. If it is there, at has its channel and its ts.
func (s *Sink) find(ctx context.Context, o search) (at thread, found sink.Finding, failure *sink.Error) {
	switch {
	case s.o.WebhookURL != "":
		return at, sink.Finding{Reason: "a webhook cannot read messages"}, nil
	case !s.o.LookUp:
		return at, sink.Finding{Reason: "look-ups are turned off"}, nil
	case o.name == "":
		return at, sink.Finding{Reason: "the post has no name"}, nil
	}
	if !await.For(ctx, time.Until(o.last.Add(s.o.Settle))) {
		return at, found, &sink.Error{Class: sink.Transient, Channel: o.destination, Err: ctx.Err()}
	}
	found.Presence = sink.Absent
	hide := func(reason string) { found = sink.Finding{Reason: reason} }
	if o.destination != "" {
		id, failure := s.channels.id(ctx, o.destination)
		switch {
		case failure != nil && !isHidden(failure):
			return at, found, failure
		case failure != nil:
			hide("the channel's ID is unknown: " + failure.Err.Error())
		case id == "":
			hide("the bot is not in the channel")
		case !slices.Contains(o.threads, thread{channel: id}):
			o.threads = append(o.threads, thread{channel: id})
		}
	}
	for _, of := range o.threads {
		ts, failure := s.history.find(ctx, of, o.first, o.name)
		switch {
		case failure != nil && failure.Code == "thread_not_found":
		case failure != nil && !isHidden(failure):
			return at, found, failure
		case failure != nil:
			hide(failure.Err.Error())
		case ts != "":
			return thread{of.channel, ts}, sink.Finding{Presence: sink.Present}, nil
		}
	}
	return at, found, nil
}

// isHidden reports whether a failed look-up would fail for good.
func isHidden(failure *sink.Error) bool { return slices.Contains(hiddenCodes, failure.Code) }
