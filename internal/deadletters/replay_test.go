package deadletters

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/room"
)

// A replayed event waits in the room with all that a worker has to know of it, its body and the producer's headers; its letter
// is gone. It counts as young as its replay: what it waited for before is forgotten.
func TestReplay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	number := f.letter("slack_rejected", `{"title": "card declined"}`,
		room.HeaderID, "order-1", room.HeaderDerived, "true", room.HeaderPart, "f1/2", room.HeaderSince, "1700000005000", room.HeaderMessageID, "produced",
		"Notifier-Deadline", "1", "X-Trace", "7", "Content-Type", "text/plain", "Nats-Other", "x")
	f.requireOutcome(number, false, Replayed)
	f.requireLetters()
	messages := f.waiting(options.Room)
	if len(messages) != 1 {
		t.Fatalf("%d events wait, want 1", len(messages))
	}
	m := messages[0]
	name := m.Header.Get(nats.MsgIdHdr)
	if !strings.HasPrefix(name, "replay-LETTERS-1-") {
		t.Errorf("it is published under the name %q", name)
	}
	want := nats.Header{
		room.HeaderReason: {"replay"}, room.HeaderSubject: {"notify.payments.cards"}, room.HeaderID: {"order-1"}, room.HeaderDerived: {"true"},
		room.HeaderPart: {"f1/2"}, room.HeaderOrigin: {origin.String()}, room.HeaderMessageID: {name},
		"X-Trace": {"7"}, "Content-Type": {"text/plain"}, nats.MsgIdHdr: {name}, nats.ExpectedStreamHdr: {"ROOM"},
	}
	if m.Subject != "notify-room.replay.payments" || string(m.Data) != `{"title": "card declined"}` || !sameHeader(m.Header, want) {
		t.Errorf("it is %s on %s with %v, want %v", m.Data, m.Subject, m.Header, want)
	}
	entry, err := room.Read(m.Header, m.Time)
	if err != nil || m.Time.Sub(entry.Since).Abs() >= time.Millisecond || entry.Origin != origin {
		t.Errorf("a worker makes of it %+v, %v", entry, err)
	}
}

// What a worker could not name the category of waits with the likes of it.
func TestReplayWithoutCategory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	header := nats.Header{room.HeaderSubject: {"notify"}, room.HeaderID: {"a"}, room.HeaderOrigin: {origin.String()}}
	if _, err := f.js.PublishMsg(t.Context(), &nats.Msg{Subject: "dead.bad_json._", Header: header, Data: []byte("{")}); err != nil {
		t.Fatal(err)
	}
	f.requireOutcome(1, false, Replayed)
	if messages := f.waiting(options.Room); len(messages) != 1 || messages[0].Subject != "notify-room.replay._" {
		t.Errorf("in the room: %v", messages)
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
		"its body had 2000 by": f.letter("too_large", "{", consume.HeaderBodyLength, "2000", consume.HeaderBodySHA256, "abc"),
	} {
		if outcome, err := f.replay(number, true); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), what) {
			t.Errorf("%q, %v, want an error that says %q", outcome, err, what)
		}
	}
	f.requireEvents(nil)
	if letters := f.waiting(options.Stream); len(letters) != 5 {
		t.Errorf("%d letters are left, want all", len(letters))
	}
}

// A publish that the server refuses leaves the letter as it was.
func TestReplayRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.createRoom(jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew})
	f.publish("notify-room.part.full", "text")
	number := f.rejected("a")
	if outcome, err := f.replay(number, false); err == nil || !strings.Contains(err.Error(), "publishing to notify-room.replay.payments") {
		t.Errorf("%q, %v", outcome, err)
	}
	f.requireLetters("dead.slack_rejected.payments")
	f.take()
	f.requireOutcome(number, false, Replayed)
	f.requireEvents(nil, "a")
}

// What another program has replayed or dropped meanwhile is not replayed again.
func TestReplayGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.rejected("a")
	f.rejected("b")
	slow, letters := f.open()
	f.requireOutcome(1, false, Replayed)
	other, _ := f.open()
	if err := other.Drop(t.Context(), letters[1]); err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		if outcome, err := slow.Replay(t.Context(), l, true); outcome != Gone || err != nil {
			t.Errorf("letter %d: %q, %v, want %s", l.Number, outcome, err, Gone)
		}
	}
	f.requireEvents(nil, "a")
	f.requireLetters()
}

