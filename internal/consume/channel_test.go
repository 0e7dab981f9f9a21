package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
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

// TestOrderWithinAChannel posts more events than the queues in memory take, so events pass through the room. Each channel gets its
// events one by one in the order of storing. Two channels get events at once.
func TestOrderWithinAChannel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
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
		if running[e.Category] {
			t.Errorf("posts to %s at once: got another one beside %s, want one", e.Category, e.ID)
		}
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
	if stored := f.streamInfo(testNames.RoomStream).State.LastSeq; stored == 0 {
		t.Error("got no event through the room, want some")
	}
	testkit.Equal(t, f.sink.mostAtOnce(), len(channels), "posts at once")
	// Fresh events may fill the queue in memory while a request for events of the room is open.
	testkit.AtMost(t, f.metrics.mostUnderWay(), 2*len(channels)*leastQueued, "deliveries at once")
	for _, channel := range channels {
		f.eventually("nothing waits for the channel", func() bool { return !w.Busy(channel) })
	}
	w.stop()
	testkit.Equal(t, f.metrics.Get("held"), 0, "waiting deliveries at the end")
	f.requireOutcomes(map[string]int{"sent one": events, "sent two": events})
}

// TestUnpacedChannels pauses one of two channels. The paused channel holds up no event of the other channel.
func TestUnpacedChannels(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	f.throttle.Pause(t.Context(), "paused", time.Hour)
	const events = poolSize + 50
	f.numbered("paused", events)
	f.numbered("quiet", 10)
	f.start(nil)
	f.eventually("the quiet channel gets everything", func() bool { return f.metrics.Get("sent quiet") == 10 })
	f.eventually("the others wait in the room", func() bool { return f.held("paused") == events })
	f.throttle.Pause(t.Context(), "paused", 0)
	f.awaitSettled(events + 10)
	f.requireRoomEmpty()
}

// TestOrderThroughRests pauses a channel again and again.
func TestOrderThroughRests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	const events = 60
	ids := f.numbered("payments", events)
	var posts atomic.Int32
	f.sink.send = func(context.Context, event.Event, int) error {
		if posts.Add(1)%25 == 0 {
			testkit.Soon(func() bool { return f.metrics.Get("held") > 0 }) // another event waits in memory
			f.throttle.Pause(context.Background(), "payments", memoryWait+4*pollTime)
		}
		return nil
	}
	var refused atomic.Int32
	f.throttle.reserve = func(channel string, within time.Duration) post {
		paused := f.throttle.pause(channel)
		if within == queueMaxWait && paused > memoryWait+2*pollTime { // what is too late is back before the worker asks again
			refused.Add(1)
			return post{wait: paused, tooLate: true}
		}
		return post{wait: paused}
	}
	f.start(slow)
	f.awaitSettled(events)
	f.requireRoomEmpty()
	testkit.EqualSlices(t, f.calls.posted(""), ids, "posts")
	if refused.Load() == 0 {
		t.Error("got no event in memory at the beginning of a pause, want some")
	}
}

// TestOrderThroughAPauseAtOnce pauses a channel while fresh events wait for it in memory and later ones wait in the room.
func TestOrderThroughAPauseAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	const events = 3 * leastQueued
	ids := f.numbered("payments", events)
	var posts atomic.Int32
	f.sink.send = func(context.Context, event.Event, int) error {
		if posts.Add(1) > 1 {
			return nil
		}
		testkit.Soon(func() bool { return f.held("payments") == events-leastQueued })
		return &sink.Error{Class: sink.RateLimited, RetryAfter: 3 * time.Second}
	}
	f.throttle.reserve = func(channel string, maxWait time.Duration) post {
		paused := f.throttle.pause(channel)
		return post{wait: paused, tooLate: 10*paused > maxWait} // the pause stands for one of thirty seconds
	}
	f.start(slow)
	f.awaitSettled(events)
	f.requireRoomEmpty()
	testkit.EqualSlices(t, f.calls.posted(""), append(ids[:1:1], ids...), "posts, the first of them tried twice")
}

