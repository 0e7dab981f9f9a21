package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// holdFresh has each event that comes from the producers wait in its channel's queue, and no other.
func (f *fixture) holdFresh() {
	f.throttle.reserve = func(_ string, within time.Duration) post {
		if within == maxWait {
			return post{wait: time.Hour, tooLate: true}
		}
		return post{}
	}
}

// putInRoom stores a message in the room as a worker or an operator does.
func (f *fixture) putInRoom(subject string, entry room.Entry, body string) {
	f.Helper()
	testkit.Must(f.js.PublishMsg(f.Context(), entry.Message(subject, nil, []byte(body))))(f)
}

// A worker that is gone between storing an event in the room and settling its message leaves it there once.
func TestMovedOnceAfterACrash(t *testing.T) {
	t.Parallel()
	for _, reason := range []room.Reason{room.Channel, room.Pair, room.Redis, room.Slot} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			const longEnough = 6 * time.Second // that the redelivery is decided about before the first copy is due
			f := newFixture(t)
			gone := f.prepared(nil)
			sequence := f.publish("notify.payments", `{"id": "e", "title": "an event", "status": "resolved", "key": "k"}`)
			m := f.taken(gone, patience)
			e := testkit.Must(m.decode(gone.o.Decoder))(t)
			stored := gone.messageOf(&move{candidate: candidate{message: m, event: e}, reason: reason, channel: "payments", in: longEnough})
			testkit.Must(f.js.PublishMsg(t.Context(), stored))(t)
			gone.giveBack(m, 0)

			again := newGate(t)
			f.throttle.judge = func(_ context.Context, c throttle.Request) (throttle.Decision, error) {
				select {
				case <-again.opened:
					return f.throttle.admit(c), nil
				default:
				}
				again.open()
				switch reason {
				case room.Pair:
					return throttle.Decision{Verdict: throttle.Leased, Wait: time.Second}, nil
				case room.Redis:
					return throttle.Decision{Verdict: throttle.Deferred}, nil
				case room.Slot:
					return throttle.Decision{Verdict: throttle.Denied, Node: limits.Node{Level: "the rule"}, Wait: time.Second}, nil
				default:
					return f.throttle.admit(c), nil
				}
			}
			f.throttle.delay = comeBackIn(longEnough)
			if reason == room.Channel {
				f.holdFresh()
			}
			f.start(func(o *Options) { slow(o); mayDelay(o) })
			f.awaitSettled(1)
			f.requireRoomEmpty()
			f.requireSaid(sequence, sayNak, "+ACK")
			f.requireOutcomes(map[string]int{"sent payments": 1})
			if n := f.journal.count("send e"); n != 1 {
				t.Errorf("it was posted %d times", n)
			}
			// A schedule is stored, and then its message when it is due.
			most := uint64(2)
			if reason == room.Channel {
				most = 1
			}
			if stored := f.streamInfo(testNames.RoomStream).State.LastSeq; stored != most {
				t.Errorf("the room has stored %d messages, want %d", stored, most)
			}
		})
	}
}

// An event whose storing, or whose settlement after that, was not confirmed before the connection was lost is moved once.
func TestMovedOnceAcrossALostConnection(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{"it is stored": "notify-room.channel.", "it is acknowledged": "+ACK"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			const ackWait = 2 * time.Second
			f.provision(ackWait)
			f.holdFresh()
			proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
			f.start(func(o *Options) {
				slow(o)
				o.Connection, o.AckWait, o.SendTimeout = f.connect("nats://"+proxy.Addr), ackWait, ackWait/4
			})
			cut := proxy.CutAfterRequest(request)
			f.event("payments", "e")
			select {
			case <-cut:
			case <-time.After(patience):
				t.Fatal("the connection was not lost")
			}
			f.awaitSettled(1)
			f.requireRoomEmpty()
			f.requireOutcomes(map[string]int{"sent payments": 1})
			if n := f.journal.count("send e"); n != 1 {
				t.Errorf("it was posted %d times", n)
			}
			if stored := f.streamInfo(testNames.RoomStream).State.LastSeq; stored != 1 {
				t.Errorf("the room has stored %d messages, want 1", stored)
			}
		})
	}
}

