package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// holdFresh has each fresh event of a paced channel wait in the queue of the channel. An event of the queue is posted at once.
func (f *fixture) holdFresh() {
	f.pacer.reserve = func(_ string, within time.Duration) post {
		if within == lane.FreshWait {
			return post{wait: lane.MemoryWait, tooLate: true}
		}
		testkit.Equal(f, within, lane.QueuedWait, "longest wait of an event of the queue")
		return post{}
	}
}

// putInRoom stores a message in the room, as a worker or an operator does.
func (f *fixture) putInRoom(subject string, entry room.Entry, body string) (sequence uint64) {
	f.Helper()
	return testkit.Must(f.js.PublishMsg(f.Context(), entry.Message(subject, nil, []byte(body))))(f).Sequence
}

// TestMovedOnceAfterACrash loses a worker between storing an event in the room and settling its message. The room stores the event once.
func TestMovedOnceAfterACrash(t *testing.T) {
	t.Parallel()
	for _, reason := range []room.Reason{room.Channel, room.Pair, room.Redis, room.Slot} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			const longEnough = 6 * time.Second // for a decision about the redelivery before the first copy is due
			f := newFixture(t)
			gone := f.prepared(nil)
			sequence := f.publish("notify.payments", `{"id": "order-1", "title": "an event", "status": "resolved", "key": "k"}`)
			m := f.taken(gone, patience)
			e := testkit.Must(testDecoder.Decode(m.Published()))(t)
			stored := gone.mover.NewMove(received.Candidate{Message: m, Event: e}, move.Goal{Reason: reason, Channel: "payments", In: longEnough}).ToStore.Messages[0]
			testkit.Must(f.js.PublishMsg(t.Context(), stored))(t)
			gone.settler.Nak(m, 0)

			again := newGate(t)
			f.throttle.answers(func(c store.Request) store.Decision {
				if again.isOpen() {
					return f.throttle.admit(c)
				}
				again.open()
				switch reason {
				case room.Pair:
					return store.Decision{Verdict: store.Leased, Wait: time.Second}
				case room.Redis:
					return store.Decision{Verdict: store.Deferred}
				case room.Slot:
					return denied(time.Second)
				default:
					return f.throttle.admit(c)
				}
			})
			f.throttle.delay = comeBackIn(longEnough)
			if reason == room.Channel {
				f.holdFresh()
			}
			f.start(slowDelays)
			f.awaitSettled(1)
			f.requireRoomEmpty()
			f.requireSaid(sequence, sayNak, "+ACK")
			f.requireOutcomes(map[string]int{"sent payments": 1})
			testkit.Equal(t, f.calls.count("send order-1"), 1, "posts")
			most := uint64(2) // the schedule, and its message when it is due
			if reason == room.Channel {
				most = 1
			}
			testkit.Equal(t, f.streamInfo(testNames.RoomStream).State.LastSeq, most, "messages stored in the room")
		})
	}
}

// silentRoom is a JetStream whose room does not answer before the gate opens.
type silentRoom struct {
	jetstream.JetStream
	*gate
	leaderless bool // the first message is refused at once
	asked      atomic.Int64
}

// lateAck is the room's answer to a message that reaches it when the gate opens.
type lateAck struct {
	jetstream.PubAckFuture
	ok     chan *jetstream.PubAck
	failed chan error
}

func (a *lateAck) Ok() <-chan *jetstream.PubAck { return a.ok }
func (a *lateAck) Err() <-chan error            { return a.failed }

func (s *silentRoom) PublishMsgAsync(m *nats.Msg, o ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if !strings.HasPrefix(m.Subject, "notify-room.") || s.isOpen() {
		return s.JetStream.PublishMsgAsync(m, o...)
	}
	late := &lateAck{ok: make(chan *jetstream.PubAck, 1), failed: make(chan error, 1)}
	if s.asked.Add(1) == 1 && s.leaderless {
		late.failed <- jetstream.ErrNoStreamResponse
		return late, nil
	}
	go func() {
		<-s.opened
		ack, err := s.PublishMsg(context.Background(), m)
		if err != nil {
			late.failed <- err
			return
		}
		late.ok <- ack
	}()
	return late, nil
}

// besideSilentRoom makes a worker whose room does not answer. Events of payments wait for a slot, and all others are admitted.
func (f *fixture) besideSilentRoom(leaderless bool) (*Worker, *silentRoom) {
	f.throttle.answers(func(c store.Request) store.Decision {
		if c.Category == "payments" {
			return denied(time.Hour)
		}
		return f.throttle.admit(c)
	})
	f.throttle.delay = comeBackIn(time.Hour)
	w := f.newWorker(slowDelays)
	silent := &silentRoom{JetStream: w.streams.JetStream, gate: newGate(f), leaderless: leaderless}
	w.streams.JetStream = silent
	return w, silent
}

