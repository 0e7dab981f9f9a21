package event_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
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
