package consume

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// What workers say about messages.
const (
	sayAck        = "+ACK"
	sayNak        = "-NAK"
	sayInProgress = "+WPI"
)

// spy hears the acks, naks and terms of workers.
type spy struct {
	mu    sync.Mutex
	words map[uint64][]string // by sequence in the producers' stream
}

func newSpy(t testing.TB, conn *nats.Conn) *spy {
	t.Helper()
	s := &spy{words: make(map[uint64][]string)}
	testkit.Must(conn.Subscribe("$JS.ACK.>", s.hear))(t)
	testkit.NoError(t, conn.FlushTimeout(patience))
	return s
}

// hear reads $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.… of the producers' stream.
func (s *spy) hear(m *nats.Msg) {
	tokens := strings.Split(m.Subject, ".")
	if len(tokens) < 6 || tokens[2] != testNames.Stream {
		return
	}
	sequence, err := strconv.ParseUint(tokens[5], 10, 64)
	if err != nil {
		panic(fmt.Sprintf("an acknowledgement on %s: %v", m.Subject, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.words[sequence] = append(s.words[sequence], string(m.Data))
}

// about lists the words about a message without the extensions of its lease.
func (s *spy) about(sequence uint64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.words[sequence]), func(word string) bool { return word == sayInProgress })
}

// renewals counts the extensions of a message's lease.
func (s *spy) renewals(sequence uint64) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, word := range s.words[sequence] {
		if word == sayInProgress {
			n++
		}
	}
	return n
}

// delays lists the delay of each nak of a message.
func (s *spy) delays(t testing.TB, sequence uint64) []time.Duration {
	t.Helper()
	var delays []time.Duration
	for _, word := range s.about(sequence) {
		if delay, given := delayOf(t, word); given {
			delays = append(delays, delay)
		}
	}
	return delays
}

// requirePutOff waits for a nak with the back-off of a wrong setup, give or take a quarter.
func (f *fixture) requirePutOff(sequence uint64) {
	f.Helper()
	f.eventually("it gets a nak", func() bool { return len(f.said.about(sequence)) > 0 })
	delays := f.said.delays(f, sequence)
	testkit.Check(f, len(delays) != 0 && delays[0] >= stage.MisconfiguredBackoff*3/4 && delays[0] <= stage.MisconfiguredBackoff*5/4,
		"delays of message %d: got %v, want about %v", sequence, delays, stage.MisconfiguredBackoff)
}

func delayOf(t testing.TB, word string) (delay time.Duration, nak bool) {
	t.Helper()
	arguments, nak := strings.CutPrefix(word, sayNak)
	if arguments == "" {
		return 0, nak
	}
	number, _ := strings.CutPrefix(arguments, ` {"delay": `)
	nanoseconds, err := strconv.ParseInt(strings.TrimSuffix(number, "}"), 10, 64)
	if nak && err != nil {
		t.Fatalf("delay of the nak %q: got %v, want a number", word, err)
	}
	return time.Duration(nanoseconds), nak
}

// eventually waits until a condition holds.
func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	if !testkit.Soon(holds) {
		f.Fatalf("await %s: calls: %q\noutcomes: %v", what, f.calls.all(), f.metrics.outcomes())
	}
}

func (f *fixture) stream(name string) jetstream.Stream {
	f.Helper()
	return testkit.Must(f.js.Stream(f.Context(), name))(f)
}

func (f *fixture) streamInfo(name string) *jetstream.StreamInfo {
	f.Helper()
	return f.stream(name).CachedInfo()
}

func (f *fixture) consumerInfo() *jetstream.ConsumerInfo {
	f.Helper()
	consumer := testkit.Must(f.js.Consumer(f.Context(), testNames.Stream, testNames.Consumer))(f)
	return consumer.CachedInfo()
}

// awaitSettled waits until n events have ended, and the stream is empty.
func (f *fixture) awaitSettled(n int) {
	f.Helper()
	f.eventually(fmt.Sprintf("%d events end", n), func() bool { return f.metrics.ended() >= n })
	f.requireEmpty()
}

// requireEmpty waits until all messages are acknowledged. An event counts as sent before its ack.
func (f *fixture) requireEmpty() {
	f.Helper()
	f.eventually("the stream is empty", func() bool {
		return f.streamInfo(testNames.Stream).State.Msgs == 0 && f.consumerInfo().NumAckPending == 0
	})
}

// messages lists the messages of a stream on a subject.
func (f *fixture) messages(stream, subject string) (found []*jetstream.RawStreamMsg) {
	f.Helper()
	from := f.stream(stream)
	for next := uint64(1); ; {
		m, err := from.GetMsg(f.Context(), next, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return found
		}
		testkit.NoError(f, err)
		found = append(found, m)
		next = m.Sequence + 1
	}
}

// inRoom lists the messages of the room on a subject.
func (f *fixture) inRoom(subject string) []*jetstream.RawStreamMsg {
	f.Helper()
	return f.messages(testNames.RoomStream, subject)
}

// waiting lists the messages of the room with a reason.
func (f *fixture) waiting(reason room.Reason) []*jetstream.RawStreamMsg {
	f.Helper()
	return f.inRoom(testNames.Room().Waiting(reason))
}

// requireRoomEmpty waits until the room is empty, and all stays have ended.
func (f *fixture) requireRoomEmpty() {
	f.Helper()
	f.eventually("the room is empty", func() bool { return f.streamInfo(testNames.RoomStream).State.Msgs == 0 })
	testkit.Check(f, testkit.Soon(func() bool { return len(f.room.inRoom()) == 0 }), "stays: got %v, want none", f.room.inRoom())
}

func (f *fixture) requireOutcomes(want map[string]int) {
	f.Helper()
	testkit.EqualMaps(f, f.metrics.outcomes(), want, "outcomes")
}

// awaitOutcomes waits until as many events have ended, and compares their outcomes.
func (f *fixture) awaitOutcomes(want map[string]int) {
	f.Helper()
	ended := 0
	for _, n := range want {
		ended += n
	}
	f.awaitSettled(ended)
	f.requireOutcomes(want)
}

// requireOutcome waits for the one outcome; "" wants none.
func (f *fixture) requireOutcome(want string) {
	f.Helper()
	if want == "" {
		f.requireOutcomes(nil)
		return
	}
	f.eventually("it ends", func() bool { return f.metrics.ended() == 1 })
	f.requireOutcomes(map[string]int{want: 1})
}

func (f *fixture) requireHistory(id string, want ...string) {
	f.Helper()
	testkit.EqualSlices(f, f.calls.about(id), want, "event %s", id)
}

// requireSaid compares the words about a message. A wanted word may end in "…".
func (f *fixture) requireSaid(sequence uint64, want ...string) {
	f.Helper()
	matches := func(got, want string) bool {
		prefix, cut := strings.CutSuffix(want, "…")
		return got == want || cut && strings.HasPrefix(got, prefix)
	}
	// The spy has its own connection, so a word may come after its effect.
	testkit.Soon(func() bool { return len(f.said.about(sequence)) >= len(want) })
	got := f.said.about(sequence)
	testkit.Check(f, slices.EqualFunc(got, want, matches), "words about message %d: got %q, want %q", sequence, got, want)
}

// deadLetters lists the messages of the dead-letter stream.
func (f *fixture) deadLetters() []*jetstream.RawStreamMsg {
	f.Helper()
	return f.messages(testNames.DeadLetterStream, ">")
}