// Who an event is, when its producer stored it and from when its age counts stay the same through all its moves; so do its body and
// its producer's headers.
func TestSameThroughMoves(t *testing.T) {
	t.Parallel()
	for name, messageID := range map[string]string{"its own ID": "producer's", "a derived ID": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var longest []time.Duration
			f.throttle.delay = func(_ throttle.Request, left time.Duration) (throttle.DelayVerdict, time.Duration, error) {
				longest = append(longest, left)
				return throttle.ComesBack, 500 * time.Millisecond, nil
			}
			f.throttle.judge = func(_ context.Context, c throttle.Request) (throttle.Decision, error) {
				if len(longest) < 3 {
					return throttle.Decision{Verdict: throttle.Denied, Node: limits.Node{Level: "the rule"}, Wait: time.Second}, nil
				}
				return f.throttle.admit(c), nil
			}
			f.throttle.Pause(t.Context(), "payments", time.Hour)
			f.start(func(o *Options) { slow(o); mayDelay(o) })
			headers := []string{"X-Trace", "1", "X-Trace", "2", "ce-specversion", "1.0", "ce-id", "e", "ce-source", "/x", "ce-type", "t", "Content-Type", "application/json"}
			if messageID == "" {
				headers = headers[:4]
			} else {
				headers = append(headers, "Nats-Msg-Id", messageID)
			}
			const body = `{"title": "an event", "key": "ü"}` + "\n"
			sequence := f.publish("notify.payments", body, headers...)
			f.eventually("it is held in the end", func() bool { return f.held("payments") == 1 })
			held := f.inRoom(testNames.room().ChannelFilter(room.Token("payments")))[0]
			entry := testkit.Must(room.Read(held.Header, held.Time))(t)
			want := room.Origin{Stream: testNames.Stream, Sequence: sequence, Stored: f.throttle.asked()[0].Message.Stored}
			if entry.Origin.String() != want.String() || entry.Replayed() || entry.MessageID != messageID || entry.Subject != "notify.payments" || entry.Part != "" {
				t.Errorf("it is held as %+v, want the origin %+v", entry, want)
			}
			if string(held.Data) != body || !slices.Equal(held.Header.Values("X-Trace"), []string{"1", "2"}) || held.Header.Get("ce-source") != f.header(headers, "ce-source") {
				t.Errorf("it is held as %q with %v", held.Data, held.Header)
			}
			f.throttle.Pause(t.Context(), "payments", 0)
			f.awaitSettled(1)
			f.requireRoomEmpty()
			f.requireOutcomes(map[string]int{"sent payments": 1})
			asked := f.throttle.asked()
			if len(asked) != 5 { // denied three times, then held, then posted
				t.Fatalf("asked %d times, want 5", len(asked))
			}
			first := asked[0]
			for i, c := range asked {
				if c.ID != first.ID || c.Derived != first.Derived || c.Pair != first.Pair || c.Cost != first.Cost || c.Message.Stream != first.Message.Stream ||
					c.Message.Sequence != first.Message.Sequence || !c.Message.Stored.Equal(first.Message.Stored) {
					t.Errorf("asked for %+v at first and for %+v at time %d", first, c, i+1)
				}
				testkit.Equal(t, c.HasWaited, i > 0 && i < 4, "at time %d it has waited for a slot", i+1)
			}
			if first.Derived != (messageID == "") || messageID != "" && shown(first) != messageID {
				t.Errorf("it is %+v", first)
			}
			for i := 1; i < len(longest); i++ {
				if longest[i] > longest[i-1]-400*time.Millisecond {
					t.Errorf("it might wait for %v, want less each time", longest)
				}
			}
		})
	}
}