// TestOrderAtTheLongestWait has the longest wait end between the reservations of two events that wait in memory. The second event does not
// overtake.
func TestOrderAtTheLongestWait(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"fresh": false, "from the room": true}, func(t *testing.T, f *fixture, fromRoom bool) {
		f.provision(patience)
		ids := f.numbered("payments", 5)
		refuses := func(within time.Duration) bool { return fromRoom == (within == queueMaxWait) }
		var refused atomic.Int32
		f.throttle.reserve = func(_ string, within time.Duration) post {
			switch {
			case refuses(within) && refused.Add(1) == 1:
				return post{wait: memoryWait + pollTime, tooLate: true}
			case fromRoom && within == maxWait:
				return post{wait: memoryWait, tooLate: true}
			}
			return post{}
		}
		f.start(slow)
		f.awaitSettled(len(ids))
		f.requireRoomEmpty()
		testkit.EqualSlices(t, f.calls.posted(""), ids, "posts")
	})
}

// TestOrderBehindALateMoment allows several posts at once. The first one misses its reserved time, because its call to Redis hangs.
// The posts keep their order and their distance.
func TestOrderBehindALateMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pace = 50 * time.Millisecond
		var reserved, asked, posted atomic.Int32
		w := &Worker{metrics: &fakeMetrics{}, channels: newChannels(pace, 4), pacer: &fakeThrottle{
			reserve: func(string, time.Duration) post {
				return post{wait: time.Duration(reserved.Add(1)) * pace}
			},
			askPause: func() {
				if asked.Add(1) == 1 {
					time.Sleep(10 * pace)
				}
			},
		}}
		var latest atomic.Pointer[time.Time]
		var posts sync.WaitGroup
		for i := range int32(6) {
			d := &delivery{candidate: candidate{message: new(message)}, destination: "payments"}
			w.channels.enter(d)
			posts.Go(func() {
				defer d.leaveQueue()
				_, ok := w.awaitPost(t.Context(), d)
				testkit.Equal(t, ok, true, "post %d goes out", i)
				testkit.Equal(t, posted.Add(1)-1, i, "posts before post %d", i)
				began := time.Now()
				if before := latest.Swap(&began); i > 0 && began.Sub(*before) < pace {
					t.Errorf("time between posts %d and %d: got %v, want at least %v", i-1, i, began.Sub(*before), pace)
				}
				time.Sleep(postTime) // the length of a post
			})
		}
		posts.Wait()
	})
}

func TestBoundsByPace(t *testing.T) {
	t.Parallel()
	for pace, want := range map[time.Duration]struct{ capacity, width int }{
		time.Millisecond: {mostQueued, 4}, 50 * time.Millisecond: {160, 4}, time.Second: {leastQueued, 1}, time.Hour: {leastQueued, 1},
	} {
		c := newChannels(pace, 4)
		if c.capacity != want.capacity || c.width != want.width {
			t.Errorf("pace %v: got capacity %d and width %d, want %d and %d", pace, c.capacity, c.width, want.capacity, want.width)
		}
	}
}

func freshDelivery() *delivery {
	return &delivery{candidate: candidate{message: &message{}}, destination: "C1"}
}

func queuedDelivery() *delivery {
	d := freshDelivery()
	d.source = source{inRoom: true, channel: "C1"}
	return d
}

// filled makes channels and fills the queue of C1.
func filled(t *testing.T) (c *channels, entered []*delivery) {
	t.Helper()
	c = newChannels(time.Second, 4)
	for range leastQueued {
		d := freshDelivery()
		if !c.enter(d) {
			t.Fatalf("delivery %d: got refused, want entered", len(entered))
		}
		entered = append(entered, d)
	}
	return c, entered
}