// interrupted runs a replay up to a step and leaves it there, as a program does that is killed.
func (f *fixture) interrupted(number uint64, steps int) {
	f.Helper()
	store, letters := f.open()
	l := letters[slices.IndexFunc(letters, func(l Letter) bool { return l.Number == number })]
	if err := store.prepare(f.Context()); err != nil {
		f.Fatal(err)
	}
	m, fresh, err := store.begin(f.Context(), l)
	if err != nil || !fresh {
		f.Fatalf("mark the letter: %t, %v", fresh, err)
	}
	if steps == untilMarked {
		return
	}
	message, err := store.message(f.Context(), number)
	if err != nil {
		f.Fatal(err)
	}
	if again, err := store.publish(f.Context(), message, m, l); again || err != nil {
		f.Fatalf("publish the event: %t, %v", again, err)
	}
	if steps == untilPublished {
		return
	}
	if err := store.remove(f.Context(), number); err != nil {
		f.Fatal(err)
	}
}

const (
	untilMarked = iota
	untilPublished
	untilRemoved
)

// A replay that was interrupted publishes its event once when it is run again, or leaves it in doubt, whatever happened in
// between.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	type f = *fixture
	window := func(w time.Duration) func(f) {
		return func(f f) { f.createRoom(jetstream.StreamConfig{Duplicates: w}) }
	}
	for name, test := range map[string]struct {
		before  func(f)
		until   int
		between func(f) (taken []string)
		want    Outcome
		once    bool // the event is stored once, otherwise not at all
		forced  Outcome
	}{
		"before the publish":                    {nil, untilMarked, nil, Replayed, true, ""},
		"before the publish, others are gone":   {nil, untilMarked, others(true), Replayed, true, ""},
		"after the publish":                     {nil, untilPublished, nil, Finished, true, ""},
		"after the publish, it is taken":        {nil, untilPublished, taken(false), Finished, true, ""},
		"before the publish, restart":           {nil, untilMarked, restarted, Replayed, true, ""},
		"before the publish, others, restart":   {nil, untilMarked, both(others(false), restarted), Replayed, true, ""},
		"before it, others are gone, restart":   {nil, untilMarked, both(others(true), restarted), InDoubt, false, Replayed},
		"after the publish, restart":            {nil, untilPublished, restarted, Finished, true, ""},
		"after the publish, taken, restart":     {nil, untilPublished, taken(true), InDoubt, true, Replayed},
		"after the publish, rejected, restart":  {nil, untilPublished, rejectedAgain, Finished, true, ""},
		"before it, forged by a producer":       {nil, untilMarked, forgedReturn, InDoubt, false, Replayed},
		"after the publish, others, restart":    {nil, untilPublished, both(others(false), restarted), Finished, true, ""},
		"before the publish, window over":       {window(10 * time.Second), untilMarked, nil, Replayed, true, ""},
		"after the publish, window over":        {window(10 * time.Second), untilPublished, nil, Finished, true, ""},
		"after the publish, window over, taken": {window(10 * time.Second), untilPublished, taken(false), InDoubt, true, Finished},
		"after the publish, forgotten":          {window(100 * time.Millisecond), untilPublished, forgotten, Finished, true, ""},
		"after the publish, taken, forgotten":   {window(100 * time.Millisecond), untilPublished, both(taken(false), forgotten), InDoubt, true, Replayed},
		"before the publish, another stream":    {nil, untilMarked, anotherStream, InDoubt, false, Replayed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if test.before != nil {
				test.before(f)
			}
			f.publish("notify-room.part.earlier", "text")
			f.take()
			number := f.rejected("a")
			f.interrupted(number, test.until)
			var taken []string
			if test.between != nil {
				taken = test.between(f)
			}
			f.requireOutcome(number, false, test.want)
			want := []string{}
			if test.once {
				want = []string{"a"}
			}
			f.requireEvents(slices.DeleteFunc(append(taken, f.take()...), func(id string) bool { return id == "" }), want...)
			if test.want == InDoubt {
				f.requireOutcome(number, false, InDoubt)
				f.requireOutcome(number, true, test.forced)
				if test.forced == Replayed {
					want = []string{"a"}
				} else {
					want = nil // the server knows it still
				}
				f.requireEvents(nil, want...)
			}
			for _, m := range f.waiting(options.Stream) {
				if m.Sequence == number || strings.HasPrefix(m.Subject, "dead.replaying.") {
					t.Errorf("message %d on %s is left", m.Sequence, m.Subject)
				}
			}
		})
	}
}

func restarted(f *fixture) []string {
	f.Helper()
	f.restart()
	return nil
}

