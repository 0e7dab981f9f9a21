package consume

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/move"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// skew has a worker learn that the server's clock is ahead of the host's, with a doubt.
func skew(w *Worker, ahead, doubt time.Duration) {
	now := time.Now()
	w.streams.Clock.Learn(now.Add(-doubt), now.Add(doubt), now.Add(ahead))
}

// TestAgesByTheServersClock has a worker whose host is two days ahead. Ages and delays follow the server's clock.
func TestAgesByTheServersClock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.newWorker(func(o *setup) { mayDelay(o); o.MaxAge = time.Hour })
	const doubt = 2 * patience
	skew(w, -48*time.Hour, doubt) // as of a host that is two days ahead
	m := &received.Message{From: new(received.PullRequest), Entry: new(room.Entry), Meta: &nats.MsgMetadata{Timestamp: time.Now().Add(-48 * time.Hour)}}
	m.Entry.Since = m.Meta.Timestamp
	testkit.Equal(t, w.decider.intake.reader.TooOld(time.Now(), m), false, "a fresh message is too old")
	m.Entry.Since = m.Meta.Timestamp.Add(-61 * time.Minute)
	testkit.Equal(t, w.decider.intake.reader.TooOld(time.Now(), m), true, "a message of 61 minutes ago is too old")
	c := received.Candidate{Message: m, Event: event.Event{ID: "order-1", Category: "payments"}}
	m.Entry.Subject, m.Entry.Since = "notify.payments", m.Meta.Timestamp
	f.event("payments", "order-1")
	taken := f.taken(w, usualAckWait)
	c.Content = taken.Content
	stored := w.mover.NewMove(c, move.Goal{Reason: room.Slot, In: time.Hour}).ToStore.Messages[0]
	at, err := time.Parse(time.RFC3339, strings.TrimPrefix(stored.Header.Get("Nats-Schedule"), "@at "))
	if in := at.Sub(m.Meta.Timestamp) - doubt; err != nil || in < time.Hour || in > time.Hour+patience {
		t.Errorf("it comes back in %v of the latest time that the server may show (%v), want an hour", in, err)
	}
	m.Entry.Since = w.streams.Clock.Now()
	testkit.Equal(t, w.decider.pairs.goalOf(c).In, shortestPairWait, "wait of a young event for its pair")
}

func TestServersClockIsLearned(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.newWorker(nil)
	skew(w, time.Hour, patience)
	f.run(w)
	f.eventually("the clock is right", func() bool { return time.Since(w.streams.Now()).Abs() < time.Minute })
}

// TestAcknowledgementsAreBounded reaches the consumer's bound of unacknowledged messages. The worker is not ready. The log says so once.
func TestAcknowledgementsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const most = 3
	testkit.Must(f.js.CreateStream(t.Context(), testNames.StreamConfig()))(t)
	config := testNames.ConsumerConfig(patience, testNames.Subjects())
	config.MaxAckPending = most
	testkit.Must(f.js.CreateConsumer(t.Context(), testNames.Stream, config))(t)
	answers := newGate(t)
	f.holdPosts(answers)
	w := f.start(nil)
	f.numbered("payments", most-1)
	f.eventually("it is seen that some are unacknowledged", func() bool { return f.metrics.Get("ack pending") == most-1 })
	testkit.Equal(t, w.Ready(), nil, "Ready below the bound")
	f.event("payments", "at the bound")
	f.event("payments", "beyond it")
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	if err := w.Ready(); !strings.Contains(err.Error(), "max_ack_pending") || f.metrics.Get("ack pending") != most {
		t.Errorf("Ready at the bound: got %v with %d unacknowledged messages, want max_ack_pending with %d", err, f.metrics.Get("ack pending"), most)
	}
	seen := f.positions()
	f.eventually("it is looked at again, and again", func() bool { return f.positions() > seen+1 })
	lines := f.log.Lines("too many unacknowledged messages")
	testkit.Check(t, len(lines) == 1 && strings.Contains(lines[0], fmt.Sprint(most)), "lines: got %q, want one", lines)
	answers.open()
	f.awaitSettled(most + 1)
	f.eventually("it is ready", func() bool { return w.Ready() == nil && f.metrics.Get("ack pending") == 0 })
	f.log.WantCount(t, 1, "JetStream delivers messages again")
}

