package event_test

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestHeading(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ title, text, want string }{
		{" t\n", "x", "t"},
		{"", " \n\u200b\r x \ny", "x"},
		{"\x00", "x", "x"},
		{"", "", ""},
	} {
		if got := (event.Event{Title: test.title, Text: test.text}).Heading(); got != test.want {
			t.Errorf("title %q, text %q: heading %q, want %q", test.title, test.text, got, test.want)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	longest := event.Event{Category: strings.Repeat("c", event.MaxPathBytes), ID: strings.Repeat("i", event.MaxIDBytes), Part: "p"}
	if got := len(longest.Identity()); got != event.MaxIdentityBytes {
		t.Errorf("the longest identity has %d bytes, want %d", got, event.MaxIdentityBytes)
	}
	for _, test := range []struct {
		e    event.Event
		want string
	}{
		{event.Event{Category: "payments.refunds", ID: "order 1"}, "payments.refunds order 1"},
		{event.Event{ID: "order"}, " order"},
		{event.Event{Category: "payments", ID: "S:1", Derived: true}, "payments S:1"},
		{event.Event{Category: "payments", ID: "S:1", Part: "abc"}, "payments#ba7816bf8f01cfea S:1"}, // the well-known SHA-256 of "abc"
		{event.Event{Category: "payments", ID: "ba7816bf8f01cfea S:1"}, "payments ba7816bf8f01cfea S:1"},
		{event.Event{ID: "S:1", Part: "abc"}, "#ba7816bf8f01cfea S:1"},
	} {
		testkit.Equal(t, test.e.Identity(), test.want, "%+v: identity", test.e)
	}
}

func TestShownID(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]event.Event{"S:1": {ID: "S:1", Category: "a"}, "S:1/fingerprint": {ID: "S:1", Part: "fingerprint"}} {
		testkit.Equal(t, e.ShownID(), want, "%+v is shown as", e)
	}
}

func TestPair(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		e        event.Event
		pair     string
		resolves bool
	}{
		{event.Event{Category: "a", Key: "k", Status: event.StatusFiring}, "a\nk", false},
		{event.Event{Category: "a", Key: "k", Status: event.StatusResolved}, "a\nk", true},
		{event.Event{Category: "a.b", Key: "k", Status: event.StatusResolved}, "a.b\nk", true},
		{event.Event{Category: "a", Key: "k"}, "", false},
		{event.Event{Category: "a", Status: event.StatusResolved}, "", false},
	} {
		if pair, resolves := test.e.Pair(), test.e.Resolves(); pair != test.pair || resolves != test.resolves {
			t.Errorf("%+v: pair %q, resolves %t, want %q, %t", test.e, pair, resolves, test.pair, test.resolves)
		}
	}
}
