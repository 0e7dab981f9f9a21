package consume

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// twoAlerts is a body that holds a firing and a resolved alert.
const twoAlerts = `{"receiver": "team", "status": "firing", "alerts": [
	{"status": "firing", "labels": {"alertname": "First"}, "fingerprint": "f1"},
	{"status": "resolved", "labels": {"alertname": "Second"}, "fingerprint": "f2"}
]}`

// group publishes a body that holds several alerts.
func (f *fixture) group() uint64 {
	f.Helper()
	return f.publish("notify.payments", twoAlerts, "Nats-Msg-Id", "group")
}

// requireSplit checks that each alert was an event, once, and the group none.
func (f *fixture) requireSplit() {
	f.Helper()
	f.eventually("group and events end", func() bool {
		return f.metrics.ended() >= 2 && f.metrics.get("split") > 0 && f.streamInfo(testNames.Stream).State.Msgs == 0
	})
	f.requireEmpty()
	f.requireOutcomes(map[string]int{"sent payments": 2})
	for _, id := range []string{"group/f1", "group/f2"} {
		f.requireHistory(id, "send", "finish")
	}
	if stored := f.streamInfo(testNames.Stream).State.LastSeq; stored != 3 {
		f.Errorf("%d messages were stored, want the group and one for each alert", stored)
	}
}

// A body that holds several events becomes a message for each, and has no outcome of its own.
func TestSplit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(nil)
	group := f.group()
	f.requireSplit()
	f.requireSaid(group, "+ACK")
	if n := f.metrics.get("split"); n != 1 {
		t.Errorf("%d were counted as split, want 1", n)
	}
	titles := make(map[string]string)
	for _, c := range f.throttle.asked() {
		titles[c.Event.Title] = string(c.Event.Status) + " " + c.Event.Key
	}
	if len(titles) != 2 || titles["First"] != "firing f1" || titles["Second"] != "resolved f2" {
		t.Errorf("asked for %v, want one event for each alert", titles)
	}
}

// A group is split though its category is full: each of its events is dropped, or asked for, on its own.
func TestSplitInAFullCategory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.full = func(string) (string, bool) { return "the rule", true }
	f.start(nil)
	f.group()
	f.awaitSettled(2)
	f.requireOutcomes(map[string]int{"dropped payments": 1, "sent payments": 1})
	f.requireHistory("group/f2", "send", "finish") // it resolves
}

// A worker that is gone between storing the events of a group and settling it leaves none of them twice.
func TestSplitAgain(t *testing.T) {
	t.Parallel()
	t.Run("after a crash", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		gone := f.prepared(nil)
		group := f.group()
		m := f.taken(gone, patience)
		if err := gone.storeParts(t.Context(), m.parts(gone.o.Decoder)); err != nil {
			t.Fatal(err)
		}
		gone.giveBack(m, 0)
		f.start(nil)
		f.requireSplit()
		f.requireSaid(group, sayNak, "+ACK")
	})
	t.Run("after a lost connection", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		const ackWait = 2 * time.Second
		f.provision(ackWait)
		proxy := servertest.StartProxy(t, f.server.URL[len("nats://"):])
		f.start(func(o *Options) { o.Connection, o.AckWait = f.connect("nats://"+proxy.Addr), ackWait })
		cut := proxy.CutAfterRequest("group/f2")
		f.group()
		select {
		case <-cut:
		case <-time.After(patience):
			t.Fatal("the connection was not lost")
		}
		f.requireSplit()
	})
}

// While the events of a group cannot be stored the group waits: nothing is lost, and the log says it once.
func TestSplitIsDenied(t *testing.T) {
	t.Parallel()
	f := limited(t, "notify.>")
	found := f.provision(patience)
	w := f.start(func(o *Options) { o.Connection = f.connectLimited() })
	const groups = 3
	var sequences []uint64
	for i := range groups {
		sequences = append(sequences, f.publish("notify.payments", twoAlerts, "Nats-Msg-Id", fmt.Sprint(i)))
	}
	for _, sequence := range sequences {
		f.requireSaid(sequence, "-NAK…")
		if delay := f.said.delays(t, sequence)[0]; delay < misconfiguredBackoff*3/4 || delay > misconfiguredBackoff*5/4 {
			t.Errorf("put off by %v, want %v give or take a quarter", delay, misconfiguredBackoff)
		}
	}
	f.requireOutcomes(nil)
	if lines := f.log.lines("alert groups cannot be split"); len(lines) != 1 {
		t.Errorf("logged: %q, want one line", lines)
	}
	f.eventually("no confirmation is waited for any more", func() bool { return w.js.PublishAsyncPending() == 0 })
	if info := f.streamInfo(testNames.Stream); info.State.Msgs != groups {
		t.Errorf("%d messages are stored, want the %d groups", info.State.Msgs, groups)
	}
	w.stop()

	f.start(func(o *Options) {
		o.Connection = f.connectAs(ConnectOptions{URL: f.server.URL, User: "all", Password: "secret"})
	})
	f.awaitSettled(2 * groups)
	f.requireOutcomes(map[string]int{"sent payments": 2 * groups})
	if info, err := found.consumer.Info(context.WithoutCancel(t.Context())); err != nil || info.NumAckPending != 0 {
		t.Errorf("%d messages are unacknowledged: %v", info.NumAckPending, err)
	}
}
