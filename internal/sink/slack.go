package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// webhookDestination is the Destination of every event that goes to a webhook.
const webhookDestination = "webhook"

// SlackOptions are the settings of a Slack sink. The functions are required and must not block.
type SlackOptions struct {
	// Token or WebhookURL, one of them, says how to post: as a bot with chat.postMessage, or to an incoming webhook.
	Token, WebhookURL string
	// Channel is where events without a route go. A token needs it. With a webhook it is not used.
	Channel string
	// Routes hold channels; the route of a category holds for all below it.
	Routes event.Table[string]
	// APIURL is the URL of the Web API; empty means Slack's own. The final slash may be missing.
	APIURL string
	// Mentions hold whom to mention: here, channel, everyone, the ID of a user or a user group, or the handle of a user
	// group. Those of a category hold for all below it. A handle needs a Token with the scope usergroups:read.
	Mentions event.Table[[]string]
	// MentionFailed is told once of every handle that could not be looked up.
	MentionFailed func(handle string, err error)
	// Template makes the messages of events; nil means the default one.
	Template *Template
	// TemplateFailed is told of every message for which the default template stood in.
	TemplateFailed func(error)
	// Timeout bounds one Send, one SendSummary and one Mention, from dialling to the end of the last answer.
	Timeout time.Duration
	// Observe is told of every request of Send and SendSummary, with their context.
	Observe func(context.Context, Request)
	// Version is named in the User-Agent header; may be empty.
	Version string
}

// Request is what came of one request to Slack.
type Request struct {
	Method string // of the Web API, or "webhook"
	Class  Class
	Status int    // of the answer; 0 if none came
	Code   string // as in Error; empty for OK
	Began  time.Time
	Took   time.Duration
}

// Slack posts to Slack. Make one with NewSlack, and Close it at the end.
type Slack struct {
	o         SlackOptions
	userAgent string
	mentions  *mentions
	transport *http.Transport
	redactor  redactor
}

// NewSlack makes a sink without calling Slack. Its error joins every fault of the options and names no secret.
func NewSlack(o SlackOptions) (*Slack, error) {
	o.APIURL = strings.TrimRight(cmp.Or(o.APIURL, slack.APIURL), "/") + "/"
	webhook := parseURL(o.WebhookURL)
	if err := errors.Join(o.faults(webhook)...); err != nil {
		return nil, err
	}
	s := &Slack{
		o:         o,
		userAgent: strings.TrimSuffix("notifier/"+o.Version, "/"),
		transport: newTransport(),
		redactor:  newRedactor(o.Token, webhook),
	}
	s.mentions = &mentions{table: o.Mentions, list: s.userGroups, failed: o.MentionFailed, now: time.Now}
	return s, nil
}

// faults are those of options whose webhook URL is parsed already.
func (o SlackOptions) faults(webhook *url.URL) []error {
	var faults []error
	check := func(sound bool, format string, arguments ...any) {
		if !sound {
			faults = append(faults, fmt.Errorf("slack: "+format, arguments...))
		}
	}
	check(o.Token != "" || o.WebhookURL != "", "a token or a webhook URL is needed")
	check(o.Token == "" || o.WebhookURL == "", "a token and a webhook URL exclude each other")
	check(o.Token == "" || o.Channel != "", "a token needs a channel")
	check(o.Timeout > 0, "the timeout must be positive, not %v", o.Timeout)
	api := parseURL(o.APIURL)
	check(api != nil && api.User == nil && api.RawQuery == "" && api.Fragment == "", "the API URL is not of the form https://host/path/")
	check(o.WebhookURL == "" || webhook != nil, "the webhook URL is not of the form https://host/path")
	for _, name := range mentionNames(o.Mentions) {
		markup, err := mentionMarkup(name)
		check(err == nil, "%w", err)
		check(err != nil || markup != "" || o.WebhookURL == "",
			"the handle @%s needs a token, since a webhook cannot look it up; give the user group's ID", name)
	}
	return faults
}

// parseURL returns nil unless text is an absolute http or https URL.
func parseURL(text string) *url.URL {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil
	}
	return parsed
}

// Close closes idle connections. Requests under way are not disturbed.
func (s *Slack) Close() { s.transport.CloseIdleConnections() }

// Destination returns "webhook", or the channel of d's category, or where the message went that d resolves.
func (s *Slack) Destination(d Delivery) string {
	if opened := s.opened(d); opened.repliable() && opened.Destination != "" {
		return opened.Destination
	}
	return s.SummaryDestination(d.Event.Category)
}

// Destinations returns "webhook", or the default channel and those of the routes, each once.
func (s *Slack) Destinations() []string {
	if s.o.WebhookURL != "" {
		return []string{webhookDestination}
	}
	channels := []string{s.o.Channel}
	for _, route := range s.o.Routes.Entries() {
		if !slices.Contains(channels, route.Value) {
			channels = append(channels, route.Value)
		}
	}
	return channels
}

// SummaryDestination returns "webhook", or the channel of category.
func (s *Slack) SummaryDestination(category string) string {
	if s.o.WebhookURL != "" {
		return webhookDestination
	}
	if route, ok := s.o.Routes.Nearest(category); ok {
		return route.Value
	}
	return s.o.Channel
}

// Mention returns the mentions of e's category. It asks Slack for a handle that it does not know yet, and leaves out one
// that cannot be found.
func (s *Slack) Mention(e event.Event) string { return s.mentions.of(e.Category) }

// Prepare makes the message of d, except of a resolved event: that tells how long it took until it was sent.
func (s *Slack) Prepare(d Delivery) Delivery {
	if d.Event.Status != event.StatusResolved {
		d.prepared = s.render(view{Delivery: d})
	}
	return d
}

// Send posts d once. What resolves a message updates that one and replies in its thread.
func (s *Slack) Send(ctx context.Context, d Delivery) (receipt string, err error) {
	m := d.prepared
	if m == nil {
		opened := s.opened(d)
		v := newView(d, opened, time.Now())
		if opened.repliable() {
			return "", asError(s.resolve(ctx, v, opened))
		}
		m = s.render(v)
	}
	destination := s.SummaryDestination(d.Event.Category)
	answer, failure := s.post(ctx, s.o.Timeout, place{destination: destination, channel: destination}, m)
	if failure != nil || d.Event.Status != event.StatusFiring {
		return "", asError(failure)
	}
	return newReceipt(d.Event, destination, decodeAnswer(answer.body), time.Now()), nil
}

// SendSummary posts d once.
func (s *Slack) SendSummary(ctx context.Context, d summary.Digest) error {
	_, failure := s.post(ctx, s.o.Timeout, place{destination: d.Channel, channel: d.Channel}, s.message(renderSummary(d)))
	return asError(failure)
}

// render always returns a message that can be sent: the default template stands in for one that fails.
func (s *Slack) render(v view) *message {
	l, err := s.o.Template.render(v)
	if err != nil {
		s.o.TemplateFailed(err)
	}
	return s.message(l)
}