// header is the value of a header among pairs of names and values.
func (f *fixture) header(pairs []string, name string) string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == name {
			return pairs[i+1]
		}
	}
	return ""
}

// What a producer writes into the headers of workers and of the server changes nothing: not who its event is or how old, not
// whether it may wait, and not what is stored in the room.
func TestHostileHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var longest []time.Duration
	f.denyFirst(func(_ throttle.Request, left time.Duration) (throttle.DelayVerdict, time.Duration, error) {
		longest = append(longest, left)
		return throttle.ComesBack, time.Second, nil
	})
	f.start(func(o *Options) { mayDelay(o); o.MaxAge = 2 * time.Hour })
	hostile := []string{"nats-schedule", "@at 2020-01-01T00:00:00Z", "nats-schedule-target", "notify.security", "nats-rollup", "all"}
	old := room.Origin{Stream: "OTHER", Sequence: 99, Stored: time.Now().Add(-24 * time.Hour)}.String()
	for name, value := range map[string]string{
		room.HeaderSubject: "notify.security", room.HeaderID: "victim's", room.HeaderDerived: "true", room.HeaderPart: "f1",
		room.HeaderOrigin: old, room.HeaderSince: "1", room.HeaderReason: string(room.Slot), room.HeaderBehind: "7",
		room.HeaderMessageID: "victim's", "Notifier-Deadline": "9999999999999",
	} {
		hostile = append(hostile, name, value, strings.ToUpper(name), value, strings.ToLower(name), value)
	}
	sequence := f.publish("notify.payments", `{"id": "e", "title": "an event"}`, hostile...)
	f.eventually("it waits", func() bool { return len(f.waiting(room.Slot)) == 1 })
	waiting := f.waiting(room.Slot)[0]
	entry := testkit.Must(room.Read(waiting.Header, waiting.Time))(t)
	if entry.ID != "e" || entry.Derived || entry.Part != "" || entry.Subject != "notify.payments" || entry.MessageID != "" || entry.Behind != 0 ||
		entry.Origin.Stream != testNames.Stream || entry.Origin.Sequence != sequence || entry.Replayed() {
		t.Errorf("it waits as %+v", entry)
	}
	for name, values := range waiting.Header {
		if name != "Nats-Schedule" && strings.HasPrefix(strings.ToLower(name), "nats-schedule") && slices.Contains(values, "notify.security") ||
			slices.Contains(values, "victim's") || strings.EqualFold(name, "nats-rollup") && slices.Contains(values, "all") {
			t.Errorf("it waits with the header %s: %q", name, values)
		}
	}
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 1})
	f.requireHistory("e", "send", "finish")
	if len(longest) != 1 || longest[0] > time.Hour || longest[0] < time.Hour-patience {
		t.Errorf("it might wait for %v, want about an hour, once", longest)
	}
	for i, c := range f.throttle.asked() {
		if c.ID != "payments e" || c.Category != "payments" || c.Message.Stream != testNames.Stream || c.Message.Sequence != sequence ||
			time.Since(c.Message.Stored) > patience || c.HasWaited != (i == 1) || c.Cost == 0 {
			t.Errorf("asked for %+v", c)
		}
	}
}

