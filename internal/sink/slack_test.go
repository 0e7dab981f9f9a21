package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// generous is longer than any request of these tests takes that is meant to be answered.
const generous = time.Minute

func newTestSlack(t *testing.T, o SlackOptions) *Slack {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = generous
	}
	s := testkit.Must(NewSlack(o))(t)
	t.Cleanup(s.Close)
	return s
}

// byToken and byWebhook post to a server in the two ways there are.
func byToken(server *slacktest.Server) SlackOptions {
	return SlackOptions{Token: slacktest.DefaultToken, Channel: "C0000001", APIURL: server.APIURL()}
}

func byWebhook(server *slacktest.Server) SlackOptions {
	return SlackOptions{WebhookURL: server.WebhookURL()}
}

func failureOf(t *testing.T, err error) *Error {
	t.Helper()
	var failure *Error
	if !errors.As(err, &failure) {
		t.Fatalf("got %v, want an *Error", err)
	}
	return failure
}

// send posts an event about whose message nothing else is known.
func send(ctx context.Context, s Sink, e event.Event) error {
	_, err := s.Send(ctx, Delivery{Event: e})
	return err
}

var sample = event.Event{ID: "e-1", Category: "payments.refunds", Title: "hello", Text: "world"}

func TestSendPosts(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	o.Version = "1.2.3"
	testkit.NoError(t, send(t.Context(), newTestSlack(t, o), sample))
	testkit.NoError(t, send(t.Context(), newTestSlack(t, byWebhook(server)), sample))
	posts := server.Accepted()
	if len(posts) != 2 {
		t.Fatalf("%d posts, want 2", len(posts))
	}
	for _, post := range posts {
		for _, option := range []string{"unfurl_links", "unfurl_media"} {
			testkit.Equal(t, post.Options.Get(option), "false", "%s", option)
		}
		for _, option := range []string{"link_names", "parse", "username", "as_user"} {
			if post.Options.Has(option) {
				t.Errorf("%s is set", option)
			}
		}
		if post.Text != "[INFO] hello" || len(post.Message.Blocks) != 1 || len(post.Message.Attachments) != 1 {
			t.Errorf("posted %+v", post.Message)
		}
	}
	if posts[0].Channel != "C0000001" || posts[0].Header.Get("User-Agent") != "notifier/1.2.3" {
		t.Errorf("posted to %s as %s", posts[0].Channel, posts[0].Header.Get("User-Agent"))
	}
	if !posts[1].Webhook || posts[1].Header.Get("User-Agent") != "notifier" {
		t.Errorf("posted as %s, webhook %t", posts[1].Header.Get("User-Agent"), posts[1].Webhook)
	}
}

// Whatever is rendered must be what Slack takes, at both ends of its limits.
func TestSendLargestEvent(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	e := event.Event{
		ID: strings.Repeat("i", 64), Category: strings.Repeat("c", 128), Title: strings.Repeat("<t>", 5000),
		Text: strings.Repeat("&😀\n", 50000), Source: strings.Repeat("s", 5000), Time: time.Unix(1767322800, 0),
		Link: "https://example.org/" + strings.Repeat("x", 1400),
	}
	for range 300 {
		e.Fields = append(e.Fields, event.Field{Name: strings.Repeat("n>", 200), Value: strings.Repeat("v", 3000)})
	}
	for _, o := range []SlackOptions{byToken(server), byWebhook(server)} {
		if err := send(t.Context(), newTestSlack(t, o), e); err != nil {
			t.Error(err)
		}
	}
}

func routes(t *testing.T, pairs ...string) event.Table[string] {
	t.Helper()
	var entries []event.Entry[string]
	for i := 0; i < len(pairs); i += 2 {
		pattern := testkit.Must(event.ParsePattern(pairs[i]))(t)
		entries = append(entries, event.Entry[string]{Pattern: pattern, Value: pairs[i+1]})
	}
	return testkit.Must(event.NewTable(entries))(t)
}

