package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// slow makes deliveries wait for their channels in order, with one post of a channel at once and few in memory.
func slow(o *Options) { o.Pace = time.Second }

// posted lists the events that were posted, in order.
func (j *diary) posted() []string {
	var ids []string
	for _, line := range j.all() {
		if id, found := strings.CutPrefix(line, "send "); found {
			ids = append(ids, id)
		}
	}
	return ids
}

// postedOf lists likewise those of a category that numbered has published.
func (j *diary) postedOf(category string) []string {
	return slices.DeleteFunc(j.posted(), func(id string) bool { return !strings.HasPrefix(id, category+"-") })
}

// numbered publishes n events of a category, whose IDs are its name and a number.
func (f *fixture) numbered(category string, n int) (ids []string) {
	f.Helper()
	for i := range n {
		id := fmt.Sprintf("%s-%03d", category, i)
		f.event(category, id)
		ids = append(ids, id)
	}
	return ids
}

// held counts the events that wait for a channel in the room.
func (f *fixture) held(channel string) int {
	f.Helper()
	return len(f.inRoom(testNames.room().ChannelFilter(room.Token(channel))))
}

// Events go to a channel one after the other, in the order in which they were stored, and to several channels at once; also those
// that found too many before them, and went through the room.
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
			t.Errorf("%s is posted while another one is, to the same channel", e.ID)
		}
		running[e.Category] = true
		mu.Unlock()
		time.Sleep(3 * time.Millisecond) // a post takes a while
		mu.Lock()
		defer mu.Unlock()
		running[e.Category] = false
		return nil
	}
	w := f.start(slow)
	f.awaitSettled(len(channels) * events)
	f.requireRoomEmpty()
	for _, channel := range channels {
		testkit.EqualSlices(t, f.journal.postedOf(channel), want[channel], "order of posts, want that of storing")
	}
	if stored := f.streamInfo(testNames.RoomStream).State.LastSeq; stored == 0 {
		t.Error("no event went through the room")
	}
	testkit.Equal(t, f.sink.mostAtOnce(), len(channels), "posts were under way at once, want one for each channel")
	// A request for those in the room may be open while fresh ones fill the queue in memory.
	if most := 2 * len(channels) * leastQueued; f.metrics.mostUnderWay() > most {
		t.Errorf("%d deliveries were under way, want at most %d", f.metrics.mostUnderWay(), most)
	}
	for _, channel := range channels {
		f.eventually("nothing waits for the channel", func() bool { return !w.Busy(channel) })
	}
	w.stop()
	testkit.Equal(t, f.metrics.Get("held"), 0, "deliveries are counted as waiting")
	f.requireOutcomes(map[string]int{"sent one": events, "sent two": events})
}

// Where channels are not paced there is no order and no bound, but one that is paused holds up no other either.
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

// The order of a channel's events stays while it is paused again and again.
func TestOrderThroughRests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	const events = 60
	ids := f.numbered("payments", events)
	var posts atomic.Int32
	f.sink.send = func(context.Context, event.Event, int) error {
		if posts.Add(1)%25 == 0 {
			f.throttle.Pause(context.Background(), "payments", memoryWait+2*pollTime)
		}
		return nil
	}
	var refused atomic.Int32
	f.throttle.reserve = func(channel string, maxWait time.Duration) post {
		paused := f.throttle.pause(channel)
		if paused > memoryWait { // nothing is reserved so far ahead
			refused.Add(1)
			return post{wait: paused, tooLate: true}
		}
		return post{wait: paused}
	}
	f.start(slow)
	f.awaitSettled(events)
	f.requireRoomEmpty()
	testkit.EqualSlices(t, f.journal.posted(), ids, "order of posts, want that of storing")
	if refused.Load() == 0 {
		t.Error("no event was in memory when the pause began")
	}
}

// Events keep their order, and their distance, where one of several that may be posted at once has its time late: Redis did not
// answer it whether the channel is paused.
func TestOrderBehindALateMoment(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	const pace = 50 * time.Millisecond
	ids := f.numbered("payments", 6)
	var reserved, asked atomic.Int32
	f.throttle.reserve = func(string, time.Duration) post { return post{wait: time.Duration(reserved.Add(1)) * pace} }
	f.throttle.askPause = func() {
		if asked.Add(1) == 1 {
			time.Sleep(10 * pace) // a call to Redis that fails
		}
	}
	var mu sync.Mutex
	var posts []time.Time
	f.sink.send = func(context.Context, event.Event, int) error {
		mu.Lock()
		defer mu.Unlock()
		posts = append(posts, time.Now())
		return nil
	}
	f.start(func(o *Options) { o.Pace, o.Concurrency = pace, 4 })
	f.awaitSettled(len(ids))
	testkit.EqualSlices(t, f.journal.posted(), ids, "order of posts, want that of storing")
	if apart := posts[1].Sub(posts[0]); apart < pace/2 {
		t.Errorf("the post behind the late one came %v after it, want about %v", apart, pace)
	}
}