// What lies in the room and is no event ends as a dead letter, wherever it lies.
func TestNonsenseInTheRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	subjects := testNames.room()
	origin := room.Origin{Stream: testNames.Stream, Sequence: 100, Stored: time.Now()}
	_, due := subjects.Schedule(room.Slot, "payments", "x")
	bare := []string{subjects.Queue(room.Part, "payments"), subjects.Queue(room.Replay, "_"), due, subjects.Channel(room.Token("payments"), "payments")}
	for _, subject := range bare {
		f.publish(subject, `{"title": "an event"}`)
		f.publish(subject, `{"title": "an event"}`, room.HeaderSubject, "notify.payments", room.HeaderID, "e", room.HeaderOrigin, "nonsense")
	}
	for _, subject := range []string{"elsewhere.payments", "notify-room.part.payments", "notify.PÄY"} {
		origin.Sequence++
		f.putInRoom(subjects.Queue(room.Part, "payments"), room.Entry{Reason: room.Part, Subject: subject, ID: "e", Origin: origin, Since: origin.Stored}, `{"title": "x"}`)
	}
	origin.Sequence++
	f.putInRoom(subjects.Queue(room.Part, "payments"), room.Entry{Reason: room.Part, Subject: "notify.payments", ID: "e", Origin: origin, Since: origin.Stored}, `{"broken`)
	f.event("security", "e")
	letters := 2*len(bare) + 4
	f.start(nil)
	f.awaitSettled(letters + 1)
	f.requireRoomEmpty()
	testkit.Equal(t, len(f.deadLetters()), letters, "dead letters")
	if n := f.metrics.Get("sent security"); n != 1 || f.metrics.ended() != letters+1 {
		t.Errorf("outcomes: %v", f.metrics.outcomes())
	}
}

// An event that may not stay in the room is dropped, and its slot returned unless some attempt may have delivered it. While Redis
// cannot say whether one may, it may.
func TestRoomIsFull(t *testing.T) {
	t.Parallel()
	full := func(f *fixture) { f.throttle.enter = func(throttle.Stay) bool { return false } }
	for name, test := range map[string]struct {
		setUp   func(*fixture)
		body    string // an event with the ID e
		history []string
		refused room.Reason // "": none is
	}{
		"its channel rests": {func(f *fixture) {
			full(f)
			f.throttle.Pause(f.Context(), "payments", time.Hour)
		}, "", []string{"refund"}, room.Channel},
		"its post is far away": {func(f *fixture) {
			full(f)
			f.holdFresh()
		}, "", []string{"refund"}, room.Channel},
		"its channel wants a long rest": {func(f *fixture) {
			full(f)
			f.sink.send = func(context.Context, event.Event, int) error {
				return &sink.Error{Class: sink.RateLimited, RetryAfter: time.Hour, Err: errScripted}
			}
		}, "", []string{"send", "refund"}, room.Channel},
		"it may have been delivered": {func(f *fixture) {
			full(f)
			f.sink.send = inTurn(sink.Unknown, sink.RateLimited)
			f.throttle.reserve = func(string, time.Duration) post {
				if f.journal.count("send e") < 2 {
					return post{}
				}
				return post{wait: time.Hour, tooLate: true}
			}
		}, "", []string{"send", "send", "finish"}, room.Channel},
		"a worker before may have delivered it": {func(f *fixture) {
			full(f)
			f.holdFresh()
			f.throttle.judge = func(_ context.Context, c throttle.Request) (throttle.Decision, error) {
				decision := f.throttle.admit(c)
				decision.InDoubt = true
				return decision, nil
			}
		}, "", []string{"finish"}, room.Channel},
		"its firing event is not settled": {func(f *fixture) {
			full(f)
			f.throttle.judge = func(context.Context, throttle.Request) (throttle.Decision, error) {
				return throttle.Decision{Verdict: throttle.Leased, Wait: time.Second}, nil
			}
		}, `{"id": "e", "title": "an event", "status": "resolved", "key": "k"}`, nil, room.Pair},
		"Redis refuses a log": {func(f *fixture) {
			full(f)
			f.throttle.judge = func(context.Context, throttle.Request) (throttle.Decision, error) {
				return throttle.Decision{Verdict: throttle.Deferred}, nil
			}
		}, "", nil, room.Redis},
		"an alert of its body may not": {func(f *fixture) {
			f.throttle.enter = func(stay throttle.Stay) bool { return !strings.HasSuffix(stay.Member, "f2") }
		}, twoAlerts, nil, room.Part},
		"nobody knows": {func(f *fixture) {
			f.throttle.enterFails = errScripted
			f.holdFresh()
		}, "", []string{"release", "send", "finish"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			test.setUp(f)
			f.start(slow)
			body := test.body
			if body == "" {
				body = `{"id": "e", "title": "an event"}`
			}
			sequence := f.publish("notify.payments", body)
			f.awaitSettled(1)
			f.requireRoomEmpty()
			f.requireSaid(sequence, "+ACK")
			f.requireHistory("e", test.history...)
			if test.refused == "" {
				f.requireOutcomes(map[string]int{"sent payments": 1})
				return
			}
			f.requireOutcomes(map[string]int{"dropped payments": 1})
			testkit.Equal(t, f.metrics.Get("by room payments"), 1, "drops were counted by the room")
			if n := f.metrics.Get("refused by the room: " + string(test.refused)); n != 1 {
				t.Errorf("counted: %v, want one refused for %s", f.metrics.All(), test.refused)
			}
			testkit.Equal(t, f.streamInfo(testNames.RoomStream).State.LastSeq, 0, "messages were stored in the room")
		})
	}
}

