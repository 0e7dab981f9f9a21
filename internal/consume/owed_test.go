package consume

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

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
