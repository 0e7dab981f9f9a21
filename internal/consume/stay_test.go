package consume

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// fullCase is an event that may not stay in the room.
type fullCase struct {
	setUp   func(*fixture)
	body    string // "" for an event with the ID e
	history []string
	refused room.Reason // "": it may stay
}

func refuseAll(f *fixture) { f.throttle.enter = func(throttle.Stay) bool { return false } }

var fullCases = map[string]fullCase{
	"its channel is paused": {func(f *fixture) {
		refuseAll(f)
		f.throttle.Pause(f.Context(), "payments", time.Hour)
	}, "", []string{"refund"}, room.Channel},
	"its post is far away": {func(f *fixture) {
		refuseAll(f)
		f.holdFresh()
	}, "", []string{"refund"}, room.Channel},
	"its channel asks for a long pause": {func(f *fixture) {
		refuseAll(f)
		f.sink.send = func(context.Context, event.Event, int) error {
			return &sink.Error{Class: sink.RateLimited, RetryAfter: time.Hour, Err: errScripted}
		}
	}, "", []string{"send", "refund"}, room.Channel},
	"it may have been delivered": {func(f *fixture) {
		refuseAll(f)
		f.sink.send = inTurn(sink.Unknown, sink.RateLimited)
		f.throttle.reserve = func(string, time.Duration) post {
			if f.journal.count("send order-1") < 2 {
				return post{}
			}
			return post{wait: time.Hour, tooLate: true}
		}
	}, "", []string{"send", "send", "finish"}, room.Channel},
	"a worker before may have delivered it": {func(f *fixture) {
		refuseAll(f)
		f.holdFresh()
		f.admitInDoubt(true)
	}, "", []string{"finish"}, room.Channel},
	"its firing event is not settled": {func(f *fixture) {
		refuseAll(f)
		f.throttle.answers(always(throttle.Decision{Verdict: throttle.Leased, Wait: time.Second}))
	}, `{"id": "order-1", "title": "an event", "status": "resolved", "key": "k"}`, nil, room.Pair},
	"Redis refuses a log": {func(f *fixture) {
		refuseAll(f)
		f.throttle.answers(always(throttle.Decision{Verdict: throttle.Deferred}))
	}, "", nil, room.Redis},
	"an alert of its body may not": {func(f *fixture) {
		f.throttle.enter = func(stay throttle.Stay) bool { return !strings.HasSuffix(stay.Member, "f2") }
	}, twoAlerts, nil, room.Part},
	"nobody knows": {func(f *fixture) {
		f.throttle.enterFails = errScripted
		f.holdFresh()
	}, "", []string{"release", "send", "finish"}, ""},
}

// An event that may not stay in the room is dropped, and its slot returned unless some attempt may have delivered it. While Redis
// cannot say whether one may, it may.
func TestRoomIsFull(t *testing.T) {
	t.Parallel()
	for name, test := range fullCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			test.setUp(f)
			f.start(slow)
			sequence := f.publish("notify.payments", cmp.Or(test.body, `{"id": "order-1", "title": "an event"}`))
			f.awaitSettled(1)
			f.requireRoomEmpty()
			f.requireSaid(sequence, "+ACK")
			f.requireHistory("order-1", test.history...)
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
	f.publish("notify.payments", `{"id": "order-1", "title": "an event", "text": "`+strings.Repeat("x", 450)+`"}`)
	f.awaitSettled(1)
	f.requireHistory("order-1", "refund")
	f.requireOutcomes(map[string]int{"dropped payments": 1})
	f.publish("notify.payments", `{"alerts": [{"labels": {"alertname": "First"}}, {"labels": {"alertname": "`+strings.Repeat("x", 450)+`"}}]}`)
	f.awaitSettled(2)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"dropped payments": 2})
	if a, b := f.metrics.Get("refused by the room: channel"), f.metrics.Get("refused by the room: part"); a != 1 || b != 1 {
		t.Errorf("%d and %d were counted as refused, want 1 of each", a, b)
	}
}

// While events cannot be stored in the room they get a nak, keep their slots, and the log says it once.
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

// However an event ends that waits in the room, it counts there no longer, also if it counted as several. What was delivered is
// counted by whoever recorded that.
func TestStaysEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verdict  throttle.Verdict // when it comes from the room
		recorded bool             // somebody delivered it meanwhile
		send     func(context.Context, event.Event, int) error
		outcome  Outcome // "": none is counted
	}{
		"sent":            {verdict: throttle.Admitted, outcome: Sent},
		"dropped":         {verdict: throttle.Denied, outcome: Dropped},
		"dead":            {verdict: throttle.Admitted, send: failing(sink.Rejected, 1), outcome: Dead},
		"duplicate":       {verdict: throttle.Duplicate, outcome: Duplicate},
		"done":            {verdict: throttle.Done},
		"recorded before": {verdict: throttle.Admitted, recorded: true},
		"expired":         {verdict: throttle.Unknown, outcome: Expired},
	} {
		for _, size := range []int{1, 100 << 10} {
			t.Run(fmt.Sprintf("%s, of %d bytes", name, size), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.holdFresh()
				asked := 0
				f.throttle.answers(func(c throttle.Request) throttle.Decision {
					if asked++; asked > 1 && test.verdict != throttle.Admitted {
						return throttle.Decision{Verdict: test.verdict, Node: limits.Node{Level: "the rule"}}
					}
					if asked > 1 && test.recorded {
						f.throttle.grant(c).finish()
					}
					return f.throttle.admit(c)
				})
				f.sink.send = test.send
				f.throttle.enter = func(stay throttle.Stay) bool {
					if weight := 1 + size/weightBytes; stay.Weight != weight || stay.First != "payments" || stay.For != stayIn {
						t.Errorf("it stays as %+v, want a weight of %d", stay, weight)
					}
					return true
				}
				f.start(slow)
				f.publish("notify.payments.cards", `{"id": "order-1", "title": "an event", "text": "`+strings.Repeat("x", size)+`"}`)
				var want map[string]int
				if test.outcome != "" {
					f.awaitSettled(1)
					want = map[string]int{string(test.outcome) + " payments.cards": 1}
				}
				f.requireEmpty()
				f.eventually("it was moved", func() bool { return f.streamInfo(testNames.RoomStream).State.LastSeq > 0 })
				f.requireRoomEmpty()
				testkit.Equal(t, f.throttle.mostInRoom, 1, "stays were entered")
				f.requireOutcomes(want)
			})
		}
	}
}

// A stay goes on while its event moves from one subject of the room to another.
func TestStayGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	asked := 0
	f.throttle.answers(func(c throttle.Request) throttle.Decision {
		if asked++; asked < 3 {
			return throttle.Decision{Verdict: throttle.Leased, Wait: time.Second}
		}
		return f.throttle.admit(c)
	})
	f.throttle.Pause(t.Context(), "payments", time.Hour)
	f.start(slow)
	f.publish("notify.payments", `{"id": "order-1", "title": "an event", "status": "resolved", "key": "k"}`)
	f.eventually("it is held in the end", func() bool { return f.held("payments") == 1 && f.streamInfo(testNames.RoomStream).State.Msgs == 1 })
	if stays := f.throttle.inRoom(); len(stays) != 1 || stays[0].For != stayIn || f.throttle.mostInRoom != 1 {
		t.Errorf("the stays are %v, at most %d, want one, until the channel takes it", stays, f.throttle.mostInRoom)
	}
	f.throttle.Pause(t.Context(), "payments", 0)
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 1})
}