// An event that with the headers that it needs there is larger than the room takes is dropped, its slot returned.
func TestTooLargeForTheRoom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := testNames.RoomConfig()
	config.MaxMsgSize = 500
	testkit.Must(f.js.CreateStream(t.Context(), config))(t)
	f.holdFresh()
	f.start(slow)
	f.publish("notify.payments", `{"id": "e", "title": "an event", "text": "`+strings.Repeat("x", 450)+`"}`)
	f.awaitSettled(1)
	f.requireHistory("e", "refund")
	f.requireOutcomes(map[string]int{"dropped payments": 1})
	f.publish("notify.payments", `{"alerts": [{"labels": {"alertname": "First"}}, {"labels": {"alertname": "`+strings.Repeat("x", 450)+`"}}]}`)
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": 2})
	if a, b := f.metrics.Get("refused by the room: channel"), f.metrics.Get("refused by the room: part"); a != 1 || b != 1 {
		t.Errorf("%d and %d were counted as refused, want 1 of each", a, b)
	}
}

// While events cannot be stored in the room they are given back, keep their slots, and the log says it once.
func TestRoomCannotBeWritten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	f.holdFresh()
	w := f.start(func(o *Options) { slow(o); o.Provision = false })
	testkit.NoError(t, f.js.DeleteStream(t.Context(), testNames.RoomStream))
	sequences := []uint64{f.event("payments", "0"), f.event("payments", "1")}
	for i, sequence := range sequences {
		f.requireSaid(sequence, "-NAK…")
		if delay := f.said.delays(t, sequence)[0]; delay < misconfiguredBackoff*3/4 || delay > misconfiguredBackoff*5/4 {
			t.Errorf("put off by %v, want %v give or take a quarter", delay, misconfiguredBackoff)
		}
		f.requireHistory(fmt.Sprint(i), "release")
	}
	f.requireOutcomes(nil)
	f.log.WantCount(t, 1, "events that have to wait cannot be stored")
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	f.provision(patience)
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 2})
	f.log.WantCount(t, 1, "events that have to wait can be stored again")
}