// TestChangedConsumers pauses and edits the consumers of a running worker. The log says so once. The worker is not ready while a consumer leaves
// out events; it is no fault of the worker that a consumer is paused.
func TestChangedConsumers(t *testing.T) {
	t.Parallel()
	const begins, ends = "consumer differs from the settings", "consumer agrees with the settings again"
	for name, of := range map[string]struct{ stream, consumer string }{
		"of the stream": {testNames.Stream, testNames.Consumer},
		"of the room":   {testNames.RoomStream, testNames.RoomConsumerConfig(0).Durable},
		"of a channel":  {testNames.RoomStream, testNames.ChannelConsumer(room.Token("#general"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newProvisioned(t)
			f.sink.named = []string{"#general"}
			w := f.start(nil)
			f.eventually("the consumers are looked at", func() bool { return f.positions() > 1 })
			f.log.WantCount(t, 0, begins)
			testkit.Must(f.js.PauseConsumer(t.Context(), of.stream, of.consumer, time.Now().Add(time.Hour)))(t)
			f.eventually("the pause is noticed", func() bool { return len(f.log.Lines(begins)) == 1 })
			testkit.Contains(t, "line", f.log.Lines(begins)[0], "stream="+of.stream, "consumer="+of.consumer, "somebody paused it until 20")
			testkit.Equal(t, w.Ready(), nil, "Ready while the consumer is paused")
			paused := testkit.Must(testNames.Backlog(t.Context(), f.js))(t).Paused
			if isCounted := name != "of a channel"; isCounted != (len(paused) == 1 && paused[0].Consumer == of.consumer) {
				t.Errorf("pauses: got %v, want that of %s: %t", paused, of.consumer, isCounted)
			}
			testkit.Must(f.js.ResumeConsumer(t.Context(), of.stream, of.consumer))(t)
			f.eventually("the end is noticed", func() bool { return len(f.log.Lines(ends)) == 1 })

			config := testkit.Must(f.js.Consumer(t.Context(), of.stream, of.consumer))(t).CachedInfo().Config
			edited := config
			edited.MaxAckPending = 7
			testkit.Must(f.js.UpdateConsumer(t.Context(), of.stream, edited))(t)
			f.eventually("the bound is noticed", func() bool { return len(f.log.Lines("may have 7 unacknowledged messages")) == 1 })
			testkit.Equal(t, w.Ready(), nil, "Ready with another bound")
			testkit.Must(f.js.UpdateConsumer(t.Context(), of.stream, config))(t)
			f.eventually("the end is noticed", func() bool { return len(f.log.Lines(ends)) == 2 })
		})
	}
}

// TestUnusableConsumers has somebody edit a consumer of a running worker, so that it leaves out events or their bodies, or refuses the worker's
// requests. The worker is not ready meanwhile. It loses no event that is stored after it has noticed.
func TestUnusableConsumers(t *testing.T) {
	t.Parallel()
	type consumerCase struct {
		edit func(*jetstream.ConsumerConfig)
		says string
	}
	each(t, map[string]consumerCase{
		"another filter": {func(c *jetstream.ConsumerConfig) { c.FilterSubject = "notify.payments" }, "takes notify.payments, expected the filter"},
		"no bodies":      {func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }, "without their bodies"},
		"few messages":   {func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 1 }, "refuses requests"},
		"few bytes":      {func(c *jetstream.ConsumerConfig) { c.MaxRequestMaxBytes = 100 }, "refuses requests"},
		"brief requests": {func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = time.Millisecond }, "refuses requests"},
		"priority groups": {func(c *jetstream.ConsumerConfig) {
			c.PriorityGroups, c.PriorityPolicy = []string{"group"}, jetstream.PriorityPolicyOverflow
		}, "without a priority group"},
	}, func(t *testing.T, f *fixture, test consumerCase) {
		f.provision(usualAckWait)
		w := f.start(nil)
		f.eventually("it is ready", func() bool { return w.Ready() == nil })
		config := testkit.Must(f.js.Consumer(t.Context(), testNames.Stream, testNames.Consumer))(t).CachedInfo().Config
		edited := config
		test.edit(&edited)
		testkit.Must(f.js.UpdateConsumer(t.Context(), testNames.Stream, edited))(t)
		f.eventually("it is not ready", func() bool { return w.Ready() != nil })
		testkit.Fails(t, "Ready", w.Ready(), stream.ErrUnfit, test.says)
		seen := f.positions()
		f.eventually("requests of the time before have ended", func() bool { return f.positions() > seen+1 })
		f.event("payments", "order-1")
		f.eventually("it is looked at again, and again", func() bool { return f.positions() > seen+3 })
		testkit.Must(f.js.UpdateConsumer(t.Context(), testNames.Stream, config))(t)
		f.eventually("it is ready again", func() bool { return w.Ready() == nil })
		f.awaitOutcomes(map[string]int{"sent payments": 1})
		f.log.WantCount(t, 1, "consumer agrees with the settings again")
	})
}

