package consume

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

func TestOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"plain text, äöü":                   "plain text, äöü",
		"a\r\nNats-Rollup: all\r\n\r\nb":    "a Nats-Rollup: all b",
		"\x00a\tb\x7f\n":                    "a b",
		"\n\n\n":                            "",
		"many   blanks are the text's own ": "many   blanks are the text's own ",
	} {
		testkit.Equal(t, oneLine(text), want, "oneLine(%q)", text)
	}
}

// letterCase is a body that ends as a dead letter.
type letterCase struct {
	subject, body string
	headers       []string
	reason        event.Reason
	first         string // the first level in its subject; "" for payments
	has           map[string]string
	hasNot        []string
	kept          int  // bytes of a cut body; 0: all
	bare          bool // no header is left
	most          int  // largest body in bytes; 0: 1000
}

const maxPayload = 1 << 20 // default of the server

var (
	largeValue  = strings.Repeat("v", 1500)
	largeHeader = len("NATS/1.0\r\nX-Large: \r\n\r\n") + len(largeValue)
)

func thousandHeaders() (headers []string) {
	for i := range 1000 {
		headers = append(headers, fmt.Sprintf("X-%d", i), fmt.Sprint(i))
	}
	return headers
}

func brokenBody(size int) string { return "{" + strings.Repeat("x", size-1) }

var letterCases = map[string]letterCase{
	"small": {body: "{broken", headers: []string{"X-Trace", "7", "Nats-Msg-Id", "id", "Nats-Expected-Stream", testNames.Stream},
		reason: event.ReasonBadJSON, has: map[string]string{"X-Trace": "7", room.HeaderMessageID: "id", room.HeaderID: "id"},
		hasNot: []string{"Nats-Expected-Stream", room.HeaderDerived, room.HeaderPart, room.HeaderSince, HeaderBodyLength, HeaderPushedOut}},
	"of a producer who forges headers": {body: "{broken", headers: []string{
		HeaderReason, "forged", "notifier-error", "forged", room.HeaderSubject, "notify.security", room.HeaderOrigin, "1 1 EVENTS", room.HeaderPart, "2",
		room.HeaderSince, "1", "Notifier-Deadline", "1", HeaderPushedOut, "9", HeaderBodyLength, "9", "Notifier-Trace", "1", "Nats-Rollup-Not", "all",
	}, reason: event.ReasonBadJSON, has: map[string]string{room.HeaderDerived: "true"},
		hasNot: []string{room.HeaderPart, room.HeaderSince, "Notifier-Deadline", HeaderPushedOut, HeaderBodyLength, "Notifier-Trace", "Nats-Rollup-Not", "notifier-error"}},
	"empty":                              {body: "", reason: event.ReasonEmpty},
	"no UTF-8":                           {body: "\xff\x00\r\n", reason: event.ReasonBadUTF8},
	"bad category":                       {subject: "notify.ä😀.B", body: "text", reason: event.ReasonBadCategory, first: event.NoLevel},
	"bad category below a first level":   {subject: "notify.Payments.ä", body: "text", reason: event.ReasonBadCategory},
	"no category at all":                 {subject: "notify", body: "{broken", reason: event.ReasonBadJSON, first: event.NoLevel},
	"a category in the body":             {subject: "notify", body: `{"category": "infra.disk"}`, reason: event.ReasonEmpty, first: "infra"},
	"a thousand headers":                 {body: "{broken", headers: thousandHeaders(), reason: event.ReasonBadJSON, has: map[string]string{"X-0": "0", "X-999": "999"}},
	"no room for the producer's headers": {body: brokenBody(maxPayload - largeHeader), headers: []string{"X-Large", largeValue}, reason: event.ReasonBadJSON, has: map[string]string{room.HeaderID: "EVENTS:1"}, hasNot: []string{"X-Large"}},
	"room for the mark alone":            {body: brokenBody(maxPayload - 100), reason: event.ReasonBadJSON, bare: true},
	"no room for any header":             {body: brokenBody(maxPayload), reason: event.ReasonBadJSON, kept: maxPayload / 2},
	"too large":                          {body: brokenBody(5000), headers: []string{"X-Large", largeValue}, reason: event.ReasonTooLarge, kept: 1000, has: map[string]string{"X-Large": largeValue}},
	"cut, with no room for any header":   {body: brokenBody(maxPayload), reason: event.ReasonTooLarge, most: maxPayload - 1, kept: (maxPayload - 1) / 2},
	"too large, as large as can be":      {body: brokenBody(maxPayload), reason: event.ReasonTooLarge, kept: 1000},
}