// However an event ends that waits in the room, it counts there no longer, also if it took several places. What was delivered is
// counted by whoever recorded that.
func TestStaysEnd(t *testing.T) {
	t.Parallel()
	second := func(verdict throttle.Verdict) func(*fixture, throttle.Request) throttle.Decision {
		return func(*fixture, throttle.Request) throttle.Decision {
			return throttle.Decision{Verdict: verdict, Node: limits.Node{Level: "the rule"}}
		}
	}
	admit := func(f *fixture, c throttle.Request) throttle.Decision { return f.throttle.admit(c) }
	for name, test := range map[string]struct {
		second  func(*fixture, throttle.Request) throttle.Decision // what is decided when it comes from the room
		send    func(context.Context, event.Event, int) error
		maxAge  time.Duration
		outcome Outcome // "": none is counted
	}{
		"sent":      {second: admit, outcome: Sent},
		"dropped":   {second: second(throttle.Denied), outcome: Dropped},
		"dead":      {second: admit, send: failing(sink.Rejected, 1), outcome: Dead},
		"duplicate": {second: second(throttle.Duplicate), outcome: Duplicate},
		"done":      {second: second(throttle.Done)},
		"recorded before": {second: func(f *fixture, c throttle.Request) throttle.Decision {
			f.throttle.grant(c).finish()
			return f.throttle.admit(c)
		}},
		"expired": {second: second(throttle.Unknown), maxAge: 1, outcome: Expired},
	} {
		for _, size := range []int{1, 100 << 10} {
			t.Run(fmt.Sprintf("%s, of %d bytes", name, size), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.holdFresh()
				asked := 0
				f.throttle.judge = func(_ context.Context, c throttle.Request) (throttle.Decision, error) {
					if asked++; asked == 1 {
						return f.throttle.admit(c), nil
					}
					return test.second(f, c), nil
				}
				f.sink.send = test.send
				f.throttle.enter = func(stay throttle.Stay) bool {
					if want := 1 + size/weightBytes; stay.Weight != want {
						t.Errorf("it takes %d places, want %d", stay.Weight, want)
					}
					if stay.First != "payments" || stay.For != stayIn {
						t.Errorf("it stays as %+v", stay)
					}
					return true
				}
				w := f.newWorker(slow)
				if _, _, err := w.Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				f.run(w)
				f.publish("notify.payments.cards", `{"id": "e", "title": "an event", "text": "`+strings.Repeat("x", size)+`"}`)
				if test.outcome != "" {
					f.awaitSettled(1)
				}
				f.requireEmpty()
				f.requireRoomEmpty()
				testkit.Equal(t, f.throttle.mostInRoom, 1, "stays were entered")
				if test.outcome == "" {
					f.requireOutcomes(nil)
				} else {
					f.requireOutcomes(map[string]int{string(test.outcome) + " payments.cards": 1})
				}
			})
		}
	}
}

// A stay goes on while its event moves from one place of the room to another.
func TestStayGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	asked := 0
	f.throttle.judge = func(_ context.Context, c throttle.Request) (throttle.Decision, error) {
		if asked++; asked < 3 {
			return throttle.Decision{Verdict: throttle.Leased, Wait: time.Second}, nil
		}
		return f.throttle.admit(c), nil
	}
	f.throttle.Pause(t.Context(), "payments", time.Hour)
	f.start(slow)
	f.publish("notify.payments", `{"id": "e", "title": "an event", "status": "resolved", "key": "k"}`)
	f.eventually("it is held in the end", func() bool { return f.held("payments") == 1 && f.streamInfo(testNames.RoomStream).State.Msgs == 1 })
	if stays := f.throttle.inRoom(); len(stays) != 1 || stays[0].For != stayIn || f.throttle.mostInRoom != 1 {
		t.Errorf("the stays are %v, at most %d, want one, until the channel takes it", stays, f.throttle.mostInRoom)
	}
	f.throttle.Pause(t.Context(), "payments", 0)
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 1})
}

