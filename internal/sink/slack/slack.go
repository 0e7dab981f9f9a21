package slack

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// webhookDestination is the Destination of every event with a webhook.
const webhookDestination = "webhook"

// Options are the settings of a Slack sink, as package config has checked them. The functions are required and must not block.
type Options struct {
	// Token makes a bot post with chat.postMessage. WebhookURL is an incoming webhook. One of them is set.
	Token, WebhookURL string
	// Channel gets the events without a route. A token needs it; a webhook ignores it.
	Channel string
	// Routes hold channels; the route of a category holds for all below it.
	Routes event.Table[string]
	// APIURL is the URL of the Web API; empty means Slack's own. The final slash may be missing.
	APIURL string
	// Mentions hold whom to mention: here, channel, everyone, the ID of a user or a user group, or the handle of a user
	// group. The mentions of a category hold for all below it. A handle needs a Token with the scope usergroups:read.
	Mentions event.Table[[]string]
	// MentionFailed is called once for every handle that could not be looked up.
	MentionFailed func(handle string, err error)
	// Template makes the messages of events; nil means the default template.
	Template *render.Template
	// TemplateFailed is called for every message that the default template had to make instead.
	TemplateFailed func(error)
	// Timeout bounds one Send, one SendSummary and one Mention, from dialling to the end of the last answer.
	Timeout time.Duration
	// LookUp has Find read the history of channels; without it, Find finds every post unsearchable. A message that Slack took is in the
	// history after Settle.
	LookUp bool
	Settle time.Duration
	// Pacer paces the requests of look-ups; nil means that Find makes them at once. IDs holds the IDs of channels for all instances; nil means
	// that this sink is alone.
	Pacer Pacer
	IDs   IDs
	// Readings makes this worker's part in the reading of a thread by all workers: pacing.Readings.Of. nil means that this sink is alone. It may
	// be called concurrently.
	Readings func(thread string) Reading
	// Observe is called after every request of Send, SendSummary and Update, with their context.
	Observe func(context.Context, sink.Request)
	// Version is part of the User-Agent header; may be empty.
	Version string
}

// Pacer paces look-ups on all instances: pacing.Pacer. Its methods may be called concurrently.
type Pacer interface {
	// AwaitLookUp waits until one more request may be made. If the context ends first, it returns the context's error.
	AwaitLookUp(ctx context.Context) error
	// PauseLookUps stops look-ups for d.
	PauseLookUps(ctx context.Context, d time.Duration)
}

// IDs holds the IDs of channels and the routes for all instances: pacing.Channels. Its methods may be called concurrently.
type IDs interface {
	// ID returns the ID of a channel; "" if no instance has noted it. After an error, an instance may have noted it.
	ID(ctx context.Context, channel string) (string, error)
	// Note notes the ID of a channel.
	Note(ctx context.Context, channel, id string) error
	// Routes notes this instance's routes, and returns the routes of other instances, the newest first.
	Routes(ctx context.Context, own string) (others []string, err error)
}

// Sink posts to Slack. Make one with New, and Close it at the end.
type Sink struct {
	o         Options
	web       *web
	transport *http.Transport
	mentions  *mentions
	channels  *channels
	routes    *notedRoutes
	history   *history
}

var (
	_ sink.Sink    = (*Sink)(nil)
	_ sink.Digests = (*Sink)(nil)
	_ sink.Finder  = (*Sink)(nil)
)

// New makes a sink without calling Slack.
func New(o Options) *Sink {
	o.APIURL = strings.TrimRight(cmp.Or(o.APIURL, slack.APIURL), "/") + "/"
	webhook, _ := url.Parse(o.WebhookURL)
	transport := client.NewTransport()
	requests := client.New(client.Options{
		Sink: "slack", Transport: transport, UserAgent: strings.TrimSuffix("notifier/"+o.Version, "/"),
		Redactor: client.NewRedactor(o.Token, webhook), Observe: o.Observe,
	})
	if o.Pacer == nil {
		o.Pacer = alone{}
	}
	if o.IDs == nil {
		o.IDs = alone{}
	}
	w := &web{
		api:    slack.New(o.Token, slack.OptionHTTPClient(requests.HTTP), slack.OptionAPIURL(o.APIURL)),
		client: requests, timeout: o.Timeout, pacer: o.Pacer,
	}
	return &Sink{
		o: o, web: w, transport: transport,
		mentions: &mentions{table: o.Mentions, list: w.userGroups, failed: o.MentionFailed, now: time.Now},
		channels: newChannels(w, o.IDs),
		routes:   newRoutes(&o),
		history:  newHistory(w, o.Readings),
	}
}

// Close closes idle connections. It does not disturb requests under way.
func (s *Sink) Close() { s.transport.CloseIdleConnections() }

// Destination returns "webhook", or the channel of d's category, or the destination of the message that d resolves.
func (s *Sink) Destination(d sink.Delivery) string {
	if opened := s.opened(d); opened.Repliable() && opened.Destination != "" {
		return opened.Destination
	}
	return s.o.route(d.Event.Category)
}

// Destinations returns "webhook", or the default channel and the channels of the routes, each once.
func (s *Sink) Destinations() []string {
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

// route returns "webhook", or the channel of category.
func (o *Options) route(category string) string {
	if o.WebhookURL != "" {
		return webhookDestination
	}
	if route, ok := o.Routes.Nearest(category); ok {
		return route.Value
	}
	return o.Channel
}

// Mention returns the mentions of e's category. It asks Slack for a new handle, and leaves out a handle that cannot be found.
func (s *Sink) Mention(e event.Event) string { return s.mentions.of(e.Category) }

// Send posts d once. An event that resolves a message is a reply in its thread: a message of its own if d.Opened names no message.
func (s *Sink) Send(ctx context.Context, d sink.Delivery) (receipt string, err error) {
	opened := s.opened(d)
	m := s.o.render(render.NewView(d, opened))
	if opened.Repliable() {
		_, failure := s.post(ctx, place{s.Destination(d), opened.Channel, opened.Timestamp, d.Name}, m)
		return "", failure.AsError()
	}
	return s.deliver(ctx, d, m)
}

// deliver posts the message of d to its channel.
func (s *Sink) deliver(ctx context.Context, d sink.Delivery, m render.Message) (receipt string, err error) {
	destination := s.o.route(d.Event.Category)
	if destination != webhookDestination {
		s.routes.note(ctx)
	}
	posted, failure := s.post(ctx, place{destination: destination, channel: destination, name: d.Name}, m)
	if failure != nil {
		return "", failure
	}
	return sink.NewReceipt(d.Event, destination, posted.channel, posted.ts, d.Stored), nil
}

// SendSummary posts d once.
func (s *Sink) SendSummary(ctx context.Context, d summary.Digest) error {
	to := place{destination: d.Channel, channel: d.Channel, name: sink.DigestName(d.Channel, d.Claim)}
	_, failure := s.post(ctx, to, render.Digest(d))
	return failure.AsError()
}

// render returns a message that can always be sent: the default template replaces one that fails.
func (o *Options) render(v render.View) render.Message {
	m, err := o.Template.Event(v)
	if err != nil {
		o.TemplateFailed(err)
	}
	return m
}