// TestDeadLetter compares letters with the body, the producer's headers, the origin and the reason. A letter that exceeds the server's
// largest message loses headers, or a part of its body.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	each(t, letterCases, func(t *testing.T, f *fixture, test letterCase) {
		f.provision(patience)
		subject, first := cmp.Or(test.subject, "notify.payments"), cmp.Or(test.first, "payments")
		sequence := f.publish(subject, test.body, test.headers...)
		f.start(func(o *Options) {
			if test.reason == event.ReasonTooLarge {
				o.Decoder.MaxBytes = cmp.Or(test.most, 1000)
			}
		})
		f.awaitSettled(1)
		f.requireSaid(sequence, "+TERM "+string(test.reason)+": …")
		testkit.Equal(t, f.metrics.Get("letter "+string(test.reason)), 1, "dead letters by reason")
		letters := f.deadLetters()
		if len(letters) != 1 {
			t.Fatalf("dead letters: got %d, want 1", len(letters))
		}
		letter := letters[0]
		want := map[string]string{
			HeaderReason: string(test.reason), room.HeaderSubject: subject, HeaderSequence: "1", HeaderDeliveries: "1",
		}
		maps.Copy(want, test.has)
		kept := test.body
		if test.kept > 0 {
			kept = kept[:test.kept]
			want[HeaderBodyLength] = fmt.Sprint(len(test.body))
			want[HeaderBodySHA256] = fmt.Sprintf("%x", sha256.Sum256([]byte(test.body)))
		}
		if on := fmt.Sprintf("notify-dlq.%s.%s", test.reason, first); string(letter.Data) != kept || letter.Subject != on {
			t.Errorf("letter: got %d bytes on %s, want %d bytes of the body on %s", len(letter.Data), letter.Subject, len(kept), on)
		}
		if !test.bare {
			f.requireLetterHeaders(letter, want, test.hasNot)
		} else if len(letter.Header) != 1 || !trusted.IsMarked(letter.Header) {
			t.Errorf("headers: got %v, want the mark alone", letter.Header)
		}
	})
}

// requireLetterHeaders checks the headers of the letter of the producers' first message.
func (f *fixture) requireLetterHeaders(letter *jetstream.RawStreamMsg, want map[string]string, hasNot []string) {
	f.Helper()
	if id := letter.Header.Get(nats.MsgIdHdr); !strings.HasPrefix(id, "dlq-EVENTS-1-") {
		f.Errorf("message ID: got %q, want dlq-EVENTS-1- and the time", id)
	}
	for name, value := range want {
		testkit.EqualSlices(f, letter.Header.Values(name), []string{value}, "header %s", name)
	}
	if letter.Header.Get(HeaderError) == "" {
		f.Errorf("header %s: got none, want the error", HeaderError)
	}
	for _, name := range hasNot {
		testkit.EqualSlices(f, letter.Header.Values(name), nil, "header %s", name)
	}
	entry, err := room.Read(letter.Header, letter.Time)
	if err != nil || entry.Origin.Stream != testNames.Stream || entry.Origin.Sequence != 1 || entry.Replayed() {
		f.Errorf("entry: got %+v, %v, want message 1 of %s", entry, err, testNames.Stream)
	}
}

// TestDeadLetterOfAnEventThatMoved stores the letter of an event again after its moves. The stream knows the letter again. A part of a
// group and a replay have letters of their own.
func TestDeadLetterOfAnEventThatMoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.publish("notify.payments", `{"id": "order-1", "title": "an event"}`)
	m := f.taken(w, patience)
	e := testkit.Must(m.decode(w.o.Decoder))(t)
	fault := event.NewFault(event.ReasonSlackRejected, "invalid_blocks", nil)
	inRoom := func(sequence uint64, change func(*room.Entry)) *message {
		moved := &message{Msg: m.Msg, stream: testNames.RoomStream, sequence: sequence, entry: m.entryFor(e, room.Channel)}
		change(&moved.entry)
		return moved
	}
	part := func(name string) func(*room.Entry) { return func(entry *room.Entry) { entry.Part = name } }
	for i, step := range []struct {
		m    *message
		want int // letters by then
	}{
		{m, 1},
		{m, 1},
		{inRoom(1, func(*room.Entry) {}), 1},
		{inRoom(2, part("a")), 2},
		{inRoom(3, part("b")), 3},
		{inRoom(4, part("b")), 3},
		{inRoom(5, func(entry *room.Entry) { entry.Since = entry.Since.Add(time.Second) }), 4},
	} {
		e := testkit.Must(step.m.decode(w.o.Decoder))(t)
		testkit.NoError(t, w.storeDeadLetter(t.Context(), step.m, e, fault))
		testkit.Equal(t, len(f.deadLetters()), step.want, "dead letters after step %d", i+1)
	}
}

func TestDeadLetterStreamIsMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(nil)
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.DeadLetterStream))
	sequence := f.publish("notify.payments", "{broken")
	f.awaitSettled(1)
	f.requireSaid(sequence, "+TERM bad_json: …")
	testkit.Equal(t, len(f.deadLetters()), 1, "dead letters")
}

// deadLetter stores the dead letters of bodies, as a worker does.
func (f *fixture) deadLetter(w *Worker, subject string, bodies ...string) {
	f.Helper()
	for _, body := range bodies {
		f.publish(subject, body)
		m := f.taken(w, patience)
		e, fault := m.decode(w.o.Decoder)
		found, isFault := errors.AsType[*event.Fault](fault)
		if !isFault {
			f.Fatalf("fault of the body %.20q: got %v, want a fault", body, fault)
		}
		testkit.NoError(f, w.storeDeadLetter(f.Context(), m, e, found))
		testkit.NoError(f, m.DoubleAck(f.Context()))
	}
}

// origins lists the sequences of the letters' events, by the letters' subjects.
func (f *fixture) origins() map[string][]uint64 {
	f.Helper()
	origins := make(map[string][]uint64)
	for _, letter := range f.deadLetters() {
		entry := testkit.Must(room.Read(letter.Header, letter.Time))(f)
		origins[letter.Subject] = append(origins[letter.Subject], entry.Origin.Sequence)
	}
	return origins
}

// TestDeadLettersOfOneSubject fills one subject. Its oldest letters go, and are counted. Other subjects keep theirs.
func TestDeadLettersOfOneSubject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const most, more = 5, 3
	w := f.prepared(func(o *Options) { o.Names.DeadLetters.PerSubject = most })
	f.deadLetter(w, "notify.security.doors", "{")
	for range most + more {
		f.deadLetter(w, "notify.payments.cards", "{")
	}
	f.deadLetter(w, "notify.payments", "")
	origins := f.origins()
	testkit.EqualSlices(t, origins["notify-dlq.bad_json.payments"], []uint64{5, 6, 7, 8, 9}, "events of the letters of payments")
	testkit.Equal(t, len(origins["notify-dlq.bad_json.security"]), 1, "letters of security")
	testkit.Equal(t, len(origins["notify-dlq.empty.payments"]), 1, "letters of another reason")
	testkit.Equal(t, f.metrics.Get("letters discarded"), more, "discarded letters")
	pushedOut := 0
	for _, letter := range f.deadLetters() {
		n, _ := strconv.Atoi(letter.Header.Get(HeaderPushedOut))
		pushedOut += n
	}
	testkit.Equal(t, pushedOut, more, "sum of the headers "+HeaderPushedOut)
}

// TestPushedOutLettersAreCounted has goroutines store letters of one subject at once, from an empty subject to far beyond its bound. The
// metric and the headers count exactly the letters that are gone. Letters that the stream knows already push out none.
func TestPushedOutLettersAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const most, more, goroutines = 50, 600, 32
	w := f.prepared(func(o *Options) { o.Names.DeadLetters.PerSubject = most })
	var counted atomic.Int64 // what the headers of all letters say
	headers, err := f.js.Conn().Subscribe("notify-dlq.>", func(m *nats.Msg) {
		n, _ := strconv.Atoi(m.Header.Get(HeaderPushedOut))
		counted.Add(int64(n))
	})
	testkit.NoError(t, err)
	store := func(number int) {
		l := letter{subject: "notify-dlq.bad_json.payments", first: "payments", id: fmt.Sprint("dlq-", number), own: nats.Header{}, body: []byte("{")}
		if err := w.storeLetter(t.Context(), l, allHeaders, 1); err != nil {
			t.Errorf("storing letter %d: %v", number, err)
		}
	}
	var together sync.WaitGroup
	for i := range goroutines {
		together.Go(func() {
			for number := i; number < most+more; number += goroutines {
				store(number)
			}
		})
	}
	together.Wait()
	store(most + more - 1) // the stream knows it
	testkit.NoError(t, f.js.Conn().Flush())
	f.eventually("every letter is seen", func() bool { delivered, _ := headers.Delivered(); return delivered == most+more+1 })
	testkit.Equal(t, len(f.deadLetters()), most, "letters that are left")
	testkit.Equal(t, f.metrics.Get("letters discarded"), more, "discarded letters")
	testkit.AtMost(t, counted.Load(), more+1, "letters pushed out by the headers, with the one of the letter that the stream knows")
	testkit.AtMost(t, more, counted.Load(), "letters pushed out by the headers")
}