// A replayed dead letter is the event that it was, counts its age from the replay, and is a duplicate if that was delivered.
func TestReplayed(t *testing.T) {
	t.Parallel()
	long := time.Now().Add(-24 * time.Hour)
	for name, test := range map[string]struct {
		reason  room.Reason
		since   time.Time
		verdict throttle.Verdict
		outcome string
	}{
		"admitted":                        {room.Replay, long, throttle.Admitted, "sent payments"},
		"delivered before":                {room.Replay, long, throttle.Done, "duplicate payments"},
		"delivered before, but no replay": {room.Part, long, throttle.Done, ""},
		"delivered before, waited since":  {room.Slot, time.Now().Add(-time.Minute).Truncate(time.Millisecond), throttle.Done, "duplicate payments"},
		"too old, and no replay":          {room.Part, long, throttle.Unknown, "expired payments"},
		"replayed too long ago":           {room.Slot, long.Add(time.Hour).Truncate(time.Millisecond), throttle.Unknown, "expired payments"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.throttle.judge = func(_ context.Context, c throttle.Request) (throttle.Decision, error) {
				if test.verdict == throttle.Admitted {
					return f.throttle.admit(c), nil
				}
				return throttle.Decision{Verdict: test.verdict}, nil
			}
			f.start(func(o *Options) { o.MaxAge = time.Hour })
			origin := room.Origin{Stream: "OTHER", Sequence: 7, Stored: long}
			f.putInRoom(testNames.room().Queue(room.Replay, "payments"), room.Entry{
				Reason: test.reason, Subject: "notify.payments", ID: "e", Part: "f1", Origin: origin, Since: test.since,
			}, `{"id": "another", "title": "an event"}`)
			f.requireRoomEmpty()
			if test.outcome == "" {
				f.requireOutcomes(nil)
			} else {
				f.eventually("it ends", func() bool { return f.metrics.ended() == 1 })
				f.requireOutcomes(map[string]int{test.outcome: 1})
			}
			lookUp := strings.HasPrefix(test.outcome, "expired") || test.outcome == ""
			for _, c := range f.throttle.asked() {
				if c.ID != (event.Event{Category: "payments", ID: "e", Part: "f1"}).Identity() || c.Message.Stream != "OTHER" || c.Message.Sequence != 7 || !c.Message.Stored.Equal(long) || c.Cost == 0 != lookUp {
					t.Errorf("asked for %+v", c)
				}
			}
		})
	}
}

// Events in doubt stay so when they wait for their channel: whoever takes them over is told.
func TestMovedInDoubt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.send = func(_ context.Context, _ event.Event, attempt int) error {
		switch attempt {
		case 1:
			return &sink.Error{Class: sink.Unknown, Err: errScripted}
		case 2:
			return &sink.Error{Class: sink.RateLimited, RetryAfter: time.Hour, Err: errScripted}
		default:
			return nil
		}
	}
	f.start(slow)
	f.event("payments", "e")
	f.eventually("it is held", func() bool { return f.held("payments") == 1 })
	f.throttle.Pause(t.Context(), "payments", 0)
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireHistory("e", "send", "send", "release in doubt", "send", "finish")
}

// publishAsync stores events quickly.
func (f *fixture) publishAsync(n int, message func(i int) (subject, body string)) {
	f.Helper()
	for i := range n {
		subject, body := message(i)
		testkit.Must(f.js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: []byte(body)}, jetstream.WithStallWait(patience)))(f)
	}
	<-f.js.PublishAsyncComplete()
}

// With many events for a channel that rests, one for another channel does not wait for them.
func TestCrowdForAChannelThatRests(t *testing.T) {
	t.Parallel()
	const crowd = 3000
	f := newFixture(t)
	f.provision(patience)
	f.throttle.Pause(t.Context(), "rests", time.Hour)
	f.publishAsync(crowd, func(i int) (string, string) {
		return "notify.rests", fmt.Sprintf(`{"id": "%d", "title": "an event"}`, i)
	})
	f.start(slow)
	f.eventually("the crowd goes to the room", func() bool { return f.metrics.ended() == 0 && f.held("rests") > 0 })
	f.event("security", "e")
	f.eventually("the other one is sent", func() bool { return f.metrics.Get("sent security") == 1 })
	f.eventually("nothing of the producers is unacknowledged", func() bool {
		return f.streamInfo(testNames.Stream).State.Msgs == 0 && f.consumerInfo().NumAckPending == 0
	})
	testkit.Equal(t, f.streamInfo(testNames.RoomStream).State.Msgs, crowd, "events wait in the room")
	f.requireOutcomes(map[string]int{"sent security": 1})
}
