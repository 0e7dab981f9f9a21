package sink

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// fakeLimits reports one used slot of each category, and lets one event mention people. KnownUses knows a category after Uses.
type fakeLimits struct {
	asked      map[string]bool
	mentions   string        // the ID of the event that may
	mentionFor time.Duration // the interval that Mention was given
	returned   []string
}

func (f *fakeLimits) Uses(_ context.Context, category string) []limits.Use {
	f.asked[category] = true
	uses, _ := f.KnownUses(category)
	return uses
}

func (f *fakeLimits) KnownUses(category string) ([]limits.Use, bool) {
	return []limits.Use{{Path: category, Limit: "5/1h", Used: 1, Size: 5}}, f.asked[category]
}

func (f *fakeLimits) Mention(_ context.Context, _, id string, d time.Duration) (may, first bool) {
	f.mentionFor = d
	switch f.mentions {
	case "":
		f.mentions = id
		return true, true
	case id:
		return true, false
	}
	return false, false
}

func (f *fakeLimits) ReturnMention(_ context.Context, category, id string) {
	f.returned = append(f.returned, category+" "+id)
}

// scriptedSink keeps the last delivery and returns a fixed error.
type scriptedSink struct {
	Sink

	sent *Delivery
	err  error
}

func (scriptedSink) Prepare(d Delivery) Delivery {
	d.Mention = "prepared"
	return d
}

func (s scriptedSink) Send(_ context.Context, d Delivery) (string, error) {
	*s.sent = d
	return "receipt", s.err
}

func mentionSecurity(e event.Event) string {
	if e.Category == "security" {
		return "<!here>"
	}
	return ""
}

func annotated(t *testing.T, l *fakeLimits, err error) (a *Annotated, sent *Delivery) {
	t.Helper()
	sent = new(Delivery)
	return &Annotated{
		Sink: scriptedSink{sent: sent, err: err}, Limits: l, Pacer: l, Mention: mentionSecurity, Mentions: testkit.Must(event.NewTable([]event.Entry[[]string]{{Pattern: testkit.Must(event.ParsePattern("security"))(t), Value: []string{"here"}}}))(t), MentionFor: time.Hour,
	}, sent
}

// A message is prepared only if its usage is known and it cannot mention anybody.
func TestAnnotatedPrepare(t *testing.T) {
	t.Parallel()
	known := &fakeLimits{asked: make(map[string]bool)}
	a, sent := annotated(t, known, nil)
	payments := event.Event{ID: "event", Category: "payments"}
	login := event.Event{ID: "event", Category: "security.login"}
	resolved := event.Event{ID: "event", Category: "payments", Status: event.StatusResolved, Key: "disk"}
	testkit.Equal(t, a.Prepare(Delivery{Event: payments}).Mention, "", "before its usage is known")
	known.asked["payments"], known.asked["security.login"] = true, true
	testkit.Equal(t, a.Prepare(Delivery{Event: login}).Mention, "", "one that may mention people")
	testkit.Equal(t, a.Prepare(Delivery{Event: resolved}).Mention, "", "one that resolves another one")
	for want, d := range map[string]Delivery{"prepared": a.Prepare(Delivery{Event: payments}), "": {Event: payments}} {
		testkit.Must(a.Send(t.Context(), d))(t)
		if sent.Event.ID != "event" || len(sent.Usage) != 1 || sent.Usage[0].Size != 5 || sent.Mention != want {
			t.Errorf("prepared as %+v, sent as %+v, want the mention %q", d, *sent, want)
		}
	}
	if _, err := a.Send(t.Context(), Delivery{Event: resolved, Opened: "r"}); err != nil || sent.Opened != "r" || sent.Usage != nil {
		t.Errorf("a resolved event: sent as %+v, %v, want no usage", *sent, err)
	}
}

// One event of a category mentions people. A failure without a post gives the mention back.
func TestAnnotatedMentions(t *testing.T) {
	t.Parallel()
	send := func(l *fakeLimits, id string, err error) Delivery {
		t.Helper()
		a, sent := annotated(t, l, err)
		receipt, failure := a.Send(t.Context(), Delivery{Event: event.Event{ID: id, Category: "security"}})
		if !errors.Is(failure, err) || receipt != "receipt" {
			t.Errorf("got receipt %q and %v, want %v", receipt, failure, err)
		}
		return *sent
	}
	l := &fakeLimits{asked: make(map[string]bool)}
	if d := send(l, "one", nil); d.Mention != "<!here>" || l.mentionFor != time.Hour {
		t.Errorf("the first event: got %+v for %v, want a mention for an hour", d, l.mentionFor)
	}
	testkit.Equal(t, send(l, "two", nil).Mention, "", "mention of the second event")
	if d := send(l, "one", &Error{Class: Transient}); d.Mention != "<!here>" || l.returned != nil {
		t.Errorf("the first event again: got %+v, returned %q, want a mention and none returned", d, l.returned)
	}
	for _, class := range Classes()[1:] {
		l := &fakeLimits{asked: make(map[string]bool)}
		send(l, "one", fmt.Errorf("wrapped: %w", &Error{Class: class}))
		var want []string
		if class != Unknown {
			want = []string{"security security one"}
		}
		testkit.EqualSlices(t, l.returned, want, "%s: returned", class)
	}
	a, _ := annotated(t, l, nil)
	a.MentionFor = 0
	if _, err := a.Send(t.Context(), Delivery{Event: event.Event{ID: "one", Category: "security"}}); err != nil || l.mentionFor != defaultMentionFor {
		t.Errorf("without an interval: got %v, %v, want %v", l.mentionFor, err, defaultMentionFor)
	}
}