// TestSilentRoomDelaysNoOther has more events wait for a slot than a worker holds while the room does not answer. Other events are posted, the
// worker asks the room for few of those that wait, and returns the others to their stream. All wait when the room answers again.
func TestSilentRoomDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, silent := f.besideSilentRoom(false)
	waiting := 3 * w.decider.pool.Size()
	var last uint64
	for i := range waiting {
		last = f.event("payments", fmt.Sprintf("payment-%d", i))
	}
	f.event("orders", "order-1")
	f.run(w)
	t.Cleanup(silent.open) // before the worker's own cleanup
	f.eventually("the other event ends", func() bool { return f.metrics.ended() == 1 })
	f.requireOutcomes(map[string]int{"sent orders": 1})
	f.requirePutOff(last)
	if asked := silent.asked.Load(); asked > int64(w.decider.pool.Size())+store.MaxBatch {
		t.Errorf("moves that the silent room was asked for: got %d of %d, want about as many as there are elements", asked, waiting)
	}
	silent.open()
	f.eventually("all wait", func() bool { return f.streamInfo(testNames.RoomStream).State.Msgs == uint64(waiting) })
}

// TestRoomWithoutALeaderDelaysNoOther has the server answer that the room has no leader. The worker asks the room for few of the events that wait
// then, and returns the others to their stream. Another event is posted.
func TestRoomWithoutALeaderDelaysNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, silent := f.besideSilentRoom(true)
	first := f.event("payments", "payment")
	f.run(w)
	t.Cleanup(silent.open) // before the worker's own cleanup
	f.requirePutOff(first)
	for i := range 2 * w.decider.pool.Size() {
		f.event("payments", fmt.Sprintf("payment-%d", i))
	}
	f.event("orders", "order-1")
	f.eventually("the other event ends", func() bool { return f.metrics.ended() == 1 })
	f.requireOutcomes(map[string]int{"sent orders": 1})
	testkit.AtMost(t, silent.asked.Load(), store.MaxBatch/8, "moves that the room was asked for")
}

// TestSameThroughMoves moves an event several times. Its identity, its origin, its age, its body and the headers that say something about it stay.
func TestSameThroughMoves(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{"its own ID": "producer's", "a derived ID": ""}, func(t *testing.T, f *fixture, messageID string) {
		var longest []time.Duration
		f.throttle.delay = func(_ store.Request, left time.Duration) (store.DelayVerdict, time.Duration, error) {
			longest = append(longest, left)
			return store.ComesBack, 500 * time.Millisecond, nil
		}
		f.throttle.answers(func(c store.Request) store.Decision {
			if len(longest) < 3 {
				return denied(time.Second)
			}
			return f.throttle.admit(c)
		})
		f.pacer.Pause(t.Context(), "payments", time.Hour)
		f.start(slowDelays)
		headers, ceSource := []string{"X-Trace", "1", "X-Trace", "2"}, ""
		if messageID != "" {
			ceSource = "/x"
			headers = append(headers, "ce-specversion", "1.0", "ce-id", "order-1", "ce-source", ceSource, "ce-type", "t", "Content-Type", "application/json",
				"Nats-Msg-Id", messageID)
		}
		const body = `{"title": "an event", "key": "ü"}` + "\n"
		sequence := f.publish("notify.payments", body, headers...)
		f.eventually("it is held in the end", func() bool { return f.held("payments") == 1 })
		held := f.inRoom(testNames.Room().ChannelFilter(room.Token("payments")))[0]
		entry := testkit.Must(room.Read(held.Header, held.Time))(t)
		want := room.Origin{Stream: testNames.Stream, Sequence: sequence, Stored: f.throttle.asked()[0].Message.Stored}
		if entry.Origin.String() != want.String() || entry.Replayed() || entry.MessageID != messageID || entry.Subject != "notify.payments" || entry.Part != "" {
			t.Errorf("held entry: got %+v, want the origin %+v", entry, want)
		}
		testkit.Check(t, string(held.Data) == body && held.Header.Get("X-Trace") == "" && held.Header.Get("ce-source") == ceSource,
			"held message: got %q with %v, want %q with the producer's headers", held.Data, held.Header, body)
		f.pacer.Pause(t.Context(), "payments", 0)
		f.awaitSettled(1)
		f.requireRoomEmpty()
		f.requireOutcomes(map[string]int{"sent payments": 1})
		f.requireAskedForTheSame(messageID)
		for i := 1; i < len(longest); i++ {
			testkit.Check(t, longest[i] <= longest[i-1]-400*time.Millisecond, "longest waits: got %v, want a shorter one each time", longest)
		}
	})
}

