package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	fired = event.Event{
		ID: "e-1", Category: "payments.refunds", Title: "refunds fail", Text: "all of them", Severity: event.SeverityError,
		Status: event.StatusFiring, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	ended = event.Event{
		ID: "e-2", Category: "payments.refunds", Title: "refunds work", Severity: event.SeverityError,
		Status: event.StatusResolved, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 9, 5, 0, time.UTC),
	}
)

// send prints an event without a usage or a receipt.
func send(ctx context.Context, s sink.Sink, e event.Event) error {
	_, err := s.Send(ctx, sink.Delivery{Event: e})
	return err
}

// wantFailure checks the class, the channel and the cause of a failure.
func wantFailure(t *testing.T, what string, err error, class sink.Class, cause error) {
	t.Helper()
	failure, known := errors.AsType[*sink.Error](err)
	testkit.Check(t, known && failure.Class == class && failure.Channel == "console" && errors.Is(failure, cause),
		"%s: got %v, want %s of the console because of %v", what, err, class, cause)
}

func newTestPrinted(w io.Writer, colour bool) *Console {
	c := New(Options{Writer: w, Colour: colour})
	c.now = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
	return c
}

func TestPrinted(t *testing.T) {
	t.Parallel()
	for want, test := range map[string]struct {
		event  event.Event
		colour bool
	}{
		"03:04:05 WARNING  a.b disk full: on db-1 since 3\n": {
			event: event.Event{Category: "a.b", Title: "disk full", Text: "on db-1\r\n\tsince 3", Severity: event.SeverityWarning},
		},
		"03:04:05 INFO     a text alone\n":  {event: event.Event{Category: "a", Text: "text alone"}},
		"03:04:05 INFO     a title alone\n": {event: event.Event{Category: "a", Title: "title alone"}},
		"03:04:05 INFO     a [31mred[0m: abc\ufffd\n": { // commands to a terminal
			event: event.Event{Category: "a", Title: "\x1b[31mred\x1b[0m\x07", Text: "a\u202eb\u009bc\x7f\xff"},
		},
		"03:04:05 INFO     a " + strings.Repeat("x", 999) + "…\n": {event: event.Event{Category: "a", Text: strings.Repeat("x", 5000)}},
		"\x1b[2m03:04:05\x1b[0m \x1b[31mERROR   \x1b[0m \x1b[36ma\x1b[0m hello\n": {
			event: event.Event{Category: "a", Text: "hello", Severity: event.SeverityError}, colour: true,
		},
		"03:04:05 INFO     a hello (order: 47 11, shop: [31mred) https://example.com/1\n": {
			event: event.Event{
				Category: "a", Text: "hello", Link: "https://example.com/1",
				Fields: []event.Field{{Name: "order", Value: "47\n11"}, {Name: "shop", Value: "\x1b[31mred"}},
			},
		},
		"03:04:05 INFO     a hello https://example.com\n": {event: event.Event{Category: "a", Text: "hello", Link: "https://example.com"}},
		"03:04:05 INFO     a hello (n: " + strings.Repeat("x", 995) + "…\n": {
			event: event.Event{Category: "a", Text: "hello", Fields: []event.Field{{Name: "n", Value: strings.Repeat("x", 5000)}}},
		},
		"\x1b[2m03:04:05\x1b[0m \x1b[34mINFO    \x1b[0m \x1b[36ma\x1b[0m hello \x1b[2m(n: v)\x1b[0m\n": {
			event: event.Event{Category: "a", Text: "hello", Fields: []event.Field{{Name: "n", Value: "v"}}}, colour: true,
		},
	} {
		var out bytes.Buffer
		testkit.NoError(t, send(t.Context(), newTestPrinted(&out, test.colour), test.event))
		testkit.Equal(t, out.String(), want, "printed")
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := newTestPrinted(&out, false)
	receipt := testkit.Must(c.Send(t.Context(), sink.Delivery{Event: fired}))(t)
	for _, opened := range []string{receipt, ""} {
		testkit.Equal(t, testkit.Must(c.Send(t.Context(), sink.Delivery{Event: ended, Opened: opened}))(t), "", "receipt")
	}
	flapping := sink.Delivery{Event: fired, Seen: sink.Seen{Times: 1, Flapping: true, Fires: true}}
	testkit.Must(c.Send(t.Context(), flapping))(t)
	const want = "03:04:05 ERROR    payments.refunds FIRING refunds fail: all of them\n" +
		"03:04:05 ERROR    payments.refunds RESOLVED after 5m0s refunds work\n" +
		"03:04:05 ERROR    payments.refunds RESOLVED refunds work\n" +
		"03:04:05 ERROR    payments.refunds FIRING, flapping: refunds fail: all of them\n"
	testkit.Equal(t, out.String(), want, "printed")
}

func TestSummary(t *testing.T) {
	t.Parallel()
	digest := summary.Digest{
		Channel: "console", Dropped: 12, Paths: []summary.Path{{Path: "payments", Dropped: 12, Title: "\x1b[31mred\n"}},
	}
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		testkit.NoError(t, newTestPrinted(&out, colour).SendSummary(t.Context(), digest))
		got := out.String()
		want := "03:04:05 SUMMARY  console 12 notifications "
		if colour {
			want = "\x1b[2m03:04:05\x1b[0m \x1b[35mSUMMARY \x1b[0m \x1b[36mconsole\x1b[0m 12 notifications "
		}
		testkit.Check(t, strings.HasPrefix(got, want) && strings.Count(got, "\n") == 1 && !strings.Contains(got, "\x1b[31m"),
			"colour %t: got %q, want %q first", colour, got, want)
	}
	wantFailure(t, "summary", New(Options{Writer: brokenWriter{0}}).SendSummary(t.Context(), digest), sink.Transient, errBroken)
}

func TestConcurrentLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := New(Options{Writer: &out})
	testkit.AtOnce(50, func(i int) {
		if err := send(context.Background(), c, event.Event{Category: "a", Text: fmt.Sprint("event", i)}); err != nil {
			t.Error(err)
		}
	})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	testkit.Equal(t, len(lines), 50, "lines")
	for _, line := range lines {
		testkit.Contains(t, "line", line, " INFO     a event")
	}
}

// brokenWriter takes some bytes and fails.
type brokenWriter struct{ takes int }

var errBroken = errors.New("broken pipe")

func (w brokenWriter) Write([]byte) (int, error) { return w.takes, errBroken }

func TestFailures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		ctx    context.Context
		writer io.Writer
		class  sink.Class
		cause  error
	}{
		{"nothing written", t.Context(), brokenWriter{0}, sink.Transient, errBroken},
		{"part written", t.Context(), brokenWriter{3}, sink.Unknown, errBroken},
		{"cancelled", testkit.Ended(t), io.Discard, sink.Transient, context.Canceled},
	}
	for _, test := range tests {
		err := send(test.ctx, New(Options{Writer: test.writer}), event.Event{Text: "t"})
		wantFailure(t, test.name, err, test.class, test.cause)
	}
}

// Each severity has a colour of its own.
func TestColours(t *testing.T) {
	t.Parallel()
	colours := make(map[string]bool)
	for _, severity := range []event.Severity{event.SeverityInfo, event.SeverityWarning, event.SeverityError, event.SeverityCritical} {
		colours[ansi[severity]] = true
	}
	testkit.Equal(t, len(colours), 4, "different colours")
}
