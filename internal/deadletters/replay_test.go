package deadletters

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// TestReplay replays a letter into the room with its body, its identity and its producer's headers. The age of the event counts from the
// replay. The letter is gone.
func TestReplay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	number := f.letter("rejected", `{"title": "card declined"}`,
		room.HeaderID, "order-1", room.HeaderDerived, "true", room.HeaderPart, "f1/2", room.HeaderSince, "1700000005000", room.HeaderMessageID, "produced",
		"Notifier-Deadline", "1", "X-Trace", "7", "Content-Type", "text/plain", "Nats-Other", "x")
	f.requireOutcome(number, Replayed)
	f.requireLetters()
	messages := f.waiting(options.Room)
	testkit.Require(t, len(messages) == 1, "events in the room: got %d, want 1", len(messages))
	m := messages[0]
	name := m.Header.Get(nats.MsgIdHdr)
	testkit.Check(t, strings.HasPrefix(name, "replay-LETTERS-1-"), "message ID: got %q, want one of replay-LETTERS-1-", name)
	want := nats.Header{
		room.HeaderReason: {"replay"}, room.HeaderSubject: {"notify.payments.cards"}, room.HeaderID: {"order-1"}, room.HeaderDerived: {"true"},
		room.HeaderPart: {"f1/2"}, room.HeaderOrigin: {origin.String()}, room.HeaderMessageID: {"produced"},
		"Content-Type": {"text/plain"}, nats.MsgIdHdr: {name}, nats.ExpectedStreamHdr: {"ROOM"},
	}
	trusted.Mark(want)
	testkit.EqualDeeply(t, m.Header, want, "headers")
	testkit.Equal(t, m.Subject+" "+string(m.Data), `notify-room.replay.payments {"title": "card declined"}`, "subject and body")
	entry, err := room.Read(m.Header, m.Time)
	testkit.Check(t, err == nil && m.Time.Sub(entry.Since).Abs() < time.Millisecond && entry.Origin == origin,
		"entry: got %+v, %v, want the origin %v and the age of the replay", entry, err, origin)
}

// TestReplayWithoutCategory replays a letter whose category is unknown.
func TestReplayWithoutCategory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	header := nats.Header{room.HeaderSubject: {"notify"}, room.HeaderID: {"a"}, room.HeaderOrigin: {origin.String()}}
	trusted.Mark(header)
	testkit.Must(f.js.PublishMsg(t.Context(), &nats.Msg{Subject: "dead.bad_json._", Header: header, Data: []byte("{")}))(t)
	f.requireOutcome(1, Replayed)
	if messages := f.waiting(options.Room); len(messages) != 1 || messages[0].Subject != "notify-room.replay._" {
		t.Errorf("messages in the room: got %v, want one on notify-room.replay._", messages)
	}
}

func TestUnfit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for what, number := range map[string]uint64{
		"which subject":        f.letter("bad_json", "{", room.HeaderSubject, ""),
		`"other.thing"`:        f.letter("bad_json", "{", room.HeaderSubject, "other.thing"),
		`"notifyother"`:        f.letter("bad_json", "{", room.HeaderSubject, "notifyother"),
		room.HeaderOrigin:      f.letter("bad_json", "{", room.HeaderOrigin, "anywhere"),
		"its body had 2000 by": f.letter("too_large", "{", HeaderBodyLength, "2000", HeaderBodySHA256, "abc"),
	} {
		_, err := f.replay(number)
		testkit.Fails(f, "error", err, ErrUnfit, what)
	}
	f.requireEvents(nil)
	testkit.Equal(t, len(f.waiting(options.Stream)), 5, "letters")
}

// TestReplayRefused has the server refuse the publish. The letter stays.
func TestReplayRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createRoom(jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew})
	testkit.Must(f.js.Publish(t.Context(), "notify-room.part.full", []byte("text")))(t)
	number := f.rejected("a")
	_, err := f.replay(number)
	testkit.Fails(f, "error", err, nil, "publishing to notify-room.replay.payments")
	f.requireLetters("dead.rejected.payments")
	f.awaitTaken()
	f.requireOutcome(number, Replayed)
	f.requireEvents(nil, "a")
}