// requireAskedForTheSame checks the requests about an event that is denied three times, then held, then posted.
func (f *fixture) requireAskedForTheSame(messageID string) {
	f.Helper()
	asked := f.throttle.asked()
	testkit.Require(f, len(asked) == 5, "requests: got %d, want 5", len(asked))
	first := asked[0]
	for i, c := range asked {
		if c.ID != first.ID || c.Derived != first.Derived || c.Pair != first.Pair || c.Cost != first.Cost || c.Message.Stream != first.Message.Stream ||
			c.Message.Sequence != first.Message.Sequence || !c.Message.Stored.Equal(first.Message.Stored) {
			f.Errorf("request %d: got %+v, want %+v", i+1, c, first)
		}
		testkit.Equal(f, c.HasWaited, i > 0 && i < 4, "request %d has waited for a slot", i+1)
	}
	if first.Derived != (messageID == "") || messageID != "" && shown(first) != messageID {
		f.Errorf("first request: got %+v, want the ID %q", first, messageID)
	}
}

// TestHostileHeaders has a producer write the headers of workers and of the server. The identity and the age of its event, its right to
// wait, and its message in the room stay the same.
func TestHostileHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var longest []time.Duration
	f.denyFirst(func(_ store.Request, left time.Duration) (store.DelayVerdict, time.Duration, error) {
		longest = append(longest, left)
		return store.ComesBack, time.Second, nil
	})
	f.start(func(o *setup) { mayDelay(o); o.MaxAge = 2 * time.Hour })
	hostile := []string{"nats-schedule", "@at 2020-01-01T00:00:00Z", "nats-schedule-target", "notify.security", "nats-rollup", "all"}
	old := room.Origin{Stream: "OTHER", Sequence: 99, Stored: time.Now().Add(-24 * time.Hour)}.String()
	for name, value := range map[string]string{
		room.HeaderSubject: "notify.security", room.HeaderID: "victim's", room.HeaderDerived: "true", room.HeaderPart: "f1",
		room.HeaderOrigin: old, room.HeaderSince: "1", room.HeaderReason: string(room.Slot), room.HeaderBehind: "7",
		room.HeaderMessageID: "victim's", "Notifier-Deadline": "9999999999999", trusted.Header: "victim's",
	} {
		hostile = append(hostile, name, value, strings.ToLower(name), value)
	}
	testkit.AtMost(t, len(hostile)/2, received.FewHeaders, "headers, of which a worker keeps all")
	sequence := f.publish("notify.payments", `{"id": "order-1", "title": "an event"}`, hostile...)
	var found []*jetstream.RawStreamMsg // the event waits for a second only
	f.eventually("it waits", func() bool {
		found = f.waiting(room.Slot)
		return len(found) == 1
	})
	waiting := found[0]
	entry := testkit.Must(room.Read(waiting.Header, waiting.Time))(t)
	if entry.ID != "order-1" || entry.Derived || entry.Part != "" || entry.Subject != "notify.payments" || entry.MessageID != "" || entry.Behind != 0 ||
		entry.Origin.Stream != testNames.Stream || entry.Origin.Sequence != sequence || entry.Replayed() {
		t.Errorf("entry: got %+v, want order-1 of message %d", entry, sequence)
	}
	for name, values := range waiting.Header {
		if name != "Nats-Schedule" && strings.HasPrefix(strings.ToLower(name), "nats-schedule") && slices.Contains(values, "notify.security") ||
			slices.Contains(values, "victim's") || strings.EqualFold(name, "nats-rollup") && slices.Contains(values, "all") {
			t.Errorf("header %s: got %q, want none of the producer", name, values)
		}
	}
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 1})
	f.requireHistory("order-1", "send", "finish")
	testkit.Check(t, len(longest) == 1 && longest[0] <= time.Hour && longest[0] >= time.Hour-patience,
		"longest waits: got %v, want one of about an hour", longest)
	for i, c := range f.throttle.asked() {
		if c.ID != "payments order-1" || c.Category != "payments" || c.Message.Stream != testNames.Stream || c.Message.Sequence != sequence ||
			time.Since(c.Message.Stored) > patience || c.HasWaited != (i == 1) || c.Cost == 0 {
			t.Errorf("request %d: got %+v, want order-1 of message %d", i, c, sequence)
		}
	}
}

