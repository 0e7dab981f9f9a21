package sink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
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
	// Timeout bounds one request, from dialling to the end of the answer.
	Timeout time.Duration
	// Observe, if not nil, is told of every request that Send made. It must not block.
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

// Destination returns "webhook", or the channel of e's category.
func (s *Slack) Destination(e event.Event) string {
	if s.webhook != "" {
		return webhookDestination
	}
	if route, ok := s.routes.Nearest(e.Category); ok {
		return route.Value
	}
	return s.channel
}

// Send posts e once.
func (s *Slack) Send(ctx context.Context, e event.Event) error {
	destination, message := s.Destination(e), render(e)
	judge, post := judgeWebhook, func(ctx context.Context) error {
		return slack.PostWebhookCustomHTTPContext(ctx, s.webhook, s.client, message.webhook())
	}
	if s.webhook == "" {
		judge, post = judgePost, func(ctx context.Context) error {
			_, _, err := s.api.PostMessageContext(ctx, destination, message.options()...)
			return err
		}
	}
	if ctx.Err() != nil {
		return s.interrupted(ctx, destination)
	}
	began := time.Now()
	_, failure := s.call(ctx, destination, judge, post)
	took := time.Since(began)
	if failure != nil {
		s.observe(failure.Class, took)
		return failure
	}
	s.observe(OK, took)
	return nil
}

// interrupted is the failure of a call whose context ended before it began.
func (s *Slack) interrupted(ctx context.Context, destination string) *Error {
	return &Error{Class: Transient, Channel: destination, Err: fmt.Errorf("not sent: %w", ctx.Err())}
}

// call makes one request, which must use the context that it is handed, and judges its answer.
// The request's own error is of no use: what the exchange recorded says more and holds no URL.
func (s *Slack) call(parent context.Context, destination string, judge func(reply) verdict,
	request func(context.Context) error,
) (reply, *Error) {
	ctx, cancel := context.WithTimeout(parent, s.timeout)
	defer cancel()
	var x exchange
	requestErr := request(x.context(ctx))

	failure := &Error{Channel: destination}
	switch {
	case x.reply != nil:
		v := judge(*x.reply)
		if v.class == OK {
			return *x.reply, nil
		}
		failure.Class, failure.RetryAfter = v.class, v.retryAfter
		failure.Code = s.redactor.text(v.code, maxCode)
		switch {
		case v.class == Unknown && x.err != nil:
			failure.Err = fmt.Errorf("%s: the answer broke off: %w", failure.Code, s.cause(parent, ctx, x.err))
		case v.detail != "":
			failure.Err = fmt.Errorf("%s: %s", failure.Code, s.redactor.text(v.detail, maxDetail))
		default:
			failure.Err = errors.New(failure.Code)
		}
	case x.err != nil && x.begun.Load():
		failure.Class = Unknown
		failure.Err = fmt.Errorf("sent, but no answer came: %w", s.cause(parent, ctx, x.err))
	case x.err != nil:
		failure.Class = Transient
		failure.Err = fmt.Errorf("not sent: %w", s.cause(parent, ctx, x.err))
	default:
		// The library refused before anything reached the transport. No later event would fare
		// better, so none may be given up for it.
		failure.Class = Misconfigured
		failure.Err = fmt.Errorf("request not built: %w", s.redactor.error(requestErr))
	}
	return reply{}, failure
}

// cause returns why a call ended without an answer: the caller's context, the timeout, or err.
func (s *Slack) cause(parent, ctx context.Context, err error) error {
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("no answer within %v: %w", s.timeout, ctx.Err())
	default:
		return s.redactor.error(err)
	}
}