// TestPushedOutLettersAreOwed has letters pushed out for a letter that the server refuses afterwards. The next letter that is stored says so.
func TestPushedOutLettersAreOwed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	w.letters.owe(7)
	tooLong := letter{subject: "notify-dlq.bad_json.payments", first: "payments", id: "dlq-1", own: nats.Header{}, body: make([]byte, 2<<20)}
	if err := w.storeLetter(t.Context(), tooLong, allHeaders, 2<<20); !tooMuch(err) {
		t.Fatalf("storing a letter above the server's bound: got %v, want a refusal", err)
	}
	f.deadLetter(w, "notify.payments", "{", "{")
	var counted []string
	for _, l := range f.deadLetters() {
		counted = append(counted, l.Header.Get(HeaderPushedOut))
	}
	testkit.EqualSlices(t, counted, []string{"7", ""}, "letters pushed out, by the headers")
}

// TestDeadLettersWhereBytesRunOut has one producer send ten times the size of the store. The producer loses its own oldest letters. The
// neighbours lose none. The producers' stream and the room still take messages.
func TestDeadLettersWhereBytesRunOut(t *testing.T) {
	t.Parallel()
	const store = 16 << 20
	n := servertest.StartNATS(t, func(o *server.Options) { o.JetStreamMaxStore = store })
	f := newFixtureOn(t, n)
	w := f.prepared(func(o *Options) {
		o.Decoder.MaxBytes = 256 << 10
		o.Names.MaxBytes, o.Names.DeadLetters = 4<<20, DeadLetterBounds{PerSubject: 1000, Bytes: 6 << 20}
	})
	const neighbours = 100
	for i := range neighbours {
		f.deadLetter(w, fmt.Sprintf("notify.neighbour-%d", i%10), "{"+strings.Repeat("n", 1000))
	}
	body := strings.Repeat("x", 1<<20-100)
	const bodies = 170
	f.deadLetter(w, "notify.payments", body)
	for i := range bodies - 1 { // stores the letters directly, which is faster
		entry := room.Entry{
			Subject: "notify.payments", ID: fmt.Sprint(i),
			Origin: room.Origin{Stream: testNames.Stream, Sequence: uint64(neighbours + 2 + i), Stored: time.Now()},
		}
		entry.Since = entry.Origin.Stored
		l := letter{
			subject: "notify-dlq.too_large.payments", first: "payments", id: fmt.Sprint("dlq-", i),
			own: entry.Message("", nil, nil).Header, body: []byte(body),
		}
		testkit.NoError(t, w.storeLetter(t.Context(), l, allHeaders, w.o.Decoder.MaxBytes))
	}
	f.deadLetter(w, "notify.security", "{")

	origins, left := f.origins(), 0
	for i := range 10 {
		left += len(origins[fmt.Sprintf("notify-dlq.bad_json.neighbour-%d", i)])
	}
	testkit.Equal(t, left, neighbours, "letters of the neighbours")
	testkit.Equal(t, len(origins["notify-dlq.bad_json.security"]), 1, "letters of security")
	own := origins["notify-dlq.too_large.payments"]
	if len(own) < 15 || len(own) > 24 || own[len(own)-1] != neighbours+bodies || int(own[len(own)-1]-own[0]) != len(own)-1 {
		t.Errorf("letters of payments: got %d of the events %d to %d, want the newest 15 to 24", len(own), own[0], own[len(own)-1])
	}
	testkit.Equal(t, f.metrics.Get("letters discarded"), bodies-len(own), "discarded letters")
	for range 3 {
		f.publish("notify.security", body)
	}
	testkit.Must(f.js.Publish(t.Context(), w.names.room().Queue(room.Part, "security"), []byte(body)))(t)
}

