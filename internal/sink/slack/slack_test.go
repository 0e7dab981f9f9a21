package slack

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestSendLargestEvent(t *testing.T) {
	t.Parallel()
	e := event.Event{
		ID: strings.Repeat("i", 64), Category: strings.Repeat("c", 128), Title: strings.Repeat("<t>", 5000),
		Text: strings.Repeat("&😀\n", 50000), Source: strings.Repeat("s", 5000), Time: time.Unix(1767322800, 0),
		Link: "https://example.org/" + strings.Repeat("x", 1400),
	}
	for range 300 {
		e.Fields = append(e.Fields, event.Field{Name: strings.Repeat("n>", 200), Value: strings.Repeat("v", 3000)})
	}
	for _, s := range ways(t, slacktest.New(t)) {
		testkit.NoError(t, send(t.Context(), s, e))
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	o.Routes = routes(t, "payments", "C0000002", "payments.*.failed", "C0000003", "debug", "#debug")
	s := newTestSlack(t, o)
	for _, test := range []struct{ category, want string }{
		{"errors", "C0000001"},
		{"payments", "C0000002"},
		{"payments.refunds", "C0000002"},
		{"payments.refunds.failed", "C0000003"},
		{"payments.refunds.failed.twice", "C0000003"},
		{"debug.x", "#debug"},
		{"", "C0000001"},
	} {
		e := event.Event{Category: test.category, Title: "t"}
		testkit.Equal(t, s.Destination(sink.Delivery{Event: e}), test.want, "%q", test.category)
		testkit.NoError(t, send(t.Context(), s, e))
		posts := server.Posts()
		testkit.Equal(t, posts[len(posts)-1].Channel, test.want, "%q: posted to", test.category)
	}
	testkit.EqualSlices(t, s.Destinations(), []string{"C0000001", "C0000002", "C0000003", "#debug"}, "destinations")
	webhook := newTestSlack(t, byWebhook(server))
	testkit.Equal(t, webhook.Destination(sink.Delivery{Event: hello}), "webhook", "destination")
	testkit.EqualSlices(t, webhook.Destinations(), []string{"webhook"}, "destinations")
}

var sendFailures = []struct {
	name       string
	answer     slacktest.Answer
	class      sink.Class
	code       string
	retryAfter time.Duration
}{
	{"rate limited", slacktest.RateLimited(30 * time.Second), sink.RateLimited, "ratelimited", 30 * time.Second},
	{"server error", slacktest.HTML(503), sink.Unknown, "503 Service Unavailable", 0},
	{"page with 200", slacktest.HTML(200), sink.Unknown, "200 OK", 0},
	{"redirect, not followed", slacktest.Redirect("http://127.0.0.1:1/"), sink.Misconfigured, "307 Temporary Redirect", 0},
	{"answer broken off", slacktest.Truncated(1000, `{"ok":`), sink.Unknown, "200 OK", 0},
	{"reset after reading", slacktest.Reset(), sink.Unknown, "", 0},
	{"taken, answer lost", slacktest.Stored(slacktest.Reset()), sink.Unknown, "", 0},
	{"message refused", slacktest.Code("invalid_blocks"), sink.Rejected, "invalid_blocks", 0},
	{"not JSON in time", slacktest.Huge(1 << 20), sink.Unknown, "200 OK", 0},
	{
		"long and ugly code", slacktest.Status(400, `{"ok":false,"error":"a\n\u202eb`+strings.Repeat("c", 200)+`"}`),
		sink.Rejected, "a b" + strings.Repeat("c", 96) + "…", 0,
	},
}

func TestSendFailures(t *testing.T) {
	t.Parallel()
	for _, test := range sendFailures {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			for destination, options := range map[string]Options{"C0000001": byToken(server), "webhook": byWebhook(server)} {
				var observed observer
				options.Observe = observed.observe
				s := newTestSlack(t, options)
				server.Script(test.answer)
				failure := failureOf(t, send(t.Context(), s, hello))
				want := &sink.Error{Class: test.class, Code: test.code, Channel: destination, RetryAfter: test.retryAfter, Err: failure.Err}
				testkit.Equal(t, *failure, *want, "%s", destination)
				testkit.Contains(t, "failure", failure.Error(), destination, string(test.class), failure.Err.Error())
				testkit.NoError(t, send(t.Context(), s, hello)) // the next post
				testkit.EqualSlices(t, observed.results, []sink.Class{test.class, sink.OK}, "%s: observed", destination)
			}
			testkit.Equal(t, len(server.Posts()), 4, "requests")
		})
	}
}

