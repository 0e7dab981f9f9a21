package deadletters

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// TestList lists letters in order with their facts. The letters stay for all consumers. What no worker wrote is none of them.
func TestList(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := time.Now().Add(-time.Second)
	f.letter("rejected", `{"title": "card declined", "id": "theirs"}`, room.HeaderID, "order-1", HeaderPushedOut, "3")
	f.letter("rejected", "\n first line\x1b[2J \nsecond", room.HeaderMessageID, "message", HeaderError, "\x1b[31mno_text\u202e")
	f.letter("bad_json", "{broken\r\nhere", room.HeaderSubject, "notify.a.b")
	f.letter("bad_category", "text", room.HeaderSubject, "notify.ä", room.HeaderID, "kept")
	bare := &nats.Msg{Subject: "dead.too_large.infra", Header: make(nats.Header), Data: []byte(strings.Repeat("löng ", 300))}
	trusted.Mark(bare.Header)
	testkit.Must(f.js.PublishMsg(t.Context(), bare))(t)
	forged := testkit.Must(f.js.Publish(t.Context(), "dead.bad_field.infra", []byte(`{"stream":"EVENTS","seq":7}`)))(t)
	config := jetstream.ConsumerConfig{Durable: "other", AckPolicy: jetstream.AckExplicitPolicy}
	consumer := testkit.Must(f.js.CreateConsumer(t.Context(), options.Stream, config))(t)
	_, letters := f.open()
	for i, l := range letters {
		testkit.Check(t, !l.Stored.Before(before) && !l.Stored.After(time.Now().Add(time.Second)),
			"time of letter %d: got %v, want about %v", l.Number, l.Stored, before)
		letters[i].Stored, letters[i].first, letters[i].entry, letters[i].lacks = time.Time{}, "", room.Entry{}, nil
	}
	want := []Letter{
		{Number: 1, ID: "order-1", Reason: "rejected", Category: "payments.cards", Subject: "notify.payments.cards", Title: "card declined", Error: "no_text", Deliveries: 2, PushedOut: 3},
		{Number: 2, ID: "EVENTS:7", Reason: "rejected", Category: "payments.cards", Subject: "notify.payments.cards", Title: "first line[2J", Error: "[31mno_text", Deliveries: 2},
		{Number: 3, ID: "EVENTS:7", Reason: "bad_json", Category: "a.b", Subject: "notify.a.b", Title: "{broken", Error: "no_text", Deliveries: 2},
		{Number: 4, ID: "kept", Reason: "bad_category", Category: "payments", Subject: "notify.ä", Title: "text", Error: "no_text", Deliveries: 2},
		{Number: 5, Reason: "too_large", Category: "infra", Title: strings.Repeat("löng ", 39) + "löng…", Error: "the body has 1800 bytes; at most 1000 are allowed"},
	}
	testkit.EqualSlices(t, letters, want, "letters")
	if info, err := consumer.Info(t.Context()); err != nil || info.NumPending != 6 || info.Delivered.Consumer != 0 {
		t.Errorf("consumer: got %+v, %v, want six pending messages and no delivery", info, err)
	}
	store, _ := f.open()
	_, err := store.Read(t.Context(), forged.Sequence)
	testkit.Fails(f, "error", err, ErrNotFound)
}

func TestRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := "\x00\xff as it came \r\n"
	number := f.letter("bad_utf8", body, "X-Trace", "7", room.HeaderID, "order")
	store, _ := f.open()
	got, err := store.Read(t.Context(), number)
	testkit.Check(t, err == nil && string(got.Body) == body && got.Header.Get("X-Trace") == "7" && got.ID == "order",
		"letter: got %+v, %v, want order with %q", got, err, body)
	_, err = store.Read(t.Context(), number+1)
	testkit.Fails(f, "error", err, ErrNotFound)
}

// TestDrop drops a letter twice, and then in a recreated stream, where another letter has its number.
func TestDrop(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rejected("a")
	f.rejected("b")
	store, letters := f.open()
	for _, want := range []Outcome{Dropped, Gone} {
		testkit.Equal(t, testkit.Must(store.Drop(t.Context(), letters[1]))(t), want, "drop of letter 2")
	}
	f.requireLetters("dead.rejected.payments")
	f.requireEvents(nil)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), options.Stream))
	f.createStream(jetstream.StreamConfig{Name: options.Stream, Subjects: []string{"dead.>"}})
	testkit.Equal(t, f.rejected("c"), letters[0].Number, "number of the letter in the recreated stream")
	testkit.Equal(t, testkit.Must(store.Drop(t.Context(), letters[0]))(t), Gone, "drop of a letter of the deleted stream")
	f.requireLetters("dead.rejected.payments")
}

