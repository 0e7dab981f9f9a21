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

// fakeLimits reports one used slot of each category, and lets one event mention people.
type fakeLimits struct {
	mentions   string        // the ID of the event that may
	mentionFor time.Duration // the interval that Mention was given
	returned   []string
}

func (*fakeLimits) Uses(_ context.Context, category string) []limits.Use {
	return []limits.Use{{Path: category, Limit: "5/1h", Used: 1, Size: 5}}
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

// A message shows the use of its event's limits. That of a resolved event does not.
func TestAnnotatedUsage(t *testing.T) {
	t.Parallel()
	a, sent := annotated(t, new(fakeLimits), nil)
	testkit.Must(a.Send(t.Context(), Delivery{Event: event.Event{ID: "event", Category: "payments"}}))(t)
	if sent.Event.ID != "event" || len(sent.Usage) != 1 || sent.Usage[0].Path != "payments" || sent.Mention != "" {
		t.Errorf("sent as %+v, want the use of the category's limits and no mention", *sent)
	}
	resolved := event.Event{ID: "event", Category: "payments", Status: event.StatusResolved, Key: "disk"}
	testkit.Must(a.Send(t.Context(), Delivery{Event: resolved, Opened: "r"}))(t)
	if sent.Opened != "r" || sent.Usage != nil {
		t.Errorf("a resolved event: sent as %+v, want no usage", *sent)
	}
}

// One event of a category mentions people. A failure without a post gives the mention back.
func TestAnnotatedMentions(t *testing.T) {
	t.Parallel()
	send := func(l *fakeLimits, id string, err error) Delivery {
		t.Helper()
		a, sent := annotated(t, l, err)
		receipt, failure := a.Send(t.Context(), Delivery{Event: event.Event{ID: id, Category: "security"}})
		testkit.Check(t, errors.Is(failure, err) && receipt == "receipt", "got receipt %q and %v, want %v", receipt, failure, err)
		return *sent
	}
	l := new(fakeLimits)
	if d := send(l, "one", nil); d.Mention != "<!here>" || l.mentionFor != time.Hour {
		t.Errorf("the first event: got %+v for %v, want a mention for an hour", d, l.mentionFor)
	}
	testkit.Equal(t, send(l, "two", nil).Mention, "", "mention of the second event")
	if d := send(l, "one", &Error{Class: Transient}); d.Mention != "<!here>" || l.returned != nil {
		t.Errorf("the first event again: got %+v, returned %q, want a mention and none returned", d, l.returned)
	}
	for _, class := range Classes()[1:] {
		l := new(fakeLimits)
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
