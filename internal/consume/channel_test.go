package consume

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// slow paces the channels: one post of a channel at once, in order, and few deliveries in memory.
func slow(o *setup) { o.Pace = time.Second }

// posted lists the posted events in order. category selects the events of numbered; "" selects all events.
func (j *callLog) posted(category string) []string {
	var ids []string
	for _, line := range j.all() {
		if id, found := strings.CutPrefix(line, "send "); found && strings.HasPrefix(id, category) {
			ids = append(ids, id)
		}
	}
	return ids
}

// numbered publishes n events of a category. Their IDs begin with the category.
func (f *fixture) numbered(category string, n int) (ids []string) {
	f.Helper()
	for i := range n {
		id := fmt.Sprintf("%s-%03d", category, i)
		f.event(category, id)
		ids = append(ids, id)
	}
	return ids
}

// held counts the events in the queue of a channel in the room.
func (f *fixture) held(channel string) int {
	f.Helper()
	return len(f.inRoom(testNames.Room().ChannelFilter(room.Token(channel))))
}

// TestHangingChannel has the posts to a channel without a rate hang, and admits more of its events than a worker holds between decision and
// settlement. The event of another channel is posted.
func TestHangingChannel(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	release := newGate(t)
	f.sink.send = func(ctx context.Context, e event.Event, _ int) error {
		if e.Category == "hanging" {
			_ = release.pass(ctx)
		}
		return nil
	}
	f.publishAsync(2*stage.PoolSize, func(i int) (subject, body string) {
		return "notify.hanging", fmt.Sprintf(`{"id": "hanging-%03d", "title": "an event"}`, i)
	})
	f.event("other", "other-1")
	f.start(nil)
	f.eventually("the event of another channel is posted", func() bool { return len(f.calls.posted("other")) == 1 })
	testkit.Equal(t, len(f.calls.posted("hanging")) < stage.PoolSize, true, "some events of the channel wait")
	release.open()
	f.awaitSettled(2*stage.PoolSize + 1)
}

// TestOrderWithinAChannel posts more events than the queues in memory take, so events pass through the room. Each channel gets its
// events one by one in the order of storing. Two channels get events at once.
func TestOrderWithinAChannel(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	const events = 60
	channels := []string{"one", "two"}
	want := make(map[string][]string)
	for _, channel := range channels {
		want[channel] = f.numbered(channel, events)
	}
	var mu sync.Mutex
	running := make(map[string]bool)
	f.sink.send = func(_ context.Context, e event.Event, _ int) error {
		mu.Lock()
		testkit.Check(t, !running[e.Category], "posts to %s at once: got another one beside %s, want one", e.Category, e.ID)
		running[e.Category] = true
		mu.Unlock()
		time.Sleep(3 * time.Millisecond) // the duration of a post
		mu.Lock()
		defer mu.Unlock()
		running[e.Category] = false
		return nil
	}
	w := f.start(slow)
	f.awaitSettled(len(channels) * events)
	f.requireRoomEmpty()
	for _, channel := range channels {
		testkit.EqualSlices(t, f.calls.posted(channel), want[channel], "posts of %s", channel)
	}
	stored := f.streamInfo(testNames.RoomStream).State.LastSeq
	testkit.Check(t, stored != 0, "got no event through the room, want some")
	testkit.Equal(t, f.sink.mostAtOnce(), len(channels), "posts at once")
	// Fresh events may fill the queue in memory while a request for events of the room is open.
	testkit.AtMost(t, f.metrics.mostUnderWay(), 2*len(channels)*lane.LeastPlaces, "deliveries at once")
	for _, channel := range channels {
		f.eventually("nothing waits for the channel", func() bool { return !w.Busy(channel) })
	}
	w.stop()
	testkit.Equal(t, f.metrics.Get("held"), 0, "waiting deliveries at the end")
	f.requireOutcomes(map[string]int{"sent one": events, "sent two": events})
}

// TestOrderThroughRests pauses a channel again and again.
func TestOrderThroughRests(t *testing.T) {
	t.Parallel()
	f := newProvisioned(t)
	const events = 60
	ids := f.numbered("payments", events)
	var posts atomic.Int32
	f.sink.send = func(context.Context, event.Event, int) error {
		if posts.Add(1)%25 == 0 {
			testkit.Soon(func() bool { return f.metrics.Get("held") > 0 }) // another event waits in memory
			f.pacer.Pause(context.Background(), "payments", lane.MemoryWait+4*pollTime)
		}
		return nil
	}
	var refused atomic.Int32
	f.pacer.reserve = func(channel string, within time.Duration) post {
		paused := f.pacer.pause(channel)
		if within == lane.QueuedWait && paused > lane.MemoryWait+2*pollTime { // what is too late is back before the worker asks again
			refused.Add(1)
			return post{wait: paused, tooLate: true}
		}
		return post{wait: paused}
	}
	f.start(slow)
	f.awaitSettled(events)
	f.requireRoomEmpty()
	testkit.EqualSlices(t, f.calls.posted(""), ids, "posts")
	testkit.Check(t, refused.Load() != 0, "got no event in memory at the beginning of a pause, want some")
}