func TestSendTakesAnAnswerCutShortAfterItsVerdict(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	const verdict = `{"ok":true,"channel":"C0000001","ts":"1.000001","message":"`
	server.Script(
		slacktest.Status(200, verdict+strings.Repeat("x", 1<<20)+`"}`),
		slacktest.Truncated(1000, verdict),
	)
	for range 2 {
		testkit.NoError(t, send(t.Context(), s, hello))
	}
}

func TestSendBeforeTLSIsUp(t *testing.T) {
	t.Parallel()
	o := byToken(slacktest.New(t))
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	o.APIURL, o.Timeout = "https://"+listener.Addr().String(), 50*time.Millisecond
	wantFailure(t, "silent", send(t.Context(), newTestSlack(t, o), hello), sink.Transient, context.DeadlineExceeded)
}

func TestSendTimesOut(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	server.Respond(held)
	o := byToken(server)
	o.Timeout = 100 * time.Millisecond
	failure := failureOf(t, send(t.Context(), newTestSlack(t, o), hello))
	testkit.Fails(t, "error", failure, context.DeadlineExceeded, "100ms")
	// On a slow machine the timeout may end before the request is sent.
	if want := map[bool]sink.Class{true: sink.Unknown, false: sink.Transient}[len(server.Posts()) > 0]; failure.Class != want && failure.Class != sink.Unknown {
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
		server.Respond(func(p slacktest.Post) slacktest.Answer {
			cancel(cause)
			return held(p)
		})
		wantFailure(t, "under way", send(ctx, s, hello), sink.Unknown, context.Canceled)
		wantFailure(t, "before", send(ctx, s, hello), sink.Transient, context.Canceled)
		testkit.EqualSlices(t, observed.results, []sink.Class{sink.Unknown}, "observed")
		testkit.Equal(t, len(server.Posts()), 1, "requests")
	}
}

func TestSendSummary(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	o.Routes = routes(t, "payments", "C0000002")
	var observed observer
	o.Observe = observed.observe
	s := newTestSlack(t, o)
	digest := sampleSummary()
	digest.Channel = "C0000002"
	for _, sink := range []*Sink{s, newTestSlack(t, byWebhook(server))} {
		testkit.NoError(t, sink.SendSummary(t.Context(), digest))
	}
	testkit.Equal(t, s.o.route("payments.refunds"), "C0000002", "destination of the summary")
	posts := server.Accepted()
	testkit.Equal(t, posts[0].Channel, "C0000002", "channel")
	testkit.Equal(t, posts[1].Method, slacktest.MethodWebhook, "method")
	for _, post := range posts {
		testkit.Contains(t, "posted", textOf(post.Message), "112", "payments.refunds", "&lt;!here&gt;")
	}
	server.Script(slacktest.RateLimited(9 * time.Second))
	failure := failureOf(t, s.SendSummary(t.Context(), digest))
	testkit.Check(t, failure.Class == sink.RateLimited && failure.Channel == "C0000002" && failure.RetryAfter == 9*time.Second, "got %v", failure)
	testkit.EqualSlices(t, observed.results, []sink.Class{sink.OK, sink.RateLimited}, "observed")
}

// Each attempt reports the failure of a template.
func TestTemplateFails(t *testing.T) {
	t.Parallel()
	broken := testkit.Must(render.Parse(`{"text": "{{if eq .Title "hello"}}{{slice .Title 0 10}}{{end}}{{printf "%.10s" .Title}}"}`))(t)
	server := slacktest.New(t)
	o := byToken(server)
	failures := 0
	o.Template, o.TemplateFailed = broken, func(err error) {
		failures++
		testkit.Contains(t, "failure", err.Error(), "render event e-1 by the template: ")
	}
	s := newTestSlack(t, o)
	for range 2 {
		testkit.NoError(t, send(t.Context(), s, hello))
	}
	testkit.Equal(t, failures, 2, "failures")
	testkit.NoError(t, send(t.Context(), s, fired))
	testkit.Equal(t, failures, 2, "failures with a sound message")
	posts := server.Accepted()
	testkit.Equal(t, posts[0].Text, "[INFO] hello", "by the default template")
	testkit.Equal(t, posts[2].Text, "refunds fa", "by the template")
}

// answering is a transport. It reads a request and answers at once.
type answering struct{ body string }

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	_, err := io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: io.NopCloser(strings.NewReader(a.body))}, err
}

// BenchmarkSend measures a post without the network.
func BenchmarkSend(b *testing.B) {
	s := newTestSlack(b, Options{Token: "xoxb-1", Channel: "C0000001", APIURL: "http://slack.invalid"})
	s.transport.RegisterProtocol("http", answering{`{"ok":true,"channel":"C0000001","ts":"1700000000.000100","message":{"text":"` +
		strings.Repeat("x", 1000) + `"}}`})
	d := usual()
	b.ReportAllocs()
	for b.Loop() {
		testkit.Must(s.Send(b.Context(), d))(b)
	}
}