// TestQueueIsBounded fills the queue of a channel in memory. Fresh events stay out until the queue in the room is empty. An event of
// that queue enters.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, entered := filled(t)
	if entered[0].reserving.before != nil || entered[1].reserving.before == nil {
		t.Error("got a second delivery that does not wait, want it to wait for the first one")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.awaitFree(ended, "C1"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a full queue: got %v, want %v", err, context.Canceled)
	}
	requireEnters := func(d *delivery, want bool, what string) {
		t.Helper()
		testkit.Equal(t, c.enter(d), want, "%s enters", what)
	}
	requireEnters(freshDelivery(), false, "a fresh event at the bound")
	held := c.hold("C1")
	entered[0].leaveQueue()
	entered[0].leaveQueue()
	<-entered[1].reserving.before
	requireEnters(freshDelivery(), false, "a fresh event behind a move to the room")
	testkit.Equal(t, testkit.Must(c.awaitFree(ctx, "C1"))(t), 1, "free places")
	c.fetched("C1", 0) // before the end of the move
	requireEnters(freshDelivery(), false, "a fresh event behind a move that the request did not see")
	held()
	testkit.Must(c.awaitFree(ctx, "C1"))(t)
	c.fetched("C1", 1)
	late := queuedDelivery()
	requireEnters(late, true, "an event of the room")
	if !c.busy("C1") || c.busy("C2") {
		t.Errorf("busy: got C1 %t and C2 %t, want C1 alone", c.busy("C1"), c.busy("C2"))
	}
	freed := make(chan error, 1)
	go func() {
		_, err := c.awaitFree(ctx, "C1")
		freed <- err
	}()
	for _, d := range append(entered, late) {
		d.leaveQueue()
	}
	testkit.NoError(t, <-freed)
	c.fetched("C1", 0)
	testkit.Equal(t, c.busy("C1"), false, "an empty channel is busy")
	requireEnters(freshDelivery(), true, "a fresh event of an empty channel")
}

// TestWaitingKeepsTheLease has a delivery wait for its reserved time, and then post slowly. Another delivery waits behind it. Both
// deliveries last for several acknowledgement waits, and keep their leases.
func TestWaitingKeepsTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 3 * time.Second // the server has a sixth of ackWait to answer
	var reserved atomic.Bool
	f.throttle.reserve = func(string, time.Duration) post {
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
	if extended < 3 {
		t.Errorf("extensions while the delivery waits: got %d, want at least 3", extended)
	}
	f.eventually("the lease is extended during the post", func() bool {
		return f.calls.count("extend first") >= extended+4 && time.Since(begun) > 3*ackWait/2
	})
	release.open()
	f.awaitSettled(2)
	for i := range 2 {
		f.requireSaid(uint64(i+1), "+ACK")
	}
	if n := f.calls.count("extend behind"); n < 6 {
		t.Errorf("extensions of the delivery behind: got %d, want at least 6", n)
	}
	testkit.Equal(t, f.consumerInfo().Delivered.Consumer, 2, "deliveries of two messages")
	testkit.Equal(t, f.metrics.Get("redelivered"), 0, "redeliveries")
	testkit.EqualSlices(t, f.calls.posted(""), []string{"first", "behind"}, "posts")
}

// TestQueueOfAChannelThatIsNotNamed restarts a worker while a channel has a queue in the room. The settings no longer name the channel.
// The events go to their present destination.
func TestQueueOfAChannelThatIsNotNamed(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"to the same channel, which is paused": false, "to another one": true}, func(t *testing.T, f *fixture, goesOn bool) {
		const events = 3 * leastQueued
		f.throttle.Pause(t.Context(), "payments", time.Hour)
		w := f.start(slow)
		ids := f.numbered("payments", events)
		f.eventually("all wait in the room", func() bool { return f.held("payments") == events })
		w.stop()

		if goesOn {
			f.sink.destination = func(event.Event) string { return "another" }
		}
		f.sink.named = []string{"another"}
		f.throttle.Pause(t.Context(), "payments", memoryWait+3*pollTime)
		f.throttle.reserve = func(channel string, _ time.Duration) post {
			paused := f.throttle.pause(channel)
			return post{wait: paused, tooLate: paused > memoryWait+2*pollTime} // see TestOrderThroughRests
		}
		f.start(slow)
		f.awaitSettled(events)
		testkit.AtMost(t, len(f.throttle.asked()), 5*events, "requests to the throttle") // a busy loop makes thousands
		f.requireRoomEmpty()
		f.requireOutcomes(map[string]int{"sent payments": events})
		testkit.EqualSlices(t, f.calls.posted(""), ids, "posts")
	})
}