func TestDestination(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	o.Routes = routes(t, "payments", "C0000002", "payments.*.failed", "C0000003", "debug", "#debug")
	s := newTestSlack(t, o)
	tests := []struct{ category, want string }{
		{"errors", "C0000001"},
		{"payments", "C0000002"},
		{"payments.refunds", "C0000002"},
		{"payments.refunds.failed", "C0000003"},
		{"payments.refunds.failed.twice", "C0000003"},
		{"debug.x", "#debug"},
		{"", "C0000001"},
	}
	for _, test := range tests {
		e := event.Event{Category: test.category, Title: "t"}
		testkit.Equal(t, s.Destination(Delivery{Event: e}), test.want, "%q", test.category)
		testkit.NoError(t, send(t.Context(), s, e))
		posts := server.Posts()
		testkit.Equal(t, posts[len(posts)-1].Channel, test.want, "%q: posted to", test.category)
	}
	testkit.Equal(t, newTestSlack(t, byWebhook(server)).Destination(Delivery{Event: sample}), "webhook", "destination")
}

// observer collects what Observe is told.
type observer struct {
	mu      sync.Mutex
	results []Class
}

func (o *observer) observe(result Class, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if took < 0 {
		result = "negative duration"
	}
	o.results = append(o.results, result)
}

func TestSendFailures(t *testing.T) {
	t.Parallel()
	type want struct {
		class      Class
		code       string
		retryAfter time.Duration
	}
	type test struct {
		name    string
		answer  slacktest.Answer
		token   want
		webhook want
	}
	same := func(name string, answer slacktest.Answer, w want) test { return test{name, answer, w, w} }
	tests := []test{
		same("rate limited", slacktest.RateLimited(30*time.Second), want{RateLimited, "ratelimited", 30 * time.Second}),
		same("hostile wait", slacktest.RateLimited(1000*time.Hour), want{RateLimited, "ratelimited", time.Hour}),
		same("no wait named", slacktest.Status(429, ""), want{RateLimited, "429 Too Many Requests", time.Second}),
		same("server error", slacktest.HTML(503), want{Transient, "503 Service Unavailable", 0}),
		same("page with 200", slacktest.HTML(200), want{Unknown, "200 OK", 0}),
		same("empty object", slacktest.Status(200, "{}"), want{Unknown, "200 OK", 0}),
		same("unauthorized", slacktest.Status(401, ""), want{Misconfigured, "401 Unauthorized", 0}),
		same("redirect", slacktest.Redirect("http://127.0.0.1:1/"), want{Misconfigured, "307 Temporary Redirect", 0}),
		same("answer broken off", slacktest.Truncated(1000, `{"ok":`), want{Unknown, "200 OK", 0}),
		same("reset after reading", slacktest.Reset(), want{Unknown, "", 0}),
		same("taken, answer lost", slacktest.Lost(), want{Unknown, "", 0}),
		{
			"channel not found", slacktest.Code("channel_not_found"),
			want{Misconfigured, "channel_not_found", 0}, want{Misconfigured, "channel_not_found", 0},
		},
		{
			"message refused", slacktest.Code("invalid_blocks"),
			want{Rejected, "invalid_blocks", 0}, want{Rejected, "invalid_blocks", 0},
		},
		{
			"not JSON in time", slacktest.Huge(1 << 20),
			want{Unknown, "200 OK", 0}, want{Unknown, "200 OK", 0},
		},
		{
			"not found", slacktest.HTML(404),
			want{Misconfigured, "404 Not Found", 0}, want{Misconfigured, "404 Not Found", 0},
		},
		{
			"long and ugly code", slacktest.Status(400, `{"ok":false,"error":"a\n\u202eb`+strings.Repeat("c", 200)+`"}`),
			want{Rejected, "a b" + strings.Repeat("c", 96) + "…", 0}, want{Rejected, "a b" + strings.Repeat("c", 96) + "…", 0},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			var observed observer
			for _, mode := range []struct {
				options     SlackOptions
				destination string
				want        want
			}{
				{byToken(server), "C0000001", test.token},
				{byWebhook(server), "webhook", test.webhook},
			} {
				mode.options.Observe = observed.observe
				s := newTestSlack(t, mode.options)
				server.Script(test.answer)
				failure := failureOf(t, send(t.Context(), s, sample))
				testkit.Equal(t, (want{failure.Class, failure.Code, failure.RetryAfter}), mode.want, "%s", mode.destination)
				if failure.Channel != mode.destination || failure.Err == nil || !strings.Contains(failure.Error(), mode.destination) {
					t.Errorf("%s: got %+v", mode.destination, failure)
				}
				if err := send(t.Context(), s, sample); err != nil {
					t.Errorf("%s: the next post failed: %v", mode.destination, err)
				}
			}
			if got, want := observed.results, []Class{test.token.class, OK, test.webhook.class, OK}; !slices.Equal(got, want) {
				t.Errorf("observed %v, want %v", got, want)
			}
			testkit.Equal(t, len(server.Posts()), 4, "requests")
		})
	}
}

