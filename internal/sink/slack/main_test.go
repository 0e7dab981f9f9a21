package slack

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generous is a timeout that no answered request of these tests reaches.
const generous = time.Minute

var (
	hello = event.Event{ID: "e-1", Category: "payments.refunds", Title: "hello", Text: "world"}
	fired = event.Event{
		ID: "e-1", Category: "payments.refunds", Title: "refunds fail", Text: "all of them", Severity: event.SeverityError,
		Status: event.StatusFiring, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	ended = event.Event{
		ID: "e-2", Category: "payments.refunds", Title: "refunds work", Severity: event.SeverityError,
		Status: event.StatusResolved, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 9, 5, 0, time.UTC),
	}
)

// newTestSlack makes a sink that is closed when the test ends.
func newTestSlack(t testing.TB, o Options) *Sink {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = generous
	}
	if o.Observe == nil {
		o.Observe = func(context.Context, sink.Request) {}
	}
	if o.MentionFailed == nil {
		o.MentionFailed = func(string, error) {}
	}
	if o.TemplateFailed == nil {
		o.TemplateFailed = func(error) {}
	}
	s := New(o)
	t.Cleanup(s.Close)
	return s
}

// byToken and byWebhook are the two ways to post to a server.
func byToken(server *slacktest.Server) Options {
	return Options{Token: slacktest.DefaultToken, Channel: "C0000001", APIURL: server.APIURL()}
}

func byWebhook(server *slacktest.Server) Options {
	return Options{WebhookURL: server.WebhookURL()}
}

// answeredBy posts by token to a server with this handler.
func answeredBy(t *testing.T, handler http.HandlerFunc) Options {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return Options{Token: "xoxb-1", Channel: "#ops", APIURL: server.URL}
}

// alwaysAnswered posts by token to a server that answers each method with a text.
func alwaysAnswered(t *testing.T, answers map[string]string) Options {
	t.Helper()
	return answeredBy(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, answers[r.URL.Path[1:]]) })
}

// ways returns a sink that posts by token and one that posts to a webhook.
func ways(t *testing.T, server *slacktest.Server) []*Sink {
	t.Helper()
	return []*Sink{newTestSlack(t, byToken(server)), newTestSlack(t, byWebhook(server))}
}

func routes(t *testing.T, pairs ...string) event.Table[string] {
	t.Helper()
	return table(t, func(channel string) string { return channel }, pairs)
}

// mentioned makes a table of paths. Each has mentions, joined by "+".
func mentioned(t *testing.T, pairs ...string) event.Table[[]string] {
	t.Helper()
	return table(t, func(mentions string) []string { return strings.Split(mentions, "+") }, pairs)
}

func table[T any](t *testing.T, value func(string) T, pairs []string) event.Table[T] {
	t.Helper()
	var entries []event.Entry[T]
	for i := 0; i < len(pairs); i += 2 {
		pattern := testkit.Must(event.ParsePattern(pairs[i]))(t)
		entries = append(entries, event.Entry[T]{Pattern: pattern, Value: value(pairs[i+1])})
	}
	return testkit.Must(event.NewTable(entries))(t)
}

// send posts an event without a usage or a receipt.
func send(ctx context.Context, s sink.Sink, e event.Event) error {
	_, err := s.Send(ctx, sink.Delivery{Event: e})
	return err
}

func fire(t *testing.T, s sink.Sink) string {
	t.Helper()
	receipt := testkit.Must(s.Send(t.Context(), sink.Delivery{Event: fired}))(t)
	testkit.Require(t, receipt != "" && len(receipt) <= 2<<10, "got the receipt %q, want one of %d bytes at most", receipt, 2<<10)
	return receipt
}

// resolved is the delivery of the event that resolves the one with a receipt.
func resolved(receipt string) sink.Delivery { return sink.Delivery{Event: ended, Opened: receipt} }

func failureOf(t *testing.T, err error) *sink.Error {
	t.Helper()
	failure, known := errors.AsType[*sink.Error](err)
	testkit.Require(t, known, "got %v, want an *sink.Error", err)
	return failure
}

// wantFailure checks the class of a failure, and its cause where one is given.
func wantFailure(t *testing.T, what string, err error, class sink.Class, cause error) {
	t.Helper()
	if failure := failureOf(t, err); failure.Class != class || cause != nil && !errors.Is(failure, cause) {
		t.Errorf("%s: got %v, want %s because of %v", what, failure, class, cause)
	}
}

// textOf returns every text of a message, one on a line.
func textOf(m slacktest.Message) string {
	texts := []string{m.Text}
	for _, text := range m.Texts() {
		texts = append(texts, text.Text)
	}
	return strings.Join(texts, "\n")
}

// observer collects the observed requests.
type observer struct {
	mu      sync.Mutex
	results []sink.Class
}

func (o *observer) observe(_ context.Context, r sink.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Took < 0 {
		r.Class = "negative duration"
	}
	o.results = append(o.results, r.Class)
}

// held answers only when the client leaves.
func held(slacktest.Post) slacktest.Answer { return slacktest.Hold(nil, slacktest.OK()) }

// usual is a delivery with everything that an event may have.
func usual() sink.Delivery { return render.UsualView().Delivery }

func sampleSummary() summary.Digest {
	return summary.Digest{
		Channel: "C0000001", Dropped: 112, First: fired.Time, Last: ended.Time,
		Paths: []summary.Path{{Path: "payments.refunds", Dropped: 112, Title: "<!here> fails"}},
	}
}