// TestWaitingKeepsTheLease has a delivery wait for its reserved time, and then post slowly. Another delivery waits behind it. Both
// deliveries last for several acknowledgement waits, and keep their leases.
func TestWaitingKeepsTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 3 * time.Second // the server has a sixth of ackWait to answer
	var reserved atomic.Bool
	f.pacer.reserve = func(string, time.Duration) post {
		if reserved.CompareAndSwap(false, true) {
			return post{wait: 2 * ackWait}
		}
		return post{}
	}
	release := newGate(t)
	f.holdPosts(release)
	f.provision(ackWait)
	f.event("payments", "first")
	f.event("payments", "behind")
	f.start(func(o *setup) { o.client.AckWait, o.SendTimeout, o.Pace = ackWait, ackWait/4, time.Second })
	f.eventually("the first post begins", func() bool { return f.sink.mostAtOnce() == 1 })
	extended, begun := f.calls.count("extend first"), time.Now()
	testkit.Check(t, extended >= 3, "extensions while the delivery waits: got %d, want at least 3", extended)
	f.eventually("the lease is extended during the post", func() bool {
		return f.calls.count("extend first") >= extended+4 && time.Since(begun) > 3*ackWait/2
	})
	release.open()
	f.awaitSettled(2)
	for i := range 2 {
		f.requireSaid(uint64(i+1), "+ACK")
	}
	n := f.calls.count("extend behind")
	testkit.Check(t, n >= 6, "extensions of the delivery behind: got %d, want at least 6", n)
	testkit.Equal(t, f.consumerInfo().Delivered.Consumer, 2, "deliveries of two messages")
	testkit.Equal(t, f.metrics.Get("redelivered"), 0, "redeliveries")
	testkit.EqualSlices(t, f.calls.posted(""), []string{"first", "behind"}, "posts")
}

// TestQueueOfAChannelThatIsNotNamed restarts a worker while a channel has a queue in the room. The settings no longer name the channel.
// The events go to their present destination.
func TestQueueOfAChannelThatIsNotNamed(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"to the same channel, which is paused": false, "to another one": true}, func(t *testing.T, f *fixture, goesOn bool) {
		const events = 3 * lane.LeastPlaces
		f.pacer.Pause(t.Context(), "payments", time.Hour)
		w := f.start(slow)
		ids := f.numbered("payments", events)
		f.eventually("all wait in the room", func() bool { return f.held("payments") == events })
		w.stop()

		if goesOn {
			f.sink.destination = func(event.Event) string { return "another" }
		}
		f.sink.named = []string{"another"}
		f.pacer.Pause(t.Context(), "payments", lane.MemoryWait+3*pollTime)
		f.pacer.reserve = func(channel string, _ time.Duration) post {
			paused := f.pacer.pause(channel)
			return post{wait: paused, tooLate: paused > lane.MemoryWait+2*pollTime} // see TestOrderThroughRests
		}
		f.start(slow)
		f.awaitSettled(events)
		testkit.AtMost(t, len(f.throttle.asked()), 5*events, "requests to the throttle") // a busy loop makes thousands
		f.requireRoomEmpty()
		f.requireOutcomes(map[string]int{"sent payments": events})
		testkit.EqualSlices(t, f.calls.posted(""), ids, "posts")
	})
}

// TestExpiresInTheQueueOfAChannel has an admitted event become too old in its channel's queue. Its slots are returned.
func TestExpiresInTheQueueOfAChannel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sink.named = []string{"payments"}
	f.throttle.released[event.Event{Category: "payments", ID: "order-1"}.Identity()] = false
	f.start(func(o *setup) { slow(o); o.MaxAge = time.Hour })
	long := time.Now().Add(-24 * time.Hour)
	f.putInRoom(testNames.Room().Channel(room.Token("payments"), "payments"), room.Entry{
		Reason: room.Channel, Subject: "notify.payments", ID: "order-1", Origin: room.Origin{Stream: "OTHER", Sequence: 7, Stored: long}, Since: long,
	}, `{"id": "order-1", "title": "an event"}`)
	f.requireRoomEmpty()
	f.requireOutcome("expired payments")
	f.requireHistory("order-1", "refund")
}
