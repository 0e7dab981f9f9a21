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

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// spy hears what workers tell the server about messages.
type spy struct {
	mu    sync.Mutex
	words map[uint64][]string // by sequence of the producers' stream
}

func newSpy(t testing.TB, conn *nats.Conn) *spy {
	t.Helper()
	s := &spy{words: make(map[uint64][]string)}
	testkit.Must(conn.Subscribe("$JS.ACK.>", s.hear))(t)
	testkit.NoError(t, conn.FlushTimeout(patience))
	return s
}

// hear reads $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.… and leaves out what is about no message of the
// producers.
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

// about lists what was said about a message, extensions of its lease left out.
func (s *spy) about(sequence uint64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.words[sequence]), func(word string) bool { return word == string(sayInProgress) })
}

// delays is how long the message was put off with each nak.
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

func delayOf(t testing.TB, word string) (delay time.Duration, nak bool) {
	t.Helper()
	arguments, nak := strings.CutPrefix(word, sayNak)
	if arguments == "" {
		return 0, nak
	}
	number, _ := strings.CutPrefix(arguments, ` {"delay": `)
	nanoseconds, err := strconv.ParseInt(strings.TrimSuffix(number, "}"), 10, 64)
	if nak && err != nil {
		t.Fatalf("nak with %q: %v", word, err)
	}
	return time.Duration(nanoseconds), nak
}

// eventually waits until a condition holds.
func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	testkit.Await(f, what, func() error {
		if !holds() {
			return fmt.Errorf("happened: %q\noutcomes: %v", f.journal.all(), f.metrics.outcomes())
		}
		return nil
	})
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

// awaitSettled waits until as many events as were published have ended, and JetStream has none left.
func (f *fixture) awaitSettled(n int) {
	f.Helper()
	f.eventually(fmt.Sprintf("%d events end", n), func() bool { return f.metrics.ended() >= n })
	// An event is counted when its delivery is recorded, before its message is acknowledged.
	testkit.Soon(func() bool {
		return f.streamInfo(testNames.Stream).State.Msgs == 0 && f.consumerInfo().NumAckPending == 0
	})
	f.requireEmpty()
}

// requireEmpty waits until all messages are acknowledged: what is sent counts before that.
func (f *fixture) requireEmpty() {
	f.Helper()
	f.eventually("the stream is empty", func() bool {
		return f.streamInfo(testNames.Stream).State.Msgs == 0 && f.consumerInfo().NumAckPending == 0
	})
}

// inRoom lists the messages of the room on a subject.
func (f *fixture) inRoom(subject string) (found []*jetstream.RawStreamMsg) {
	f.Helper()
	stream := testkit.Must(f.js.Stream(f.Context(), testNames.RoomStream))(f)
	for next := uint64(1); ; {
		m, err := stream.GetMsg(f.Context(), next, jetstream.WithGetMsgSubject(subject))
		if err != nil {
			return found
		}
		found = append(found, m)
		next = m.Sequence + 1
	}
}

// waiting lists the messages of the room that wait for a reason.
func (f *fixture) waiting(reason room.Reason) []*jetstream.RawStreamMsg {
	f.Helper()
	return f.inRoom(testNames.room().Waiting(reason))
}

// requireRoomEmpty waits until nothing is left in the room, and no event counts as one that waits there.
func (f *fixture) requireRoomEmpty() {
	f.Helper()
	f.eventually("the room is empty", func() bool { return f.streamInfo(testNames.RoomStream).State.Msgs == 0 })
	if !testkit.Soon(func() bool { return len(f.throttle.inRoom()) == 0 }) {
		f.Errorf("these stays were not left: %v", f.throttle.inRoom())
	}
}

func (f *fixture) requireOutcomes(want map[string]int) {
	f.Helper()
	got := f.metrics.outcomes()
	for name, n := range want {
		if got[name] != n {
			f.Errorf("outcome %q was counted %d times, want %d", name, got[name], n)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		f.Errorf("further outcomes were counted: %v", got)
	}
}

// requireCount compares a count that goes with an outcome and may follow it by a moment.
func (f *fixture) requireCount(name string, want int) {
	f.Helper()
	testkit.Soon(func() bool { return f.metrics.Get(name) >= want })
	if got := f.metrics.Get(name); got != want {
		f.Errorf("%q was counted %d times, want %d", name, got, want)
	}
}

func (f *fixture) requireHistory(id string, want ...string) {
	f.Helper()
	testkit.EqualSlices(f, f.journal.about(id), want, "event %s", id)
}

// requireSaid compares the words about a message; one that ends in "…" is a prefix.
func (f *fixture) requireSaid(sequence uint64, want ...string) {
	f.Helper()
	matches := func(got, want string) bool {
		prefix, cut := strings.CutSuffix(want, "…")
		return got == want || cut && strings.HasPrefix(got, prefix)
	}
	// The spy has its own connection and may hear a word after its effect is there.
	testkit.Soon(func() bool { return len(f.said.about(sequence)) >= len(want) })
	if got := f.said.about(sequence); !slices.EqualFunc(got, want, matches) {
		f.Errorf("about message %d was said %q, want %q", sequence, got, want)
	}
}

// deadLetters reads the dead-letter stream from its start, without taking anything out.
func (f *fixture) deadLetters() []*jetstream.RawStreamMsg {
	f.Helper()
	stream := testkit.Must(f.js.Stream(f.Context(), testNames.DeadLetterStream))(f)
	var letters []*jetstream.RawStreamMsg
	state := stream.CachedInfo().State
	for sequence := max(state.FirstSeq, 1); sequence <= state.LastSeq; sequence++ {
		letter, err := stream.GetMsg(f.Context(), sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // it was pushed out
		}
		if err != nil {
			f.Fatal(err)
		}
		letters = append(letters, letter)
	}
	return letters
}
