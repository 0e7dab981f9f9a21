package deadletters

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// fakeMetrics counts what a writer reports.
type fakeMetrics struct{ testkit.Counts }

func (f *fakeMetrics) DeadLetter(reason string)   { f.Add("letter "+reason, 1) }
func (f *fakeMetrics) DeadLettersDiscarded(n int) { f.Add("discarded", n) }

// writing is a writer and the stream of its letters.
type writing struct {
	*Writer
	t       testing.TB
	js      jetstream.JetStream
	metrics *fakeMetrics
}

var writtenNames = stream.Names{
	Stream: "EVENTS", Subject: "notify", Consumer: "notifier", MaxBytes: 4 << 20, RoomStream: "ROOM",
	DeadLetterStream: "DEAD", DeadLetterSubject: "notify-dlq",
}

// newWriter creates the streams on a server, and a writer.
func newWriter(t *testing.T, n *servertest.NATS, bounds stream.DeadLetterBounds, maxBody int) *writing {
	t.Helper()
	log := testkit.NewLog(t).Logger()
	connection := testkit.Must(stream.Connect(t.Context(), stream.ConnectOptions{URL: n.URL, Logger: log}))(t)
	t.Cleanup(func() {
		connection.Conn.Close()
		<-connection.Closed()
	})
	names := writtenNames
	names.DeadLetters = bounds
	client := testkit.Must(stream.NewClient(stream.Options{
		Connection: connection, Names: names, Provision: true, AckWait: patience, Logger: log,
	}))(t)
	testkit.NoError(t, client.Find(t.Context()))
	metrics := &fakeMetrics{}
	w := NewWriter(WriterOptions{Streams: client, MaxBody: maxBody, Metrics: metrics, Logger: log})
	t.Cleanup(w.Close)
	return &writing{Writer: w, t: t, js: client.JetStream, metrics: metrics}
}

// number returns the letter of a numbered event, with a first level as the subject.
func number(first string, n int, body string) Dead {
	entry := room.Entry{
		Subject: "notify." + first, ID: fmt.Sprint(n),
		Origin: room.Origin{Stream: "EVENTS", Sequence: uint64(n), Stored: time.UnixMilli(1)}, Since: time.UnixMilli(1),
	}
	return Dead{Entry: entry, First: first, Body: []byte(body), Fault: event.NewFault(event.ReasonBadJSON, "not JSON")}
}

