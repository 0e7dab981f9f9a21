package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Whatever the gate says, the consumer knows what to do.
func TestEveryVerdictIsMapped(t *testing.T) {
	t.Parallel()
	seen := make(map[consume.Verdict]bool)
	for verdict := throttle.Verdict(0); verdict <= throttle.Unpaired; verdict++ {
		mapped, known := verdicts[verdict]
		if !known {
			t.Errorf("verdict %d is not mapped", verdict)
		}
		seen[mapped] = true
	}
	for verdict := consume.Undecidable; verdict <= consume.Unpaired; verdict++ {
		if !seen[verdict] {
			t.Errorf("nothing is mapped to the consumer's verdict %d", verdict)
		}
	}
	if len(verdicts) != int(throttle.Unpaired)+1 {
		t.Errorf("%d verdicts are mapped, want %d", len(verdicts), throttle.Unpaired+1)
	}
}

func TestEveryClassIsMapped(t *testing.T) {
	t.Parallel()
	seen := make(map[consume.FailureClass]bool)
	for _, class := range sink.Classes() {
		mapped, known := classes[class]
		if known != (class != sink.OK) {
			t.Errorf("class %q is mapped: %t", class, known)
		}
		if known && seen[mapped] {
			t.Errorf("two classes are mapped to %d", mapped)
		}
		seen[mapped] = known
	}
	if len(classes) != len(sink.Classes())-1 {
		t.Errorf("%d classes are mapped, want %d", len(classes), len(sink.Classes())-1)
	}
}

// scriptedSink fails as it is told.
type scriptedSink struct {
	sink.Sink

	err error
}

func (s scriptedSink) Send(context.Context, sink.Delivery) (string, error) { return "receipt", s.err }
func (s scriptedSink) Mention(event.Event) (string, bool)                  { return "<!here>", true }

func TestSend(t *testing.T) {
	t.Parallel()
	gate := newTestGate(t, "1/1h")
	send := func(err error) *consume.Failure {
		receipt, failure := newDeliverer(scriptedSink{err: err}, gate, config.Config{}).
			Send(t.Context(), consume.Notification{Event: event.Event{ID: "event", Category: "payments"}})
		if failure == nil && receipt != "receipt" {
			t.Errorf("the receipt is %q", receipt)
		}
		return failure
	}
	if failure := send(nil); failure != nil {
		t.Errorf("a message that is out is the failure %+v", failure)
	}
	cause := errors.New("the cause")
	if failure := send(cause); failure == nil || failure.Class != consume.Uncertain || !errors.Is(failure.Err, cause) {
		t.Errorf("an error of another kind is %+v, want an uncertain failure", failure)
	}
	for class, want := range classes {
		err := fmt.Errorf("wrapped: %w", &sink.Error{Class: class, Code: "code", RetryAfter: time.Minute, Err: cause})
		failure := send(err)
		if failure == nil || failure.Class != want || failure.Code != "code" || failure.RetryAfter != time.Minute || !errors.Is(failure.Err, cause) {
			t.Errorf("%s is %+v, want class %d with its code, time and cause", class, failure, want)
		}
	}
}

// preparingSink tells what it was handed.
type preparingSink struct {
	sink.Sink

	sent *sink.Delivery
}

func (preparingSink) Prepare(d sink.Delivery) sink.Delivery {
	d.Mention = "prepared"
	return d
}

func (s preparingSink) Send(_ context.Context, d sink.Delivery) (string, error) {
	*s.sent = d
	return "", nil
}

func (preparingSink) Mention(event.Event) (string, bool) { return "", false }

// A message is prepared where nobody has to be asked for what it says, and is then what is sent.
func TestPrepare(t *testing.T) {
	t.Parallel()
	gate := newTestGate(t, "5/1h")
	table, err := event.NewTable([]event.Entry[[]string]{{Pattern: pattern(t, "security"), Value: []string{"here"}}})
	if err != nil {
		t.Fatal(err)
	}
	settings := config.Config{}
	settings.Slack.Mentions = table
	sent := new(sink.Delivery)
	d := newDeliverer(preparingSink{sent: sent}, gate, settings)

	payments := event.Event{ID: "event", Category: "payments"}
	if prepared := d.Prepare(payments); prepared != nil {
		t.Errorf("prepared as %+v before its usage is known", prepared)
	}
	for _, category := range []string{"payments", "security.login"} {
		gate.Uses(t.Context(), category)
	}
	if prepared := d.Prepare(event.Event{ID: "event", Category: "security.login"}); prepared != nil {
		t.Errorf("prepared as %+v though it may mention people", prepared)
	}
	if prepared := d.Prepare(event.Event{ID: "event", Category: "payments", Status: event.StatusResolved, Key: "disk"}); prepared != nil {
		t.Errorf("prepared as %+v though it resolves another one", prepared)
	}
	prepared := d.Prepare(payments)
	for _, test := range []struct {
		prepared any
		mention  string
	}{{prepared, "prepared"}, {nil, ""}} {
		if _, failure := d.Send(t.Context(), consume.Notification{Event: payments, Prepared: test.prepared}); failure != nil {
			t.Fatal(failure)
		}
		if sent.Event.ID != "event" || len(sent.Usage) != 2 || sent.Usage[1].Size != 5 || sent.Mention != test.mention {
			t.Errorf("prepared as %+v, it is sent as %+v", test.prepared, *sent)
		}
	}
}

