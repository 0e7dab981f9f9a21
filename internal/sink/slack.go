package sink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// webhookDestination is the Destination of every event that goes to a webhook.
const webhookDestination = "webhook"

// SlackOptions are the settings of a Slack sink.
type SlackOptions struct {
	// Token or WebhookURL, one of them, says how to post: as a bot with chat.postMessage, or
	// to an incoming webhook.
	Token, WebhookURL string
	// Channel is where events without a route go; needed with Token, unused with WebhookURL.
	Channel string
	// Routes hold channels; the route of a category holds for all below it.
	Routes event.Table[string]
	// APIURL is the Web API's; empty means Slack's own. The final slash may be missing.
	APIURL string
	// Mentions hold whom to mention: here, channel, everyone, the ID of a user or a user group, or a user
	// group's handle, as ParseMention returns them. Those of a category hold for all below it. A handle
	// needs a Token that may list user groups (scope usergroups:read).
	Mentions event.Table[[]string]
	// MentionFailed, if not nil, is told once of every handle that could not be looked up. It must not block.
	MentionFailed func(handle string, err error)
	// Template makes the messages of events; nil means the default one.
	Template *Template
	// TemplateFailed, if not nil, is told of every message for which the default template stood in. It must not block.
	TemplateFailed func(error)
	// Timeout bounds one Send, one SendSummary and one Mention, from dialling to the end of the last answer.
	Timeout time.Duration
	// Observe, if not nil, is told of every request that Send and SendSummary made. It must not block.
	Observe func(result Class, took time.Duration)
	// Version is named in the User-Agent header; may be empty.
	Version string
}

// Slack posts to Slack. Make one with NewSlack, and Close it at the end.
type Slack struct {
	channel   string
	routes    event.Table[string]
	webhook   string // empty with a token
	timeout   time.Duration
	observe   func(Class, time.Duration)
	mentions  *mentions
	template  *Template
	failed    func(error)   // of the template
	api       *slack.Client // nil with a webhook
	client    *http.Client
	transport *http.Transport
	redactor  redactor
}