func TestWithoutStreams(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rejected("a")
	store, letters := f.open()
	testkit.NoError(t, f.js.DeleteStream(t.Context(), options.Room))
	_, err := store.Replay(t.Context(), letters[0])
	testkit.Fails(f, "error", err, jetstream.ErrNoStreamResponse, "notify-room")
	f.requireLetters("dead.rejected.payments")
	testkit.NoError(t, f.js.DeleteStream(t.Context(), options.Stream))
	_, err = Open(t.Context(), f.conn, options)
	testkit.Fails(f, "error", err, jetstream.ErrStreamNotFound, "LETTERS")
	f.createStream(jetstream.StreamConfig{Name: options.Stream, Subjects: []string{"dead.>"}, DenyDelete: true})
	f.createRoom(jetstream.StreamConfig{})
	f.rejected("a")
	store, letters = f.open()
	_, err = store.Replay(t.Context(), letters[0])
	testkit.Fails(f, "error", err, nil, "delete")
	f.requireEvents(nil)
	f.requireLetters("dead.rejected.payments")
}

func TestSelect(t *testing.T) {
	t.Parallel()
	now, long := time.Now(), strings.Repeat("é", 40)
	letters := []Letter{
		{Number: 1, ID: "a", Reason: "bad_json", Stored: now.Add(-3 * time.Hour)},
		{Number: 2, ID: "b", Reason: "empty", Stored: now.Add(-2 * time.Hour)},
		{Number: 3, ID: "a", Reason: "rejected", Stored: now.Add(-time.Hour)},
		{Number: 4, Reason: "too_large", Category: "paymentsother", Stored: now},
		{Number: 5, ID: "5", Reason: "empty", Category: "payments", Stored: now},
		{Number: 6, ID: "3", Reason: "empty", Category: "payments.cards", Stored: now},
		{Number: 7, ID: event.Named(long)[0].ID, Reason: "dull", Stored: now, entry: room.Entry{Part: "disk"}},
		{Number: 9, ID: "8", Reason: "dull", Stored: now},
	}
	for name, test := range map[string]struct {
		filter  Filter
		want    []uint64
		missing string
	}{
		"everything":             {Filter{}, []uint64{1, 2, 3, 4, 5, 6, 7, 9}, ""},
		"reasons":                {Filter{Reasons: []string{"empty", "bad_json"}}, []uint64{1, 2, 5, 6}, ""},
		"a category":             {Filter{Under: "payments"}, []uint64{5, 6}, ""},
		"a category below":       {Filter{Under: "payments.cards"}, []uint64{6}, ""},
		"since then":             {Filter{Since: now.Add(-2 * time.Hour)}, []uint64{2, 3, 4, 5, 6, 7, 9}, ""},
		"a producer's long ID":   {Filter{IDs: []string{long}}, []uint64{7}, ""},
		"a long ID and its part": {Filter{IDs: []string{long + "/disk"}}, []uint64{7}, ""},
		"another part":           {Filter{IDs: []string{long + "/cpu"}}, nil, long + "/cpu"},
		"numbers":                {Filter{IDs: []string{"4", "1"}}, []uint64{1, 4}, ""},
		"an event's ID":          {Filter{IDs: []string{"a"}}, []uint64{1, 3}, ""},
		"both, and what is not":  {Filter{IDs: []string{"b", "x", "4", "8"}}, []uint64{2, 4}, "x 8"},
		"all that is asked":      {Filter{IDs: []string{"a", "b"}, Reasons: []string{"bad_json", "empty"}, Since: now.Add(-150 * time.Minute)}, []uint64{2}, ""},
		"a number":               {Filter{IDs: []string{"3"}}, []uint64{3}, ""},
		"a number that is an ID": {Filter{IDs: []string{"8"}}, nil, "8"},
		"an ID that is a number": {Filter{IDs: []string{"id:3", "id:8"}}, []uint64{6, 9}, ""},
		"nothing":                {Filter{IDs: []string{""}}, nil, ""},
	} {
		chosen, missing := test.filter.Select(letters)
		var numbers []uint64
		for _, l := range chosen {
			numbers = append(numbers, l.Number)
		}
		testkit.Check(t, slices.Equal(numbers, test.want) && strings.TrimSpace(strings.Join(missing, " ")) == test.missing,
			"%s: got %v, missing %q; want %v, missing %q", name, numbers, missing, test.want, test.missing)
	}
}

// TestEnded ends the context of each operation. The error names the operation.
func TestEnded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	number := f.rejected("a")
	store, letters := f.open()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := store.Replay(ended, letters[0])
	testkit.Fails(f, "error", err, context.Canceled)
	_, err = store.Drop(ended, letters[0])
	testkit.Fails(f, "error", err, context.Canceled, "getting message")
	_, err = store.Read(ended, number)
	testkit.Fails(f, "error", err, context.Canceled, "getting message")
	_, err = store.List(ended, unwatched)
	testkit.Fails(f, "error", err, context.Canceled)
}