func both(first, second func(*fixture) []string) func(*fixture) []string {
	return func(f *fixture) []string { return append(first(f), second(f)...) }
}

// others has other events published, and perhaps taken.
func others(take bool) func(*fixture) []string {
	return func(f *fixture) []string {
		f.Helper()
		f.publish("notify-room.replay.payments", "text")
		f.publish("notify-room.part.errors", "text")
		if take {
			return f.take()
		}
		return nil
	}
}

// taken has the worker take the event, and perhaps the server restarted then.
func taken(restart bool) func(*fixture) []string {
	return func(f *fixture) []string {
		f.Helper()
		ids := f.take()
		if restart {
			f.restart()
		}
		return ids
	}
}

// rejectedAgain has the event become another dead letter.
func rejectedAgain(f *fixture) []string {
	f.Helper()
	name := f.waiting(options.Room)[0].Header.Get(nats.MsgIdHdr)
	ids := f.take()
	f.letter("slack_rejected", "text", room.HeaderID, "a", room.HeaderMessageID, name, room.HeaderSince, "1700000005000")
	f.restart()
	return ids
}

// forgedReturn has a producer publish what becomes a dead letter under the name of the replay, and the room empty.
func forgedReturn(f *fixture) []string {
	f.Helper()
	name := fmt.Sprintf("replay-LETTERS-1-%d", f.waiting(options.Stream)[0].Time.UnixMilli())
	f.letter("bad_json", "{", room.HeaderID, "forged", room.HeaderMessageID, name)
	return both(others(true), restarted)(f)
}

// forgotten waits until the server does not know the names again that it had before.
func forgotten(f *fixture) []string {
	f.Helper()
	for first := true; ; first = false {
		stored, err := f.js.Publish(f.Context(), "notify-room.part.other", []byte("text"), jetstream.WithMsgID("probe"))
		if err != nil {
			f.Fatal(err)
		}
		if !first && !stored.Duplicate {
			return nil
		}
	}
}

func anotherStream(f *fixture) []string {
	f.Helper()
	f.createRoom(jetstream.StreamConfig{})
	return nil
}

// A mark whose letter is gone is removed; others stay.
func TestTidy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, second := f.rejected("a"), f.rejected("b")
	f.interrupted(first, untilRemoved)
	f.interrupted(second, untilMarked)
	store, letters := f.open()
	if err := store.Tidy(t.Context(), letters); err != nil {
		t.Error(err)
	}
	f.requireLetters("dead.slack_rejected.payments", fmt.Sprintf("dead.replaying.%d", second))
}

// Replays that are interrupted anywhere, again and again, two at a time and while a worker takes what they publish, replay
// each letter once.
func TestReplayOnce(t *testing.T) {
	t.Parallel()
	const count = 40
	f := newFixture(t)
	for i := range count {
		f.rejected(fmt.Sprint("event ", i))
	}
	deadline := time.Now().Add(patience)
	var programs sync.WaitGroup
	for range 2 {
		conn := f.connect()
		programs.Go(func() {
			for time.Now().Before(deadline) {
				left, err := f.replayForAWhile(conn)
				if err != nil {
					t.Error(err)
				}
				if err != nil || left == 0 {
					return
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { programs.Wait(); close(finished) }()
	var taken []string
	for over := false; !over; {
		select {
		case <-finished:
			over = true
		default:
		}
		taken = append(taken, f.take()...)
	}
	slices.Sort(taken)
	if distinct := slices.Compact(slices.Clone(taken)); len(taken) != count || len(distinct) != count {
		t.Errorf("%d events were replayed, %d different ones, want %d", len(taken), len(distinct), count)
	}
	store, letters := f.open()
	if err := store.Tidy(t.Context(), letters); err != nil {
		t.Error(err)
	}
	f.requireLetters()
}

// replayForAWhile replays what is there until some time is over, wherever that finds it. It returns how much was there.
func (f *fixture) replayForAWhile(conn *nats.Conn) (left int, err error) {
	started := time.Now()
	store, err := Open(f.Context(), conn, options)
	if err != nil {
		return 0, err
	}
	letters, err := store.List(f.Context(), unwatched)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(f.Context(), rand.N(time.Since(started)+time.Millisecond)) // enough for some, on a slow machine too
	defer cancel()
	for _, l := range letters {
		outcome, err := store.Replay(ctx, l, false)
		if ctx.Err() != nil {
			break
		}
		if err != nil || outcome == InDoubt {
			return 0, fmt.Errorf("letter %d: %q, %w", l.Number, outcome, err)
		}
	}
	return len(letters), nil
}