func TestSendTakesAnAnswerCutShortAfterItsVerdict(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	verdict := `{"ok":true,"channel":"C0000001","ts":"1.000001","message":"`
	server.Script(
		slacktest.Status(200, verdict+strings.Repeat("x", 1<<20)+`"}`),
		slacktest.Truncated(1000, verdict),
	)
	for range 2 {
		if err := send(t.Context(), s, sample); err != nil {
			t.Error(err)
		}
	}
}

func TestSendWhereNobodyListens(t *testing.T) {
	t.Parallel()
	server := testkit.Must(slacktest.Start())(t)
	server.Close()
	for _, o := range []SlackOptions{byToken(server), byWebhook(server)} {
		failure := failureOf(t, send(t.Context(), newTestSlack(t, o), sample))
		if failure.Class != Transient || failure.Code != "" || !strings.Contains(failure.Error(), "refused") {
			t.Errorf("got %v", failure)
		}
	}
}

func TestSendBeforeTLSIsUp(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	plain := strings.Replace(server.APIURL(), "http://", "https://", 1)
	s := newTestSlack(t, SlackOptions{Token: "xoxb-1", Channel: "C0000001", APIURL: plain})
	if failure := failureOf(t, send(t.Context(), s, sample)); failure.Class != Transient {
		t.Errorf("not TLS: got %v", failure)
	}

	// A listener that accepts, and says nothing.
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	silent := newTestSlack(t, SlackOptions{
		Token: "xoxb-1", Channel: "C0000001", APIURL: "https://" + listener.Addr().String(), Timeout: 50 * time.Millisecond,
	})
	failure := failureOf(t, send(t.Context(), silent, sample))
	if failure.Class != Transient || !errors.Is(failure, context.DeadlineExceeded) {
		t.Errorf("silent: got %v", failure)
	}
}

func TestSendTimesOut(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	server.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Hold(nil, slacktest.OK()) })
	o := byToken(server)
	o.Timeout = 100 * time.Millisecond
	s := newTestSlack(t, o)
	failure := failureOf(t, send(t.Context(), s, sample))
	if !errors.Is(failure, context.DeadlineExceeded) || !strings.Contains(failure.Error(), "100ms") {
		t.Errorf("got %v", failure)
	}
	// On a slow machine the time may be up before the request is out.
	if want := map[bool]Class{true: Unknown, false: Transient}[len(server.Posts()) > 0]; failure.Class != want && failure.Class != Unknown {
		t.Errorf("got %v, want %s", failure, want)
	}
}

func TestSendCancelled(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{nil, errors.New("shutting down")} {
		server := slacktest.New(t)
		var observed observer
		o := byToken(server)
		o.Observe = observed.observe
		s := newTestSlack(t, o)

		ctx, cancel := context.WithCancelCause(t.Context())
		server.Respond(func(slacktest.Post) slacktest.Answer {
			cancel(cause)
			return slacktest.Hold(nil, slacktest.OK())
		})
		failure := failureOf(t, send(ctx, s, sample))
		if failure.Class != Unknown || !errors.Is(failure, context.Canceled) {
			t.Errorf("under way: got %v", failure)
		}
		failure = failureOf(t, send(ctx, s, sample))
		if failure.Class != Transient || !errors.Is(failure, context.Canceled) {
			t.Errorf("before: got %v", failure)
		}
		if !slices.Equal(observed.results, []Class{Unknown}) || len(server.Posts()) != 1 {
			t.Errorf("observed %v and %d requests, want one request", observed.results, len(server.Posts()))
		}
	}
}

// staleConn is a kept connection that the other side has given up: it takes nothing more.
type staleConn struct {
	net.Conn
	stale *atomic.Bool
}

func (c staleConn) Write(p []byte) (int, error) {
	if c.stale.Load() {
		return 0, errors.New("connection given up")
	}
	return c.Conn.Write(p)
}