// TestReplayGone has another program replay and drop the letters meanwhile.
func TestReplayGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rejected("a")
	f.rejected("b")
	slow, letters := f.open()
	f.requireOutcome(1, Replayed)
	other, _ := f.open()
	testkit.Equal(t, testkit.Must(other.Drop(t.Context(), letters[1]))(t), Dropped, "drop of letter 2")
	for _, l := range letters {
		testkit.Equal(t, testkit.Must(slow.Replay(t.Context(), l))(t), Gone, "replay of letter %d", l.Number)
	}
	f.requireEvents(nil, "a")
	f.requireLetters()
}

// interrupted publishes the event of a letter, but keeps the letter. A killed replay does the same.
func (f *fixture) interrupted(number uint64) {
	f.Helper()
	store, letters := f.open()
	l := letters[slices.IndexFunc(letters, func(l Letter) bool { return l.Number == number })]
	message := testkit.Must(store.message(f.Context(), number))(f)
	known, err := store.publish(f.Context(), message, l)
	testkit.Require(f, !known && err == nil, "publish: got a duplicate: %t, %v; want a new message", known, err)
}

// TestInterrupted repeats an interrupted replay. The server stores the event once while it knows the message ID. After that it stores an
// equal event.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	type message struct {
		subject, body string
		header        nats.Header
	}
	window := jetstream.StreamConfig{Duplicates: 100 * time.Millisecond}
	for name, test := range map[string]struct {
		room    jetstream.StreamConfig
		between func(*fixture)
		want    Outcome
		stored  int // times that the event is stored
	}{
		"at once":                         {between: func(*fixture) {}, want: Finished, stored: 1},
		"it is taken":                     {between: (*fixture).awaitTaken, want: Finished, stored: 1},
		"it waits, restart":               {between: (*fixture).restart, want: Finished, stored: 1},
		"it is taken, restart":            {between: func(f *fixture) { f.awaitTaken(); f.restart() }, want: Replayed, stored: 2},
		"it waits, the window is over":    {room: window, between: (*fixture).forget, want: Replayed, stored: 2},
		"the room is recreated":           {between: func(f *fixture) { f.createRoom(jetstream.StreamConfig{}) }, want: Replayed, stored: 2},
		"it is rejected again, at once":   {between: (*fixture).rejectAgain, want: Finished, stored: 2},
		"it is rejected again, restart":   {between: func(f *fixture) { f.awaitTaken(); f.rejectAgain(); f.restart() }, want: Replayed, stored: 3},
		"a letter of a neighbour between": {between: func(f *fixture) { f.requireOutcome(f.rejected("b"), Replayed) }, want: Finished, stored: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.createRoom(test.room)
			number := f.rejected("a")
			var stored []message
			seen := make(map[time.Time]bool)
			look := func() {
				for _, m := range f.waiting(options.Room) {
					m.Header.Del(nats.MsgIdHdr)
					if m.Header.Get(room.HeaderID) == "a" && !seen[m.Time] {
						stored = append(stored, message{m.Subject, string(m.Data), m.Header})
						seen[m.Time] = true
					}
				}
			}
			f.interrupted(number)
			look()
			test.between(f)
			f.requireOutcome(number, test.want)
			_, letters := f.open()
			for _, l := range letters {
				f.requireOutcome(l.Number, Replayed)
			}
			look()
			testkit.Equal(t, len(stored), test.stored, "times that the event is stored")
			for _, m := range stored[1:] {
				testkit.EqualDeeply(t, m, stored[0], "the event that is stored again")
			}
			f.requireLetters()
		})
	}
}

// rejectAgain stores the letter of a replayed event.
func (f *fixture) rejectAgain() {
	f.Helper()
	f.letter("rejected", `{"title": "card declined"}`, room.HeaderID, "a", room.HeaderSince, "1700000005000")
}

// forget waits until the server has forgotten its message IDs.
func (f *fixture) forget() {
	f.Helper()
	for first := true; ; first = false {
		stored := testkit.Must(f.js.Publish(f.Context(), "notify-room.part.other", []byte("text"), jetstream.WithMsgID("probe")))(f)
		if !first && !stored.Duplicate {
			return
		}
	}
}