// TestOldest takes the oldest letters of the first level with the most bytes.
func TestOldest(t *testing.T) {
	t.Parallel()
	const most = 1000
	pile := func(first string, sizes ...int) []lying {
		var letters []lying
		for i, size := range sizes {
			letters = append(letters, lying{subject: first, sequence: uint64(i + 1), size: size})
		}
		return letters
	}
	same := func(n, size int) []int { return slices.Repeat([]int{size}, n) }
	for name, test := range map[string]struct {
		piles         piles
		own           string
		size, missing int
		want          map[string]uint64
	}{
		"alone, an eighth goes":             {piles{"a": pile("a", same(100, 10)...)}, "a", 10, 10, map[string]uint64{"a": 7}},
		"alone, no more than the spare":     {piles{"a": pile("a", same(10, 100)...)}, "a", 10, 10, map[string]uint64{"a": 1}},
		"a newcomer takes of the largest":   {piles{"a": pile("a", same(90, 10)...), "b": pile("b", 100)}, "c", 10, 10, map[string]uint64{"a": 7}},
		"of the largest above its share":    {piles{"a": pile("a", same(51, 10)...), "b": pile("b", same(49, 10)...)}, "b", 5, 5, map[string]uint64{"a": 1}},
		"who is the largest loses":          {piles{"a": pile("a", same(50, 10)...), "b": pile("b", same(50, 10)...)}, "b", 10, 10, map[string]uint64{"b": 7}},
		"what one has is not enough":        {piles{"a": pile("a", 400), "b": pile("b", 300), "c": pile("c", 300)}, "d", 500, 500, map[string]uint64{"a": 1, "b": 1}},
		"one letter as large as the stream": {piles{"a": pile("a", 500), "b": pile("b", 500)}, "a", 1000, 1000, map[string]uint64{"a": 1, "b": 1}},
		"others have made room":             {piles{"a": pile("a", same(10, 10)...)}, "a", 10, -900, map[string]uint64{"a": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.EqualMaps(t, test.piles.oldest(test.own, test.size, test.missing, most), test.want, "discarded letters")
		})
	}
}

// TestRoomIsMadeOnce has several goroutines find the stream full at once. One of them makes room.
func TestRoomIsMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(func(o *Options) { o.Names.DeadLetters = DeadLetterBounds{PerSubject: 100_000, Bytes: 1 << 20} })
	f.deadLetter(w, "notify.payments", slices.Repeat([]string{"{" + strings.Repeat("x", 10_000)}, 90)...)
	rooms := w.letters.rooms()
	var gone [4]int
	var together sync.WaitGroup
	for i := range gone {
		together.Go(func() {
			var err error
			if gone[i], err = w.letters.makeRoom(context.WithoutCancel(t.Context()), "payments", 200_000, rooms); err != nil {
				t.Error(err)
			}
		})
	}
	together.Wait()
	slices.Sort(gone[:])
	if gone[2] != 0 || gone[3] == 0 {
		t.Errorf("discarded letters by goroutine: got %v, want some for one of them", gone)
	}
}

// TestNoRightToMakeRoom denies the right to purge. The log says so. Neither the event nor a letter is lost.
func TestNoRightToMakeRoom(t *testing.T) {
	t.Parallel()
	f := limited(t, "$JS.API.STREAM.PURGE.>")
	bounds := func(o *Options) { o.Names.DeadLetters = DeadLetterBounds{PerSubject: 100, Bytes: 1 << 20} }
	w := f.prepared(func(o *Options) {
		bounds(o)
		o.Connection = f.connectAs(ConnectOptions{URL: f.server.URL, User: "all", Password: "secret"})
	})
	f.deadLetter(w, "notify.payments", slices.Repeat([]string{"{" + strings.Repeat("x", 250_000)}, 4)...)
	f.publish("notify.payments", "{"+strings.Repeat("x", 250_000))
	f.start(func(o *Options) {
		bounds(o)
		o.Connection = f.connectLimited()
	})
	f.eventually("the log says so", func() bool { return len(f.log.Lines("dead letters cannot be stored")) > 0 })
	testkit.Equal(t, len(f.deadLetters()), 4, "letters")
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, 1, "events")
}