func TestSendOnAStaleConnection(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	stale, refuse := new(atomic.Bool), new(atomic.Bool)
	s.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if refuse.Load() {
			return nil, errors.New("refused")
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if stale.Swap(false) || err != nil {
			return conn, err
		}
		return staleConn{conn, stale}, nil
	}
	testkit.NoError(t, send(t.Context(), s, sample))
	stale.Store(true)
	if err := send(t.Context(), s, sample); err != nil {
		t.Errorf("the whole message, on another connection: %v", err)
	}
	for _, post := range server.Posts() {
		if len(post.Message.Blocks) != 1 || len(post.Message.Attachments) != 1 {
			t.Errorf("posted %+v", post.Message)
		}
	}
	s.transport.CloseIdleConnections()
	testkit.NoError(t, send(t.Context(), s, sample))
	stale.Store(true)
	refuse.Store(true)
	failure := failureOf(t, send(t.Context(), s, sample))
	if failure.Class != Transient || !strings.Contains(failure.Error(), "refused") {
		t.Errorf("no other connection: got %v", failure)
	}
	refuse.Store(false)
	if err := send(t.Context(), s, sample); err != nil {
		t.Errorf("another connection: %v", err)
	}
}

func TestSendOverHTTP2(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 2)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := r.FormValue("text")
		requests <- r.Proto + " " + text
		if strings.Contains(text, "hold") {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"ok":true,"ts":"1.000001"}`)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	s := newTestSlack(t, SlackOptions{Token: "xoxb-1", Channel: "C0000001", APIURL: server.URL})
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	s.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}

	testkit.NoError(t, send(t.Context(), s, sample))
	testkit.Equal(t, <-requests, "HTTP/2.0 [INFO] hello", "request")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-requests
		cancel()
	}()
	failure := failureOf(t, send(ctx, s, event.Event{Title: "hold"}))
	if failure.Class != Unknown || !errors.Is(failure, context.Canceled) {
		t.Errorf("cancelled under way: got %v", failure)
	}
}

func TestSendConcurrently(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			e := event.Event{ID: fmt.Sprint("e-", i), Category: "c", Title: fmt.Sprint("title ", i)}
			if err := send(context.Background(), s, e); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	texts := make(map[string]bool)
	for _, post := range server.Accepted() {
		texts[post.Text] = true
	}
	testkit.Equal(t, len(texts), 64, "different posts")
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	server, elsewhere := slacktest.New(t), slacktest.New(t)
	server.Script(
		slacktest.Redirect(elsewhere.APIURL()+"chat.postMessage"),
		slacktest.Redirect(elsewhere.WebhookURL()),
	)
	for _, o := range []SlackOptions{byToken(server), byWebhook(server)} {
		if failure := failureOf(t, send(t.Context(), newTestSlack(t, o), sample)); failure.Class != Misconfigured {
			t.Errorf("got %v", failure)
		}
	}
	testkit.Equal(t, len(elsewhere.Posts()), 0, "redirects were followed")
}

func TestNewSlackFaults(t *testing.T) {
	t.Parallel()
	valid := SlackOptions{Token: "xoxb-1", Channel: "C0000001", Timeout: time.Second}
	tests := []struct {
		name   string
		change func(*SlackOptions)
		want   []string // empty: no fault
	}{
		{"valid", func(*SlackOptions) {}, nil},
		{"valid webhook", func(o *SlackOptions) { o.Token, o.Channel, o.WebhookURL = "", "", "https://example.org/x" }, nil},
		{"API URL without slash", func(o *SlackOptions) { o.APIURL = "http://127.0.0.1:1/api" }, nil},
		{"nothing", func(o *SlackOptions) { o.Token = "" }, []string{"a token or a webhook URL is needed"}},
		{"both", func(o *SlackOptions) { o.WebhookURL = "https://example.org/x" }, []string{"exclude each other"}},
		{"no channel", func(o *SlackOptions) { o.Channel = "" }, []string{"a token needs a channel"}},
		{"token with a line end", func(o *SlackOptions) { o.Token = "xoxb-1\n" }, []string{"white space"}},
		{"no timeout", func(o *SlackOptions) { o.Timeout = 0 }, []string{"timeout must be positive"}},
		{"API URL", func(o *SlackOptions) { o.APIURL = "slack.com/api" }, []string{"the API URL"}},
		{"API URL with a query", func(o *SlackOptions) { o.APIURL = "https://slack.com/api?x=1" }, []string{"the API URL"}},
		{"webhook URL", func(o *SlackOptions) { o.Token, o.WebhookURL = "", "://" }, []string{"the webhook URL"}},
		{"mentions", func(o *SlackOptions) { o.Mentions = mentioned(t, "a", "here+U0000001+oncall", "b", "S0000001") }, nil},
		{"broken mention", func(o *SlackOptions) { o.Mentions = mentioned(t, "a", "<!here>") }, []string{`mention "@<!here>" is not`}},
		{
			"mentions by webhook", func(o *SlackOptions) {
				o.Token, o.WebhookURL, o.Mentions = "", "https://example.org/x", mentioned(t, "a", "here+U0000001", "b", "S0000001")
			},
			nil,
		},
		{
			"handle by webhook", func(o *SlackOptions) {
				o.Token, o.WebhookURL, o.Mentions = "", "https://example.org/x", mentioned(t, "a", "oncall")
			},
			[]string{"the handle @oncall needs a token"},
		},
		{"all at once", func(o *SlackOptions) { *o = SlackOptions{APIURL: "x"} }, []string{"is needed", "timeout", "the API URL"}},
	}
	for _, test := range tests {
		o := valid
		test.change(&o)
		s, err := NewSlack(o)
		if s != nil {
			s.Close()
		}
		if (err != nil) != (len(test.want) > 0) {
			t.Errorf("%s: got %v", test.name, err)
		}
		for _, want := range test.want {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q in it", test.name, err, want)
			}
		}
	}
}

// Canaries, which may stand in no error.
const (
	canaryToken   = "xoxb-canary-token-1234567890"
	canaryWebhook = "canaryWEBHOOKsecret42"
)

func assertNoCanary(t *testing.T, what string, values ...any) {
	t.Helper()
	for _, value := range values {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			text := fmt.Sprintf(format, value)
			for _, canary := range []string{canaryToken, canaryWebhook, "/T00000000/"} {
				if strings.Contains(text, canary) {
					t.Errorf("%s: %s shows %s: %s", what, format, canary, text)
				}
			}
		}
	}
}

// chain returns err and everything that it wraps.
func chain(err error) []any {
	if err == nil {
		return nil
	}
	found := []any{err}
	switch wrapper := err.(type) { //nolint:errorlint // walks the chain itself
	case interface{ Unwrap() error }:
		found = append(found, chain(wrapper.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, inner := range wrapper.Unwrap() {
			found = append(found, chain(inner)...)
		}
	}
	return found
}

func TestNoSecretInErrors(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t, slacktest.WithToken(canaryToken), slacktest.WithWebhookSecret(canaryWebhook))
	gone := testkit.Must(slacktest.Start(slacktest.WithWebhookSecret(canaryWebhook)))(t)
	gone.Close()

	webhookPath := "/services/T00000000/B00000000/" + canaryWebhook
	token := SlackOptions{Token: canaryToken, Channel: "C0000001", APIURL: server.APIURL()}
	opened := testkit.Must(newTestSlack(t, token).Send(t.Context(), Delivery{Event: fired}))(t)
	token.Mentions = mentioned(t, "payments", "oncall")
	for _, mode := range []struct {
		options SlackOptions
		echo    string // what an answer repeats of the secrets that it was sent
	}{
		{token, "token " + canaryToken + " again" + canaryToken},
		{byWebhook(server), "hook " + server.WebhookURL() + " path " + webhookPath + " last " + canaryWebhook},
	} {
		secret, echo := strings.Fields(mode.echo)[1], mode.echo
		for name, answer := range map[string]slacktest.Answer{
			"rate limited": slacktest.Reply(429, http.Header{"Retry-After": {secret}}, echo),
			"transient":    slacktest.Status(500, echo),
			"rejected":     slacktest.Status(400, echo),
			"setup":        slacktest.Status(403, echo),
			"not found":    slacktest.Status(404, echo),
			"code":         slacktest.Status(200, `{"ok":false,"error":"`+echo+`","needed":"`+echo+`"}`),
			"late code":    slacktest.Status(200, `{"ok":false,"error":"`+strings.Repeat("x", 90)+" "+echo+`"}`),
			"hint":         slacktest.Status(200, `{"ok":false,"error":"x","response_metadata":{"messages":["`+echo+`"]}}`),
			"not Slack's":  slacktest.Status(200, echo),
			"redirect":     slacktest.Redirect(secret),
			"bad redirect": slacktest.Redirect("http://[" + secret),
			"reset":        slacktest.Reset(),
			"broken off":   slacktest.Truncated(5000, echo),
			"bad header":   slacktest.Reply(200, http.Header{"Transfer-Encoding": {secret}}, ""),
		} {
			s := newTestSlack(t, mode.options)
			for what, deliver := range map[string]func() error{
				"post":    func() error { return send(t.Context(), s, sample) },
				"summary": func() error { return s.SendSummary(t.Context(), summary.Digest{Channel: "C0000001"}) },
			} {
				server.Script(answer)
				failure := failureOf(t, deliver())
				assertNoCanary(t, name+", "+what, append(chain(failure), failure.Code)...)
			}
			server.Respond(func(slacktest.Post) slacktest.Answer { return answer }) // to the update, the reply and what stands in for it
			if _, err := s.Send(t.Context(), resolved(opened)); err != nil {
				failure := failureOf(t, err)
				assertNoCanary(t, name+", resolved", append(chain(failure), failure.Code)...)
			} else {
				t.Errorf("%s: resolved", name)
			}
			server.Respond(nil)
		}
		server.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Hold(nil, slacktest.OK()) })
		mode.options.Timeout = 50 * time.Millisecond
		failure := failureOf(t, send(t.Context(), newTestSlack(t, mode.options), sample))
		assertNoCanary(t, "held", append(chain(failure), failure.Code)...)
		server.Respond(nil)
	}

	asTLS := func(address string) string { return strings.Replace(address, "http://", "https://", 1) }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name    string
		ctx     context.Context
		options SlackOptions
	}{
		{"refused, token", t.Context(), SlackOptions{Token: canaryToken, Channel: "C1", APIURL: gone.APIURL()}},
		{"refused, webhook", t.Context(), SlackOptions{WebhookURL: gone.WebhookURL()}},
		{"refused, password", t.Context(), SlackOptions{
			Token: "x", Channel: "C1", APIURL: "http://user:" + canaryToken + "@" + gone.Address(),
		}},
		{"TLS", t.Context(), SlackOptions{WebhookURL: asTLS(server.WebhookURL())}},
		{"no such host", t.Context(), SlackOptions{WebhookURL: "http://host.invalid" + webhookPath}},
		{"no such port", t.Context(), SlackOptions{WebhookURL: "http://127.0.0.1:99999" + webhookPath}},
		{"cancelled", ended, SlackOptions{WebhookURL: server.WebhookURL()}},
	} {
		failure := failureOf(t, send(test.ctx, newTestSlack(t, test.options), sample))
		if failure.Class != Transient {
			t.Errorf("%s: got %v", test.name, failure)
		}
		assertNoCanary(t, test.name, append(chain(failure), failure.Code)...)
		test.options.MentionFailed = func(handle string, err error) {
			assertNoCanary(t, test.name+", mention", append(chain(err), handle)...)
		}
		if test.options.WebhookURL == "" {
			test.options.Mentions = mentioned(t, "payments", "oncall")
		}
		newTestSlack(t, test.options).Mention(sample)
		for _, problem := range newTestSlack(t, test.options).Check(test.ctx) {
			assertNoCanary(t, test.name+", check", append(chain(problem.Err), problem.Subject)...)
		}
	}

	echoing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"ok":false,"error":"`+r.FormValue("token")+`","needed":"`+r.FormValue("token")+`"}`)
	}))
	t.Cleanup(echoing.Close)
	told := 0
	s := newTestSlack(t, SlackOptions{
		Token: canaryToken, Channel: "C1", APIURL: echoing.URL, Mentions: mentioned(t, "payments", "oncall"),
		MentionFailed: func(handle string, err error) {
			told++
			assertNoCanary(t, "mention", append(chain(err), handle)...)
		},
	})
	t.Cleanup(s.Close)
	if s.Mention(sample); told != 1 {
		t.Errorf("told %d times of a mention", told)
	}
	for _, problem := range s.checkHandles(t.Context()) {
		assertNoCanary(t, "check of a mention", append(chain(problem.Err), problem.Subject)...)
	}

	for _, o := range []SlackOptions{
		{Token: canaryToken + "\n", WebhookURL: "https://example.org/" + canaryWebhook},
		{WebhookURL: "ftp://example.org/" + canaryWebhook},
		{WebhookURL: "https://[" + canaryWebhook},
		{WebhookURL: "https://example.org/%zz" + canaryWebhook},
		{Token: canaryToken, APIURL: "https://user:" + canaryWebhook + "@[/"},
	} {
		s, err := NewSlack(o)
		if err == nil {
			s.Close()
			t.Fatal("broken options were taken")
		}
		assertNoCanary(t, "options", chain(err)...)
	}
}