// NewSlack makes a sink without calling Slack. Its error joins every fault of the options and
// names no secret.
func NewSlack(o SlackOptions) (*Slack, error) {
	var faults []error
	fault := func(format string, arguments ...any) {
		faults = append(faults, fmt.Errorf("slack: "+format, arguments...))
	}
	switch {
	case o.Token == "" && o.WebhookURL == "":
		fault("a token or a webhook URL is needed")
	case o.Token != "" && o.WebhookURL != "":
		fault("a token and a webhook URL exclude each other")
	case o.Token != "" && o.Channel == "":
		fault("a token needs a channel")
	}
	if strings.ContainsFunc(o.Token, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		fault("the token holds white space or control characters")
	}
	if o.Timeout <= 0 {
		fault("the timeout must be positive, not %v", o.Timeout)
	}
	apiURL := strings.TrimRight(o.APIURL, "/") + "/"
	if o.APIURL == "" {
		apiURL = slack.APIURL
	}
	api := parseURL(apiURL)
	if api == nil || api.RawQuery != "" || api.Fragment != "" {
		fault("the API URL is not of the form https://host/path/")
	}
	var webhook *url.URL
	if o.WebhookURL != "" {
		if webhook = parseURL(o.WebhookURL); webhook == nil {
			fault("the webhook URL is not of the form https://host/path")
		}
	}
	for _, name := range mentionNames(o.Mentions) {
		switch markup, err := mentionMarkup(name); {
		case err != nil:
			fault("%w", err)
		case markup == "" && o.WebhookURL != "":
			fault("the handle @%s needs a token, since a webhook cannot look it up; give the user group's ID", name)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}

	transport := newTransport()
	s := &Slack{
		channel:   o.Channel,
		routes:    o.Routes,
		webhook:   o.WebhookURL,
		timeout:   o.Timeout,
		observe:   o.Observe,
		template:  o.Template,
		failed:    o.TemplateFailed,
		redactor:  newRedactor(o.Token, webhook, api),
		transport: transport,
		client: &http.Client{
			Transport:     &recorder{transport, strings.TrimSuffix("notifier/"+o.Version, "/")},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if s.observe == nil {
		s.observe = func(Class, time.Duration) {}
	}
	if s.failed == nil {
		s.failed = func(error) {}
	}
	s.mentions = &mentions{table: o.Mentions, list: s.userGroups, failed: o.MentionFailed, now: time.Now}
	if o.Token != "" {
		s.api = slack.New(o.Token, slack.OptionHTTPClient(s.client), slack.OptionAPIURL(apiURL))
	}
	return s, nil
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

// Destinations returns "webhook", or the default channel and those of the routes.
func (s *Slack) Destinations() []string {
	if s.webhook != "" {
		return []string{webhookDestination}
	}
	channels := []string{s.channel}
	for _, route := range s.routes.Entries() {
		if !slices.Contains(channels, route.Value) {
			channels = append(channels, route.Value)
		}
	}
	return channels
}

// SummaryDestination returns "webhook", or the channel of category.
func (s *Slack) SummaryDestination(category string) string {
	if s.webhook != "" {
		return webhookDestination
	}
	if route, ok := s.routes.Nearest(category); ok {
		return route.Value
	}
	return s.channel
}

// Mention returns the mentions of e's category. It asks Slack for a handle that it does not know yet, and leaves out
// one that cannot be found.
func (s *Slack) Mention(e event.Event) (markup string, ok bool) { return s.mentions.of(e.Category) }

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
			if failure := s.resolve(ctx, v, opened); failure != nil {
				return "", failure
			}
			return "", nil
		}
		m = s.render(v)
	}
	destination := s.SummaryDestination(d.Event.Category)
	answer, failure := s.post(ctx, s.timeout, place{destination, destination, ""}, m)
	if failure != nil {
		return "", failure
	}
	if d.Event.Status != event.StatusFiring {
		return "", nil
	}
	return newReceipt(d.Event, destination, decodeAnswer(answer.body), time.Now()), nil
}

// SendSummary posts d once.
func (s *Slack) SendSummary(ctx context.Context, d summary.Digest) error {
	m := s.message(renderSummary(d))
	if _, failure := s.post(ctx, s.timeout, place{d.Channel, d.Channel, ""}, m); failure != nil {
		return failure
	}
	return nil
}

// render always returns a message that can be sent: the default template stands in for one that fails.
func (s *Slack) render(v view) *message {
	l, err := s.template.render(v)
	if err != nil {
		s.failed(err)
	}
	return s.message(l)
}

// place is where a message goes.
type place struct {
	destination string // names it in failures
	channel     string // as Slack takes it; unused with a webhook
	thread      string // the ts of the message to reply to; empty for none
}

// post makes one request to post a message, and observes it.
func (s *Slack) post(ctx context.Context, timeout time.Duration, to place, m *message) (reply, *Error) {
	r := request{destination: to.destination, timeout: timeout, form: m.form, limit: maxReply, judge: judgePost}
	if s.webhook != "" {
		r.judge = judgeWebhook
		r.do = func(ctx context.Context) error {
			return slack.PostWebhookCustomHTTPContext(ctx, s.webhook, s.client, m.webhook())
		}
	} else {
		options := m.options()
		if to.thread != "" {
			options = append(options, slack.MsgOptionTS(to.thread))
		}
		r.do = func(ctx context.Context) error {
			_, _, err := s.api.PostMessageContext(ctx, to.channel, options...)
			return err
		}
	}
	return s.observed(ctx, r)
}

// observed makes one request that counts, unless the context has ended.
func (s *Slack) observed(ctx context.Context, r request) (reply, *Error) {
	if ctx.Err() != nil {
		return reply{}, s.interrupted(ctx, r.destination)
	}
	began := time.Now()
	answer, failure := s.call(ctx, r)
	took := time.Since(began)
	if failure != nil {
		s.observe(failure.Class, took)
		return reply{}, failure
	}
	s.observe(OK, took)
	return answer, nil
}

// interrupted is the failure of a call whose context ended before it began.
func (s *Slack) interrupted(ctx context.Context, destination string) *Error {
	return &Error{Class: Transient, Channel: destination, Err: fmt.Errorf("not sent: %w", ctx.Err())}
}

// request is one request to Slack.
type request struct {
	destination string // names it in its failure
	timeout     time.Duration
	form        string // goes behind what do makes of the request's body
	limit       int64  // bytes to read of the answer
	judge       func(reply) verdict
	do          func(context.Context) error // makes it, with the context that it is handed
}

// call makes one request and judges its answer. The request's own error is of no use: what the
// exchange recorded says more and holds no URL.
func (s *Slack) call(parent context.Context, r request) (reply, *Error) {
	ctx, cancel := context.WithTimeout(parent, r.timeout)
	defer cancel()
	x := exchange{form: r.form, limit: r.limit}
	requestErr := r.do(x.context(ctx))

	failure := &Error{Channel: r.destination}
	switch {
	case x.reply != nil:
		v := r.judge(*x.reply)
		if v.class == OK {
			return *x.reply, nil
		}
		failure.Class, failure.RetryAfter = v.class, v.retryAfter
		failure.Code = s.redactor.text(v.code, maxCode)
		switch {
		case v.class == Unknown && x.err != nil:
			failure.Err = fmt.Errorf("%s: the answer broke off: %w", failure.Code, s.cause(parent, ctx, r.timeout, x.err))
		case v.detail != "":
			failure.Err = fmt.Errorf("%s: %s", failure.Code, s.redactor.text(v.detail, maxDetail))
		default:
			failure.Err = errors.New(failure.Code)
		}
	case x.err != nil && x.begun.Load():
		failure.Class = Unknown
		failure.Err = fmt.Errorf("sent, but no answer came: %w", s.cause(parent, ctx, r.timeout, x.err))
	case x.err != nil:
		failure.Class = Transient
		failure.Err = fmt.Errorf("not sent: %w", s.cause(parent, ctx, r.timeout, x.err))
	default:
		// The library refused before anything reached the transport. No later event would fare
		// better, so none may be given up for it.
		failure.Class = Misconfigured
		failure.Err = fmt.Errorf("request not built: %w", s.redactor.error(requestErr))
	}
	return reply{}, failure
}

// cause returns why a call ended without an answer: the caller's context, the timeout, or err.
func (s *Slack) cause(parent, ctx context.Context, timeout time.Duration, err error) error {
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("no answer within %v: %w", timeout.Round(time.Millisecond), ctx.Err())
	default:
		return s.redactor.error(err)
	}
}