// A pace bounds what waits in memory for a channel, and how many posts go to it at once.
func TestBoundsByPace(t *testing.T) {
	t.Parallel()
	for pace, want := range map[time.Duration]struct{ capacity, width int }{
		time.Millisecond: {mostQueued, 4}, 50 * time.Millisecond: {160, 4}, time.Second: {leastQueued, 1}, time.Hour: {leastQueued, 1},
	} {
		c := newChannels(pace, 4)
		if c.capacity != want.capacity || c.width != want.width {
			t.Errorf("at a pace of %v %d deliveries are in memory and %d posted at once, want %d and %d", pace, c.capacity, c.width, want.capacity, want.width)
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

// filled are channels of which one has its queue full.
func filled(t *testing.T) (c *channels, entered []*delivery) {
	t.Helper()
	c = newChannels(time.Second, 4)
	for range leastQueued {
		d := freshDelivery()
		if !c.enter(d) {
			t.Fatalf("with %d in memory the next one does not enter", len(entered))
		}
		entered = append(entered, d)
	}
	return c, entered
}

// A channel's queue is bounded: fresh events that find it full do not enter, nor do those behind them; what comes from the queue in
// the room does.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, entered := filled(t)
	if entered[0].reserving.before != nil || entered[1].reserving.before == nil {
		t.Error("want that the second one waits for the first")
	}
	requireEnters := func(d *delivery, want bool, what string) {
		t.Helper()
		testkit.Equal(t, c.enter(d), want, "%s enters", what)
	}
	requireEnters(freshDelivery(), false, "one more than the bound")
	held := c.hold("C1")
	entered[0].leaveQueue()
	entered[0].leaveQueue()
	<-entered[1].reserving.before
	requireEnters(freshDelivery(), false, "a fresh one behind one that is on its way to the room")
	testkit.Equal(t, testkit.Must(c.awaitFree(ctx, "C1"))(t), 1, "may enter from the room")
	c.fetched("C1", 0) // it was asked before the one is there
	requireEnters(freshDelivery(), false, "a fresh one behind one that is on its way to the room, and was not found there yet")
	held()
	testkit.Must(c.awaitFree(ctx, "C1"))(t)
	c.fetched("C1", 1)
	late := queuedDelivery()
	requireEnters(late, true, "the one from the room")
	if !c.busy("C1") || c.busy("C2") {
		t.Error("want that the channel is busy, and no other")
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
	testkit.Equal(t, c.busy("C1"), false, "busy though nothing waits any more")
	requireEnters(freshDelivery(), true, "a fresh one when nothing waits any more")
}

// Waiting for a full queue ends with its context.
func TestWaitingForAFullQueueEnds(t *testing.T) {
	t.Parallel()
	c, _ := filled(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.awaitFree(ended, "C1"); err == nil {
		t.Error("it does not end")
	}
}

// A delivery that waits for longer than an acknowledgement wait keeps its message, and so does the one behind it.
func TestWaitingKeepsTheLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ackWait = 3 * time.Second // a sixth of it has to do for an answer
	var reserved atomic.Bool
	f.throttle.reserve = func(string, time.Duration) post {
		if reserved.CompareAndSwap(false, true) {
			return post{wait: 3 * ackWait}
		}
		return post{}
	}
	f.provision(ackWait)
	f.event("payments", "first")
	f.event("payments", "behind")
	f.start(func(o *Options) { o.AckWait, o.SendTimeout, o.Pace = ackWait, ackWait/4, time.Second })
	f.awaitSettled(2)
	for i, id := range []string{"first", "behind"} {
		f.requireSaid(uint64(i+1), "+ACK")
		if n := f.journal.count("extend " + id); n < 6 {
			t.Errorf("the leases on %s were extended %d times in three acknowledgement waits", id, n)
		}
	}
	if delivered := f.consumerInfo().Delivered.Consumer; delivered != 2 || f.metrics.Get("redelivered") != 0 {
		t.Errorf("%d deliveries of two messages", delivered)
	}
	testkit.EqualSlices(t, f.journal.posted(), []string{"first", "behind"}, "posted")
}

// A post that is far away is waited for in the room, not in memory, and keeps the event's slot. An event that comes from there waits
// for longer in memory.
func TestFurtherAwayThanAPostMayWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var maxWaits []time.Duration
	f.throttle.reserve = func(_ string, within time.Duration) post {
		if maxWaits = append(maxWaits, within); within == maxWait {
			return post{wait: 2 * maxWait, tooLate: true}
		}
		return post{}
	}
	f.start(slow)
	sequence := f.event("payments", "order-1")
	f.awaitSettled(1)
	f.requireRoomEmpty()
	f.requireSaid(sequence, "+ACK")
	f.requireHistory("order-1", "release", "send", "finish")
	testkit.EqualSlices(t, maxWaits, []time.Duration{maxWait, queueMaxWait}, "longest waits of the reservations")
}

// A queue is served by whoever starts, though the settings no longer name its channel, and nobody there knows its name. Its events
// go where the settings say now.
func TestQueueOfAChannelThatIsNotNamed(t *testing.T) {
	t.Parallel()
	for name, goesOn := range map[string]bool{"to the same channel, which is paused": false, "to another one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
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
				return post{wait: f.throttle.pause(channel), tooLate: f.throttle.pause(channel) > memoryWait}
			}
			f.start(slow)
			f.awaitSettled(events)
			if asked := len(f.throttle.asked()); asked > 5*events { // a busy loop asks thousands of times
				t.Errorf("the throttle was asked about them %d times", asked)
			}
			f.requireRoomEmpty()
			f.requireOutcomes(map[string]int{"sent payments": events})
			testkit.EqualSlices(t, f.journal.posted(), ids, "order of posts, want that of storing")
		})
	}
}