// positions counts the calls of Passed.
func (f *fixture) positions() int {
	f.watched.mu.Lock()
	defer f.watched.mu.Unlock()
	return len(f.watched.positions)
}

// TestVanishedMessages reports to the throttle the progress of the consumer. Vanished messages are counted and logged.
func TestVanishedMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.watched.passed = func(at position) (int64, error) {
		if at.sequence == 3 {
			return 7, nil
		}
		return 0, nil
	}
	w := f.start(nil)
	f.numbered("payments", 2)
	f.awaitSettled(2)
	created := f.consumerInfo().Created
	last := func() position {
		f.watched.mu.Lock()
		defer f.watched.mu.Unlock()
		if len(f.watched.positions) == 0 {
			return position{}
		}
		return f.watched.positions[len(f.watched.positions)-1]
	}
	want := position{consumer: fmt.Sprintf("%s %s %d", testNames.Stream, testNames.Consumer, created.UnixMilli()), sequence: 2, deliveries: 2}
	f.eventually("it is reported", func() bool { return last() == want })
	testkit.Equal(t, f.metrics.Get("vanished"), 0, "vanished messages")
	f.event("payments", "another")
	f.awaitSettled(3)
	f.eventually("what has vanished is counted", func() bool { return f.metrics.Get("vanished") >= 7 })
	w.stop()
	lines := f.log.Lines("messages left the stream without being processed")
	testkit.Check(t, len(lines) != 0 && strings.Contains(lines[0], "at_least=7"), "lines: got %q, want at_least=7 in the first one", lines)
}

// TestRoomIsCounted counts the events in the room by their reasons.
func TestRoomIsCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.named = []string{"paused"}
	f.pacer.Pause(t.Context(), "paused", time.Hour)
	f.throttle.answers(func(c store.Request) store.Decision {
		switch c.Category {
		case "slot":
			return denied(time.Second)
		case "redis":
			return store.Decision{Verdict: store.Deferred}
		}
		return f.throttle.admit(c)
	})
	f.throttle.delay = comeBackIn(time.Hour)
	f.start(slowDelays)
	f.numbered("paused", 3)
	f.numbered("slot", 2)
	f.numbered("redis", 1)
	f.eventually("they are counted", func() bool {
		return f.metrics.Get("in the room: channel") == 3 && f.metrics.Get("in the room: slot") == 2 && f.metrics.Get("in the room: redis") == 1
	})
	for _, empty := range []string{"pair", stream.ReadyReason} {
		testkit.Equal(t, f.metrics.Get("in the room: "+empty), 0, "events that wait for %s", empty)
	}
	testkit.Equal(t, len(f.inRoom(testNames.Room().All())), 6, "messages in the room")
}

// TestNumbersAreUnknownWithoutNATS stops the server, and starts it again. Meanwhile no number of the streams is reported, since an old number
// would look like a fresh one.
func TestNumbersAreUnknownWithoutNATS(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATSProcess(t, "jetstream {}"))
	f.sink.named = []string{"paused"}
	f.pacer.Pause(t.Context(), "paused", time.Hour)
	f.start(nil)
	f.numbered("paused", 3)
	names := []string{"ack pending", "in the room: " + string(room.Channel), "in the room: " + stream.ReadyReason}
	for _, reason := range room.Scheduled() {
		names = append(names, "in the room: "+string(reason))
	}
	unknowns := func() (count int) {
		for _, name := range names {
			if f.metrics.Get(name) == unknown {
				count++
			}
		}
		return count
	}
	const waiting = "in the room: " + string(room.Channel)
	f.eventually("the events are counted", func() bool { return f.metrics.Get(waiting) == 3 })
	f.server.Kill()
	f.eventually("every number is unknown", func() bool { return unknowns() == len(names) })
	f.server.Restart()
	f.eventually("every number is known again", func() bool { return unknowns() == 0 && f.metrics.Get(waiting) == 3 })
}
