package event_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestShownAs has what people are shown of events. Both the producer's ID and the shown one lead to the event.
func TestShownAs(t *testing.T) {
	t.Parallel()
	const arn = "arn:aws:lambda:eu-central-1:123456789012:function:payments-refunds-prod:42"
	long := strings.Repeat("g", 80)
	for id, shown := range map[string]string{
		"order-4711":          "order-4711",
		arn:                   event.StableID(arn),
		"/shop/eu/" + long:    event.StableID("/shop/eu/" + long),
		"a\tb":                event.StableID("a\tb"),
		" a":                  event.StableID(" a"),
		"a  b":                event.StableID("a  b"),
		"group-1/f2":          "group-1/f2",
		long + "/f2":          event.Event{ID: event.StableID(long), Part: "f2"}.ShownID(),
		long[:60] + "/f2f2f2": event.Event{ID: long[:60], Part: "f2f2f2"}.ShownID(),
	} {
		for _, given := range []string{id, shown} {
			testkit.Equal(t, slices.Contains(event.ShownAs(given), shown), true, "%.20q may be shown as %q", given, shown)
		}
	}
	for sent, given := range map[string]string{"order-1": " order-1 ", "order 1": "order\n1"} { // a client library changes an ID in a header
		testkit.Equal(t, slices.Contains(event.ShownAs(given), sent), true, "%q may be shown as %q", given, sent)
	}
	testkit.EqualSlices(t, event.ShownAs("order-4711"), []string{"order-4711"}, "an ordinary ID")
	testkit.EqualSlices(t, event.ShownAs("shop/7"), []string{"shop/7"}, "an ordinary ID with a slash")
}

// TestIDsAreShownUnchanged draws IDs. What people are shown of one is the ID of its event, and means the same event again.
func TestIDsAreShownUnchanged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`(?s)[a-z \t\n\x{a0}\x{2028}\x{202e}\x{200b}\x{e9}/.:]{1,80}`).Draw(t, "id")
		e, err := event.Decoder{Prefix: "notify"}.Decode(event.Message{Subject: "notify.a", Data: fmt.Appendf(nil, `{"text": "x", "id": %s}`, testkit.Must(json.Marshal(id))(t))})
		testkit.NoError(t, err)
		shown := plain.Line(e.ShownID())
		testkit.Require(t, shown == e.ID, "%q: got %q on a line, want the ID %q", id, shown, e.ID)
		for _, given := range []string{id, e.ID} {
			if named := event.Named(given); named[0].ID != e.ID {
				t.Fatalf("%q: got %q, want %q", given, named[0].ID, e.ID)
			}
		}
	})
}