// numbers lists the events of the letters that are left, by their first levels.
func (w *writing) numbers() map[string][]int {
	w.t.Helper()
	letters := testkit.Must(w.js.Stream(w.t.Context(), "DEAD"))(w.t)
	found, state := make(map[string][]int), letters.CachedInfo().State
	for sequence := state.FirstSeq; sequence <= state.LastSeq; sequence++ {
		m, err := letters.GetMsg(w.t.Context(), sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		testkit.NoError(w.t, err)
		first := m.Subject[strings.LastIndex(m.Subject, ".")+1:]
		n, _ := strconv.Atoi(m.Header.Get(room.HeaderID))
		found[first] = append(found[first], n)
	}
	return found
}

// TestPushedOutLettersAreCounted has goroutines store letters of one subject at once, from an empty subject to far beyond its bound. The
// metric and the headers of the stored letters count exactly the letters that are gone. Letters that the stream has already push out none.
// Another subject keeps its letter.
func TestPushedOutLettersAreCounted(t *testing.T) {
	t.Parallel()
	const most, more, goroutines = 50, 600, 32
	w := newWriter(t, servertest.StartNATS(t), stream.DeadLetterBounds{PerSubject: most}, 0)
	config := testkit.Must(w.js.Stream(t.Context(), "DEAD"))(t).CachedInfo().Config
	config.RePublish = &jetstream.RePublish{Source: ">", Destination: "stored.>"} // a refused letter is not republished
	testkit.Must(w.js.UpdateStream(t.Context(), config))(t)
	var counted atomic.Int64
	stored, err := w.js.Conn().Subscribe("stored.>", func(m *nats.Msg) {
		n, _ := strconv.Atoi(m.Header.Get(HeaderPushedOut))
		counted.Add(int64(n))
	})
	testkit.NoError(t, err)
	testkit.NoError(t, w.Store(t.Context(), number("security", most+more, "{")))
	var together sync.WaitGroup
	for i := range goroutines {
		together.Go(func() {
			for n := i; n < most+more; n += goroutines {
				if err := w.Store(t.Context(), number("payments", n, "{")); err != nil {
					t.Errorf("storing letter %d: %v", n, err)
				}
			}
		})
	}
	together.Wait()
	testkit.NoError(t, w.Store(t.Context(), number("payments", most+more-1, "{"))) // the stream has it
	testkit.Eventually(t, "every stored letter is seen", func() bool { delivered, _ := stored.Delivered(); return delivered == 1+most+more })
	testkit.Equal(t, len(w.numbers()["payments"]), most, "letters that are left")
	testkit.Equal(t, len(w.numbers()["security"]), 1, "letters of another subject")
	testkit.Equal(t, w.metrics.Get("discarded"), more, "discarded letters")
	testkit.Equal(t, counted.Load(), more, "letters pushed out by the headers")
}

// TestPushedOutLettersAreOwed has letters pushed out for a letter that the server refuses afterwards. The next stored letter counts them.
func TestPushedOutLettersAreOwed(t *testing.T) {
	t.Parallel()
	w := newWriter(t, servertest.StartNATS(t), stream.DeadLetterBounds{PerSubject: 100}, 0)
	w.owed.Add(7)
	tooLong := w.letterOf(number("payments", 1, strings.Repeat("x", 2<<20)))
	err := w.store(t.Context(), tooLong, allHeaders, 2<<20)
	testkit.Require(t, messagesize.IsTooLarge(err), "storing a letter above the server's bound: got %v, want a refusal", err)
	letters := testkit.Must(w.js.Stream(t.Context(), "DEAD"))(t)
	for i, want := range []string{"7", ""} {
		testkit.NoError(t, w.Store(t.Context(), number("payments", i+2, "{")))
		m := testkit.Must(letters.GetMsg(t.Context(), uint64(i+1)))(t)
		testkit.Equal(t, m.Header.Get(HeaderPushedOut), want, "letters pushed out, by the header of letter %d", i+1)
	}
}

// TestDeadLettersWhereBytesRunOut has one producer send ten times the size of the store. The producer loses its own oldest letters. The
// neighbours lose none. The producers' stream and the room still take messages.
func TestDeadLettersWhereBytesRunOut(t *testing.T) {
	t.Parallel()
	const store, neighbours, bodies = 16 << 20, 100, 170
	n := servertest.StartNATS(t, func(o *server.Options) { o.JetStreamMaxStore = store })
	w := newWriter(t, n, stream.DeadLetterBounds{PerSubject: 1000, Bytes: 6 << 20}, 256<<10)
	for i := range neighbours {
		testkit.NoError(t, w.Store(t.Context(), number(fmt.Sprintf("neighbour-%d", i%10), i, "{"+strings.Repeat("n", 1000))))
	}
	body := strings.Repeat("x", 1<<20-100)
	for i := range bodies {
		testkit.NoError(t, w.Store(t.Context(), number("payments", neighbours+i, body)))
	}
	testkit.NoError(t, w.Store(t.Context(), number("security", neighbours+bodies, "{")))
	numbers, left := w.numbers(), 0
	for i := range 10 {
		left += len(numbers[fmt.Sprintf("neighbour-%d", i)])
	}
	testkit.Equal(t, left, neighbours, "letters of the neighbours")
	testkit.Equal(t, len(numbers["security"]), 1, "letters of security")
	own := numbers["payments"]
	if len(own) < 15 || len(own) > 24 || own[len(own)-1] != neighbours+bodies-1 || own[len(own)-1]-own[0] != len(own)-1 {
		t.Errorf("letters of payments: got %d of the events %d to %d, want the newest 15 to 24", len(own), own[0], own[len(own)-1])
	}
	testkit.Equal(t, w.metrics.Get("discarded"), bodies-len(own), "discarded letters")
	for range 3 {
		testkit.Must(w.js.Publish(t.Context(), "notify.security", []byte(body)))(t)
	}
	testkit.Must(w.js.Publish(t.Context(), writtenNames.Room().Queue(room.Part, "security"), []byte(body)))(t)
}

// TestRoomIsMadeOnce makes room for a letter that several goroutines found no space for. Only the first call removes letters.
func TestRoomIsMadeOnce(t *testing.T) {
	t.Parallel()
	w := newWriter(t, servertest.StartNATS(t), stream.DeadLetterBounds{PerSubject: 100_000, Bytes: 1 << 20}, 0)
	for i := range 90 {
		testkit.NoError(t, w.Store(t.Context(), number("payments", i, "{"+strings.Repeat("x", 10_000))))
	}
	gone := testkit.Must(w.freeBytes(t.Context(), "payments", 200_000))(t)
	testkit.Check(t, gone != 0, "discarded letters: got none, want some")
	testkit.Equal(t, testkit.Must(w.freeBytes(t.Context(), "payments", 200_000))(t), 0, "letters discarded by the second call")
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

// TestDeadLettersAreLogged logs the first dead letter of a reason at once, then one line a minute with the count, then the rest at the end.
func TestDeadLettersAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := testkit.NewLog(t)
		w := NewWriter(WriterOptions{Metrics: new(fakeMetrics), Logger: log.Logger()})
		bury := func(reason event.Reason, subject string, n int) {
			for range n {
				w.stored(Dead{Entry: room.Entry{Subject: subject}, Fault: event.NewFault(reason, "line\nbreak")})
			}
		}
		counts := func() (counts []string) {
			for _, r := range log.Records() {
				counts = append(counts, r.Attributes["reason"]+" "+r.Attributes["count"]+" "+r.Attributes["subject"])
			}
			return counts
		}
		bury(event.ReasonBadJSON, "notify.payments", 1000)
		bury(event.ReasonEmpty, "notify.basket", 1)
		testkit.EqualSlices(t, counts(), []string{"bad_json 1 notify.payments", "empty 1 notify.basket"}, "at once")
		time.Sleep(oplog.Every - time.Second)
		bury(event.ReasonBadJSON, "notify.login", 1)
		time.Sleep(2 * time.Second)
		testkit.EqualSlices(t, counts()[2:], []string{"bad_json 1000 notify.login"}, "after a minute")
		time.Sleep(10 * oplog.Every)
		bury(event.ReasonBadJSON, "notify.login", 3)
		testkit.EqualSlices(t, counts()[3:], []string{"bad_json 1 notify.login"}, "after a pause")
		w.Close()
		testkit.EqualSlices(t, counts()[4:], []string{"bad_json 2 notify.login"}, "at the end")
		log.WantCount(t, 5, `error="line break"`)
	})
}
