package sink

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// reopened reads a receipt for the event that resolves.
func reopened(text string) *Receipt {
	return OpenedBy(Delivery{Event: event.Event{Status: event.StatusResolved}, Opened: text})
}

func TestReceiptRoundTrip(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	e := fired
	e.Link, e.Source = "https://example.org/?a=1&b=<2>", "pay-1"
	e.Fields = []event.Field{{Name: "host", Value: "db-1"}, {Name: "zone", Value: "a \"quoted\"\\ one"}}
	want := &Receipt{
		Version: 1, Channel: "C0000001", Timestamp: "1767322800.000100", ID: e.ID, Category: e.Category, Title: e.Title,
		Text: e.Text, Severity: e.Severity, Status: event.StatusFiring, Source: e.Source, Link: e.Link, Fields: e.Fields, Time: e.Time,
		Destination: "#ops",
	}
	testkit.EqualDeeply(t, reopened(NewReceipt(e, "#ops", "C0000001", "1767322800.000100", now)), want, "reopened")
	testkit.Equal(t, PostedAs(NewReceipt(e, "#ops", "C0000001", "1767322800.000100", now)), "C0000001 1767322800.000100", "where it was posted")
	e.Time = time.Time{}
	if got := reopened(NewReceipt(e, "#ops", "C0000001", "1767322800.000100", now)); !got.Time.Equal(now) {
		t.Errorf("got the time %v, want that of the post", got.Time)
	}
	if got := OpenedBy(Delivery{Event: event.Event{Status: event.StatusResolved}}); got != nil {
		t.Errorf("an event without a receipt opens %+v, want nothing", got)
	}
	for status, key := range map[event.Status]string{"": "", event.StatusResolved: "disk"} {
		e.Status, e.Key = status, key
		testkit.Equal(t, NewReceipt(e, "#ops", "C0000001", "1767322800.000100", now), "", "%q: got receipt", status)
	}
}

// A message counts what is folded into it. An event with a key needs no status for that.
func TestReceiptOfFolds(t *testing.T) {
	t.Parallel()
	e := fired
	e.Status, e.Key = "", "disk"
	receipt := NewReceipt(e, "#ops", "C0000001", "1767322800.000100", time.Now())
	counted := OpenedBy(Delivery{Event: e, Opened: receipt, Seen: Seen{Times: 2}})
	testkit.Check(t, counted.Repliable() && counted.Event().Status == "" && counted.Event().Title == e.Title,
		"got %+v, want the message of the event", counted)
}

// The receipt of a message without an address keeps the event and its time.
func TestReceiptWithoutAMessage(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct{ channel, ts string }{
		"webhook":      {},
		"odd channel":  {channel: "#ops", ts: "1.1"},
		"long channel": {channel: "C" + strings.Repeat("0", 5000), ts: "1.1"},
		"odd ts":       {channel: "C0000001", ts: "now"},
		"long ts":      {channel: "C0000001", ts: strings.Repeat("1", 5000) + ".1"},
	} {
		text := NewReceipt(fired, "webhook", answer.channel, answer.ts, time.Now())
		if r := reopened(text); r.Repliable() || r.Channel != "" || r.Title != fired.Title || !r.Time.Equal(fired.Time) {
			t.Errorf("%s: got %s, want the event without a channel", name, text)
		}
	}
}

// A receipt is bounded for the largest events, and for texts that JSON makes longer.
func TestReceiptIsBounded(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"x", "<", "\"", "\\", "\x01", "\n", "😀", "\u2028", "\xff", "e\u0301"} {
		e := fired
		long := strings.Repeat(text, 100_000)
		e.Title, e.Text, e.Source, e.Link = "t"+long, "x"+long, "s"+long, "https://example.org/"+long
		for range 300 {
			e.Fields = append(e.Fields, event.Field{Name: "n" + long[:100], Value: "v" + long[:1000]})
		}
		e.ID, e.Category = strings.Repeat("i", 64), strings.Repeat("c", 128)
		got := NewReceipt(e, "#"+strings.Repeat("d", 79), "C0000001", "1767322800.000100", time.Now())
		testkit.Check(t, len(got) <= maxReceipt && utf8.ValidString(got), "%q: got %d bytes, want %d at most: %s", text, len(got), maxReceipt, got)
		r := reopened(got)
		if !r.Repliable() || r.ID != e.ID || r.Category != e.Category || !r.Time.Equal(e.Time) || r.Severity != e.Severity ||
			!strings.HasPrefix(r.Title, "t") || !strings.HasPrefix(r.Text, "x") || r.Link != "" {
			t.Errorf("%q: got %s, want the address, the start of the texts and no link", text, got)
		}
	}
}

func FuzzReceipt(f *testing.F) {
	f.Add(NewReceipt(fired, "#ops", "C0000001", "1767322800.000100", time.Now()), "title", "text", "#ops")
	for _, text := range []string{"", "{}", `{"v":1}`, `{"v":1,"ts":"1.1","channel":"C00"}`, `{"v":1,"time":"x"}`, `[]`, "null", `{"v":1,"fields":[null]}`} {
		f.Add(text, "\x00<!here>", strings.Repeat("\u2028", 500), "C1")
	}
	f.Fuzz(func(t *testing.T, text, title, body, destination string) {
		if r := reopened(text); r != nil {
			if r.Repliable() && (!IsChannelID(r.Channel) || !IsTimestamp(r.Timestamp)) {
				t.Errorf("%q: replies to %q in %q, want a timestamp and the ID of a channel", text, r.Timestamp, r.Channel)
			}
		}
		e := fired
		e.Title, e.Text, e.Link = title, body, body
		e.Fields = []event.Field{{Name: title, Value: body}, {Name: body, Value: title}}
		got := NewReceipt(e, destination, "C0000001", "1767322800.000100", time.Now())
		testkit.Check(t, len(got) <= maxReceipt && json.Valid([]byte(got)) && reopened(got).Repliable(),
			"got %d bytes, want %d at most, of JSON: %s", len(got), maxReceipt, got)
	})
}

// Each class answers the questions of the digest's reporter.
func TestErrorOfADigest(t *testing.T) {
	t.Parallel()
	for _, class := range Classes() {
		e := &Error{Class: class}
		if class == RateLimited {
			e.RetryAfter = time.Minute
		}
		testkit.Equal(t, e.NotPosted(), class != Unknown, "%s: not posted", class)
		testkit.Equal(t, e.Hopeless(), class == Rejected, "%s: hopeless", class)
		testkit.Equal(t, e.Rest(), e.RetryAfter, "%s: rests for", class)
	}
}
