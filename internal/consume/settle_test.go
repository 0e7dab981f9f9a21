package consume

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// TestCountedOnceAcrossAKill kills the server in the middle. Each event is counted once. The server syncs each write, so it forgets no
// confirmed ack.
func TestCountedOnceAcrossAKill(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATSProcess(t, "jetstream { sync_interval: always }"))
	f.provision(usualAckWait)
	const events = 600
	for i := range events {
		f.event([]string{"sent", "dropped"}[i%2], fmt.Sprint(i))
	}
	f.throttle.answers(func(c store.Request) store.Decision {
		if c.Category == "sent" {
			return f.throttle.admit(c)
		}
		return denied(0)
	})
	w := f.start(nil)
	f.eventually("some events end", func() bool { return f.metrics.ended() > events/10 })
	f.server.Kill()
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	f.server.Restart()
	f.eventually("all events end", func() bool { return f.metrics.ended() >= events })
	w.stop()
	// The consumer may remember deliveries from before the kill, so only the stream is compared.
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, 0, "messages in the stream")
	f.requireOutcomes(map[string]int{"sent sent": events / 2, "dropped dropped": events / 2})
	testkit.Equal(t, f.metrics.Get("by the rule dropped"), events/2, "drops by the rule")
	f.log.WantCount(t, 1, "nats is disconnected")
	f.log.WantCount(t, 1, "nats is connected again")
}

// TestConsumerDeletedWhileSettling deletes the producers' consumer while its messages are settled. They are acknowledged seldom, events of
// the room's consumer are settled meanwhile, and each event is counted once when the consumer is there again.
func TestConsumerDeletedWhileSettling(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	decided, deciding := newGate(t), newGate(t)
	f.throttle.decideOne = func(ctx context.Context, c store.Request) (store.Decision, error) {
		if c.Category == "payments" {
			deciding.open()
			return denied(0), decided.pass(ctx)
		}
		return f.throttle.admit(c), nil
	}
	const events = 10
	f.numbered("payments", events)
	f.start(func(o *setup) { o.client.Provision = false })
	f.eventually("it decides", deciding.isOpen)
	consumer := testkit.Must(f.js.Consumer(t.Context(), testNames.Stream, testNames.Consumer))(t)
	f.eventually("all are delivered", func() bool { return testkit.Must(consumer.Info(t.Context()))(t).NumAckPending == events })
	testkit.NoError(t, f.js.DeleteConsumer(t.Context(), testNames.Stream, testNames.Consumer))
	decided.open()

	const attempts = 4
	repeated := func(most int) (messages int) { // acknowledged more often
		for sequence := range uint64(events) {
			if len(f.said.about(sequence+1)) > most {
				messages++
			}
		}
		return messages
	}
	f.eventually("the last one of a batch is acknowledged again", func() bool { return repeated(attempts-1) > 0 })
	testkit.AtMost(t, repeated(1), 2, "messages acknowledged again without a consumer: the last of each batch, which are two if the worker decided twice")
	f.putInRoom(testNames.Room().Queue(room.Replay, "orders"), room.Entry{
		Reason: room.Replay, Subject: "notify.orders", ID: "order-1", Origin: room.Origin{Stream: "OTHER", Sequence: 7, Stored: time.Now()}, Since: time.Now(),
	}, `{"title": "an event"}`)
	f.eventually("the room is empty", func() bool { return f.streamInfo(testNames.RoomStream).State.Msgs == 0 })
	f.requireOutcomes(map[string]int{"sent orders": 1})

	f.provision(usualAckWait)
	f.requireEmpty()
	f.eventually("all are counted", func() bool { return f.metrics.ended() >= events+1 })
	f.requireOutcomes(map[string]int{"sent orders": 1, "dropped payments": events})
}

// owe admits one event, which may be muted then, and has Redis lack the end of its grant until the channel is closed. Meanwhile the event is
// leased.
func (f *fixture) owe(muted bool) (owed chan struct{}) {
	owed = make(chan struct{})
	var admitted atomic.Bool
	f.throttle.answers(func(c store.Request) store.Decision {
		if admitted.Swap(true) {
			return store.Decision{Verdict: store.Leased, Wait: time.Second}
		}
		if muted {
			f.mutes.mute(c.Category)
		}
		grant := f.throttle.grant(c)
		grant.owed = owed
		return store.Decision{Verdict: store.Admitted, Grant: grant}
	})
	return owed
}

// TestEndOwedToRedis has grants end that Redis does not know to have ended. Nothing settles the messages, for longer than the ack wait, before
// Redis has the ends.
func TestEndOwedToRedis(t *testing.T) {
	t.Parallel()
	type owedCase struct {
		failure *sink.Error
		muted   bool
		history []string
		outcome string
	}
	each(t, map[string]owedCase{
		"a post":               {nil, false, []string{"send", "finish"}, "sent payments"},
		"a post in doubt":      {&sink.Error{Class: sink.Unknown, Err: errScripted}, false, []string{"send", "find", keeps, "finish"}, "sent payments"},
		"a post that is muted": {nil, true, []string{"refund"}, "dropped payments"},
		"a rejected post":      {&sink.Error{Class: sink.Rejected, Err: errScripted}, false, []string{"send", "refund"}, "dead payments"},
	}, func(t *testing.T, f *fixture, test owedCase) {
		owed := f.owe(test.muted)
		f.sink.find = finds(isPosted)
		f.sink.send = func(context.Context, event.Event, int) error {
			if test.failure == nil {
				return nil
			}
			return test.failure
		}
		const ackWait = 2 * time.Second // the server has a sixth of it to confirm an extension
		f.provision(ackWait)
		sequence := f.event("payments", "order-1")
		f.start(func(o *setup) { o.client.AckWait, o.SendTimeout = ackWait, ackWait/4 })
		f.eventually("the lease is renewed for longer than the ack wait", func() bool {
			return f.said.renewals(sequence) >= 5 || len(f.said.about(sequence)) > 0
		})
		history := slices.DeleteFunc(f.calls.about("order-1"), func(call string) bool { return call == "extend" }) // on a slow machine
		testkit.EqualSlices(t, history, test.history, "calls about the event")
		f.requireSaid(sequence)
		close(owed)
		f.awaitSettled(1)
		f.requireOutcome(test.outcome)
		f.requireEmpty()
	})
}

// TestStopWhileRedisLacksAnEnd stops a worker whose post Redis does not know. The message goes back to its stream.
func TestStopWhileRedisLacksAnEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.owe(false)
	f.provision(usualAckWait)
	sequence := f.event("payments", "order-1")
	w := f.start(nil)
	f.eventually("it is posted", func() bool { return f.calls.count("finish order-1") == 1 })
	w.stop()
	f.requirePutOff(sequence)
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, 1, "messages without an ack")
}