func pattern(t *testing.T, text string) event.Pattern {
	t.Helper()
	p, err := event.ParsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newTestGate is a gate with a limit of one an hour for each category, which runs until the test ends.
func newTestGate(t *testing.T, perCategory string) *throttle.Gate {
	t.Helper()
	server := servertest.StartRedis(t)
	settings := config.Config{Redis: config.Redis{
		URL: config.NewSecret(server.URL()), Prefix: "notifier", Timeout: patience, Failure: config.FailureHold,
	}}
	settings.Limits.DenyCacheTTL = time.Minute
	var err error
	if settings.Limits.Global, err = throttle.ParseLimits("100/1h"); err != nil {
		t.Fatal(err)
	}
	if settings.Limits.Category, err = throttle.ParseLimits(perCategory); err != nil {
		t.Fatal(err)
	}
	tree, err := throttle.NewTree(settings.Limits.Plan())
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{settings: settings, logger: slog.New(slog.DiscardHandler)}
	client, err := newRedisClient(settings.Redis, w.logger)
	if err != nil {
		t.Fatal(err)
	}
	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 10, Levels: levels(tree, config.FailureHold), Policy: config.FailureHold})
	limiter := newLimiter(client, settings.Redis, throttle.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour, PairTTL: time.Hour})
	gate := w.newGate(limiter, func() int { return 1 }, nil, metrics)
	life := &lifecycle{timeout: patience}
	life.add("redis", func(context.Context) error { return client.Close() })
	life.background("the gate", gate.Run)
	t.Cleanup(func() {
		if err := life.stop(); err != nil {
			t.Error(err)
		}
	})
	if err := gate.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	return gate
}

func candidate(id string, sequence uint64) consume.Candidate {
	return consume.Candidate{
		Event: event.Event{ID: id, Category: "payments", Cost: 1}, Stream: "EVENTS", Sequence: sequence, Stored: time.Now(),
	}
}

// What a gate decides arrives at the consumer, through real limits.
func TestThrottle(t *testing.T) {
	throttled := throttleOf{gate: newTestGate(t, "1/1h")}
	if err := throttled.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if level, full := throttled.Full("payments"); full {
		t.Errorf("it is full at once, by %q", level)
	}
	lookUp := candidate("older", 9)
	lookUp.LookUp = true
	first := candidate("first", 1)
	decisions, err := throttled.Decide(t.Context(), []consume.Candidate{lookUp, first, candidate("second", 2), first})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []consume.Decision{{Verdict: consume.Unknown}, {Verdict: consume.Admit}, {Verdict: consume.Deny, Level: "category"}, {Verdict: consume.Wait}} {
		got := decisions[i]
		if got.Verdict != want.Verdict || got.Level != want.Level || (got.Grant != nil) != (want.Verdict == consume.Admit) {
			t.Errorf("decision %d is %+v, want %+v", i, got, want)
		}
	}
	if wait := decisions[3].Wait; wait <= 0 || wait > time.Minute {
		t.Errorf("the other lease lasts for %v, want a minute at most", wait)
	}
	if level, full := throttled.Full("payments"); !full || level != "category" {
		t.Errorf("full: %t by %q, want by the rule for categories", full, level)
	}

	decisions[1].Grant.Finish(t.Context(), "")
	again, err := throttled.Decide(t.Context(), []consume.Candidate{first, candidate("first", 5)})
	if err != nil {
		t.Fatal(err)
	}
	// The messages were stored at different times, so the sequence alone does not make them one.
	if again[0].Verdict != consume.Done || again[1].Verdict != consume.Repeat {
		t.Errorf("the same message is %d and another of its ID is %d, want done and repeat", again[0].Verdict, again[1].Verdict)
	}

	throttled.Pause(t.Context(), "somewhere", time.Hour)
	if rest := throttled.gate.Rest(t.Context(), "somewhere"); rest <= 0 || rest > time.Hour {
		t.Errorf("the destination rests for %v, want an hour at most", rest)
	}
	if rest := throttled.gate.Rest(t.Context(), "elsewhere"); rest != 0 {
		t.Errorf("another destination rests for %v, want 0", rest)
	}
}

// A gate that cannot decide says so.
func TestThrottleWithoutRedis(t *testing.T) {
	throttled := throttleOf{gate: newTestGate(t, "1/1h")}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if decisions, err := throttled.Decide(ended, []consume.Candidate{candidate("first", 1)}); err == nil {
		t.Errorf("in no time it decides %+v", decisions)
	}
}