// TestNonsenseInTheRoom puts messages of operators into the room that are no events. Each one ends as a dead letter.
func TestNonsenseInTheRoom(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	subjects := testNames.Room()
	origin := room.Origin{Stream: testNames.Stream, Sequence: 100, Stored: time.Now()}
	_, due := subjects.Schedule(room.Slot, "payments", "x")
	bare := []string{subjects.Queue(room.Part, "payments"), subjects.Queue(room.Replay, "_"), due, subjects.Channel(room.Token("payments"), "payments")}
	for _, subject := range bare {
		f.publish(subject, `{"title": "an event"}`, trusted.Header, "notifier")
		f.publish(subject, `{"title": "an event"}`, trusted.Header, "notifier", room.HeaderSubject, "notify.payments", room.HeaderID, "order-1", room.HeaderOrigin, "nonsense")
	}
	for _, subject := range []string{"elsewhere.payments", "notify-room.part.payments", "notify.PÄY"} {
		origin.Sequence++
		f.putInRoom(subjects.Queue(room.Part, "payments"), room.Entry{Reason: room.Part, Subject: subject, ID: "order-1", Origin: origin, Since: origin.Stored}, `{"title": "x"}`)
	}
	origin.Sequence++
	f.putInRoom(subjects.Queue(room.Part, "payments"), room.Entry{Reason: room.Part, Subject: "notify.payments", ID: "order-1", Origin: origin, Since: origin.Stored}, `{"broken`)
	f.event("security", "order-1")
	letters := 2*len(bare) + 4
	f.start(nil)
	f.awaitSettled(letters + 1)
	f.requireRoomEmpty()
	testkit.Equal(t, len(f.deadLetters()), letters, "dead letters")
	n := f.metrics.Get("sent security")
	testkit.Check(t, n == 1 && f.metrics.ended() == letters+1, "outcomes: got %v, want one sent and %d dead", f.metrics.outcomes(), letters)
}

// TestReplayed replays a dead letter. The event keeps its identity. Its age counts from the replay. If it was delivered, the replay
// is a duplicate.
func TestReplayed(t *testing.T) {
	t.Parallel()
	long := time.Now().Add(-24 * time.Hour)
	type replayedCase struct {
		reason  room.Reason
		since   time.Time
		verdict store.Verdict
		outcome string
	}
	each(t, map[string]replayedCase{
		"admitted":                        {room.Replay, long, store.Admitted, "sent payments"},
		"delivered before":                {room.Replay, long, store.Done, "duplicate payments"},
		"delivered before, but no replay": {room.Part, long, store.Done, ""},
		"delivered before, waited since":  {room.Slot, time.Now().Add(-time.Minute).Truncate(time.Millisecond), store.Done, "duplicate payments"},
		"too old, and no replay":          {room.Part, long, store.Unknown, "expired payments"},
		"replayed too long ago":           {room.Slot, long.Add(time.Hour).Truncate(time.Millisecond), store.Unknown, "expired payments"},
	}, func(t *testing.T, f *fixture, test replayedCase) {
		f.throttle.answers(func(c store.Request) store.Decision {
			if test.verdict == store.Admitted {
				return f.throttle.admit(c)
			}
			return store.Decision{Verdict: test.verdict}
		})
		f.start(func(o *setup) { o.MaxAge = time.Hour })
		origin := room.Origin{Stream: "OTHER", Sequence: 7, Stored: long}
		f.putInRoom(testNames.Room().Queue(room.Replay, "payments"), room.Entry{
			Reason: test.reason, Subject: "notify.payments", ID: "order-1", Part: "f1", Origin: origin, Since: test.since,
		}, `{"id": "another", "title": "an event"}`)
		f.requireRoomEmpty()
		f.requireOutcome(test.outcome)
		lookUp := strings.HasPrefix(test.outcome, "expired") || test.outcome == ""
		for _, c := range f.throttle.asked() {
			if c.ID != (event.Event{Category: "payments", ID: "order-1", Part: "f1"}).Identity() || c.Message.Stream != "OTHER" || c.Message.Sequence != 7 || !c.Message.Stored.Equal(long) || c.Cost == 0 != lookUp {
				t.Errorf("request: got %+v, want order-1 of message 7 of OTHER", c)
			}
		}
	})
}

// publishAsync stores messages without a wait for each ack.
func (f *fixture) publishAsync(n int, message func(i int) (subject, body string)) {
	f.Helper()
	for i := range n {
		subject, body := message(i)
		testkit.Must(f.js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: []byte(body)}, jetstream.WithStallWait(patience)))(f)
	}
	<-f.js.PublishAsyncComplete()
}
