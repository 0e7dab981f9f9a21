package lane

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePacer takes each post at once by default.
type fakePacer struct {
	reserve    func(maxWait time.Duration) pacing.Reservation // nil: now
	checkPause func() time.Duration                           // nil: no pause
	paused     time.Duration
	held       heldNow
}

func (f *fakePacer) Reserve(_ context.Context, ask pacing.Ask) pacing.Reservation {
	if f.reserve == nil {
		return pacing.Reservation{OK: true}
	}
	return f.reserve(ask.MaxWait)
}

func (f *fakePacer) CheckPause(context.Context, string) time.Duration {
	if f.checkPause == nil {
		return 0
	}
	return f.checkPause()
}

func (f *fakePacer) ReserveUpdate(context.Context, time.Duration) pacing.Reservation {
	return pacing.Reservation{OK: true}
}

func (f *fakePacer) PauseUpdates(context.Context, time.Duration) {}

func (f *fakePacer) PauseRefusing(ctx context.Context, channel string, d time.Duration) {
	f.Pause(ctx, channel, d)
}

func (f *fakePacer) Pause(_ context.Context, _ string, d time.Duration) { f.paused = d }
func (f *fakePacer) Paused(string) time.Duration                        { return f.paused }

// heldNow is the number of deliveries that wait.
type heldNow struct{ atomic.Int64 }

func (h *heldNow) Held(_ string, delta int) { h.Add(int64(delta)) }

func newLanes(pacer *fakePacer, pace time.Duration) *Lanes {
	return New(Options{Pacer: pacer, Pace: pace, Concurrency: 4, Poll: time.Second, Held: pacer.held.Held})
}

var fresh, queued = Delivery{Channel: "C1", Size: 100}, Delivery{Channel: "C1", Size: 100, Queued: true}

func TestBoundsByPace(t *testing.T) {
	t.Parallel()
	for pace, want := range map[time.Duration]struct{ capacity, width int }{
		0: {mostPlaces, 4}, time.Millisecond: {mostPlaces, 4}, 50 * time.Millisecond: {160, 4}, time.Second: {LeastPlaces, 1}, time.Hour: {LeastPlaces, 1},
	} {
		l := newLanes(new(fakePacer), pace)
		testkit.Equal(t, l.capacity, want.capacity, "capacity at the pace %v", pace)
		testkit.Equal(t, l.width, want.width, "posts at once at the pace %v", pace)
	}
}

// TestLaneIsBounded fills the lane of a channel. Fresh events stay out until the queue in the room is empty. An event of that queue enters.
func TestLaneIsBounded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := newLanes(new(fakePacer), time.Second)
	var places []*Place
	for range LeastPlaces {
		places = append(places, l.Enter(fresh))
	}
	requireEnters := func(d Delivery, want bool, what string) *Place {
		t.Helper()
		p := l.Enter(d)
		testkit.Equal(t, p != nil, want, "%s enters", what)
		return p
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := l.AwaitFree(ended, "C1")
	testkit.Fails(t, "waiting for a full lane", err, context.Canceled)
	requireEnters(fresh, false, "a fresh event at the bound")
	stored := l.Store("C1")
	places[0].Leave()
	places[0].Leave()
	requireEnters(fresh, false, "a fresh event behind a move to the room")
	testkit.Equal(t, testkit.Must(l.AwaitFree(ctx, "C1"))(t), 1, "free places")
	l.Fetched("C1", 0, nil) // before the end of the move
	requireEnters(fresh, false, "a fresh event behind a move that the request did not see")
	stored()
	testkit.Must(l.AwaitFree(ctx, "C1"))(t)
	l.Fetched("C1", 0, context.DeadlineExceeded)
	requireEnters(fresh, false, "a fresh event after a request that was not answered")
	testkit.Must(l.AwaitFree(ctx, "C1"))(t)
	l.Fetched("C1", 1, nil)
	places = append(places[1:], requireEnters(queued, true, "an event of the room"))
	testkit.Equal(t, l.Busy("C1"), true, "C1 is busy")
	testkit.Equal(t, l.Busy("C2"), false, "C2 is busy")
	freed := make(chan error, 1)
	go func() {
		_, err := l.AwaitFree(ctx, "C1")
		freed <- err
	}()
	for _, p := range places {
		p.Leave()
	}
	testkit.NoError(t, <-freed)
	l.Fetched("C1", 0, nil)
	testkit.Equal(t, l.Busy("C1"), false, "an empty channel is busy")
	requireEnters(fresh, true, "a fresh event of an empty channel")
}

// TestStalledChannel has lanes without a pace, which are full only while no post ends, or by their bytes.
func TestStalledChannel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(new(fakePacer), 0)
		var first *Place
		for range 2 * LeastPlaces {
			first = l.Enter(fresh)
		}
		time.Sleep(StallTime + 1)
		testkit.Equal(t, l.Enter(fresh) == nil, true, "a fresh event stays out of a lane that stalls")
		first.Leave()
		testkit.Equal(t, l.Enter(fresh) == nil, false, "a fresh event stays out after a delivery has left")
		l.Enter(Delivery{Channel: "C1", Size: MostBytes, Queued: true})
		testkit.Equal(t, l.Enter(fresh) == nil, true, "a fresh event stays out of a lane with many bytes")
	})
}

// TestLongPause keeps fresh events out of a channel that is paused for long. Events of the room enter.
func TestLongPause(t *testing.T) {
	t.Parallel()
	l := newLanes(new(fakePacer), 0)
	l.Pause(t.Context(), "C1", MemoryWait+time.Second)
	testkit.Equal(t, l.Enter(fresh) == nil, true, "a fresh event stays out")
	testkit.Equal(t, l.Enter(queued) == nil, false, "an event of the room stays out")
	testkit.Equal(t, l.Paused("C1"), MemoryWait+time.Second, "rest of the pause")
}

// TestOrderBehindALateMoment allows several posts at once. The first one misses its reserved time, because its call to Redis hangs.
// The posts keep their order and their distance.
func TestOrderBehindALateMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pace = 50 * time.Millisecond
		var reserved, asked, posted atomic.Int32
		l := newLanes(&fakePacer{
			reserve: func(time.Duration) pacing.Reservation {
				return pacing.Reservation{Wait: time.Duration(reserved.Add(1)) * pace, OK: true}
			},
			checkPause: func() time.Duration {
				if asked.Add(1) == 1 {
					time.Sleep(10 * pace)
				}
				return 0
			},
		}, pace)
		var latest atomic.Pointer[time.Time]
		var posts sync.WaitGroup
		for i := range int32(6) {
			p := l.Enter(fresh)
			posts.Go(func() {
				defer p.Leave()
				_, ok := p.AwaitPost(t.Context())
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

// TestRefusedReservation refuses the reservation of the first of two places. The second one waits until the first lets it pass, and is
// refused without a request, because the pause shrinks meanwhile.
func TestRefusedReservation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		pacer := &fakePacer{reserve: func(maxWait time.Duration) pacing.Reservation {
			asked++
			testkit.Equal(t, maxWait, FreshWait, "longest wait of a fresh event")
			return pacing.Reservation{Wait: time.Hour, Expected: time.Hour}
		}}
		l := newLanes(pacer, time.Second)
		first, second := l.Enter(fresh), l.Enter(fresh)
		wait, ok := first.AwaitPost(t.Context())
		testkit.Equal(t, ok, false, "the first place may post")
		testkit.Equal(t, wait, time.Hour, "wait of the first place")
		done := make(chan time.Duration)
		go func() {
			wait, _ := second.AwaitPost(t.Context())
			done <- wait
		}()
		synctest.Wait()
		testkit.Equal(t, pacer.held.Load(), 1, "places that wait")
		time.Sleep(time.Millisecond)
		first.LetNext()
		first.StepAside()
		testkit.Equal(t, <-done, MemoryWait+time.Second-time.Millisecond, "wait of the second place")
		testkit.Equal(t, asked, 1, "requests to the pacer")
	})
}

// TestRefusedForAll refuses the reservation of the first of two places. The second one is refused too, however late it reserves, and so is an
// event of the room that was requested before.
func TestRefusedForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		l := newLanes(&fakePacer{reserve: func(time.Duration) pacing.Reservation {
			asked++
			return pacing.Reservation{OK: asked > 1, Wait: time.Second, Expected: time.Hour}
		}}, time.Second)
		first, second := l.Enter(fresh), l.Enter(fresh)
		_, ok := first.AwaitPost(t.Context())
		testkit.Equal(t, ok, false, "the first place may post")
		time.Sleep(time.Minute)
		first.Leave()
		_, ok = second.AwaitPost(t.Context())
		testkit.Equal(t, ok, false, "the second place may post")
		second.Leave()
		late := l.Enter(queued)
		_, ok = late.AwaitPost(t.Context())
		testkit.Equal(t, ok, false, "an event of the room that was requested before may post")
		late.Leave()
		testkit.Must(l.AwaitFree(t.Context(), "C1"))(t)
		_, ok = l.Enter(queued).AwaitPost(t.Context())
		testkit.Equal(t, ok, true, "an event of the room that was requested later may post")
	})
}

// TestRequestBehindARefusal refuses a reservation while a request for the channel's queue is open. The refused event returns to the queue after
// the request, and before the next one.
func TestRequestBehindARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(&fakePacer{reserve: func(time.Duration) pacing.Reservation {
			return pacing.Reservation{Wait: MemoryWait + time.Second, Expected: time.Hour}
		}}, time.Second)
		testkit.Must(l.AwaitFree(t.Context(), "C1"))(t)
		_, ok := l.Enter(queued).AwaitPost(t.Context())
		testkit.Equal(t, ok, false, "the place may post")
		began, fetched := time.Now(), make(chan time.Duration)
		go func() {
			l.AwaitFetched(t.Context(), "C1")
			fetched <- time.Since(began)
		}()
		time.Sleep(time.Second / 2)
		l.Fetched("C1", 1, nil)
		testkit.Equal(t, <-fetched, time.Second/2, "time until the request has ended")
		testkit.Equal(t, testkit.Must(l.AwaitFree(t.Context(), "C1"))(t), 0, "events to request while the channel rests")
		l.AwaitFetched(t.Context(), "C1")
		time.Sleep(time.Second)
		testkit.Equal(t, testkit.Must(l.AwaitFree(t.Context(), "C1"))(t), LeastPlaces-1, "events to request later")
	})
}

// TestPermits posts to a channel that takes one post at once. A place that steps aside lets the next place post, and comes again.
func TestPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(new(fakePacer), time.Second)
		first, second := l.Enter(fresh), l.Enter(fresh)
		_, ok := first.AwaitPost(t.Context())
		testkit.Equal(t, ok, true, "the first place may post")
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, ok = second.AwaitPost(soon)
		testkit.Equal(t, ok, false, "the second place may post beside the first one")
		first.StepAside()
		_, ok = second.AwaitPost(t.Context())
		testkit.Equal(t, ok, true, "the second place may post")
		second.Leave()
		_, ok = first.AwaitPost(t.Context())
		testkit.Equal(t, ok, true, "the first place may post again")
	})
}

// TestPauseWhileWaiting pauses the channel while a delivery waits for its reserved post. It reserves another one.
func TestPauseWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		l := newLanes(&fakePacer{
			reserve: func(time.Duration) pacing.Reservation { return pacing.Reservation{Wait: time.Second, OK: true} },
			checkPause: func() time.Duration {
				checks++
				return time.Duration(2-checks) * time.Second
			},
		}, time.Second)
		began := time.Now()
		_, ok := l.Enter(fresh).AwaitPost(t.Context())
		testkit.Equal(t, ok, true, "the place may post")
		testkit.Equal(t, time.Since(began), 2*time.Second, "time until the post")
	})
}

// TestCriticalFirst has critical deliveries enter a lane behind others. They go before all of them but the first, which has its turn, and
// overdue ones, whenever these enter.
func TestCriticalFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(new(fakePacer), time.Second)
		now := time.Now()
		var order []string
		var posts sync.WaitGroup
		enter := func(name string, since time.Time, critical bool) {
			p := l.Enter(Delivery{Channel: "C1", Since: since, Critical: critical})
			posts.Go(func() {
				defer p.Leave()
				_, ok := p.AwaitPost(t.Context())
				testkit.Equal(t, ok, true, "%s may post", name)
				order = append(order, name)
				time.Sleep(time.Second)
			})
			synctest.Wait()
		}
		enter("first", now, false)
		enter("overdue", now.Add(-overdueTime), false)
		enter("ordinary", now, false)
		enter("critical 1", now, true)
		enter("critical 2", now, true)
		enter("overdue too", now.Add(-overdueTime), false)
		posts.Wait()
		testkit.EqualSlices(t, order, []string{"first", "overdue", "overdue too", "critical 1", "critical 2", "ordinary"}, "posts")
	})
}

// TestCriticalBesideTheRoom fills a lane with ordinary deliveries and with as many critical ones. Neither takes a place of the other, so events
// of the room are requested however many critical ones come. A delivery that has had a place before enters again.
func TestCriticalBesideTheRoom(t *testing.T) {
	t.Parallel()
	l := newLanes(new(fakePacer), time.Second)
	critical := Delivery{Channel: "C1", Since: time.Now(), Critical: true}
	for range LeastPlaces {
		testkit.Equal(t, l.Enter(critical) == nil, false, "a critical event stays out")
	}
	testkit.Equal(t, testkit.Must(l.AwaitFree(t.Context(), "C1"))(t), LeastPlaces, "events to request beside critical ones")
	l.Fetched("C1", 0, nil)
	for range LeastPlaces {
		testkit.Equal(t, l.Enter(fresh) == nil, false, "an ordinary event stays out")
	}
	for _, d := range []Delivery{critical, fresh} {
		testkit.Equal(t, l.Enter(d) == nil, true, "an event stays out of a full lane")
		d.Again = true
		again := l.Enter(d)
		testkit.Equal(t, again == nil, false, "an event that comes again stays out of a full lane")
		again.Leave()
	}
}

// TestAskingAgain has the pacer name a time to ask again. The place asks then, and gives up if it expects to wait for too long.
func TestAskingAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		l := newLanes(&fakePacer{reserve: func(time.Duration) pacing.Reservation {
			asked++
			return pacing.Reservation{OK: asked == 3, Wait: time.Second, Expected: 2 * time.Second}
		}}, time.Second)
		began := time.Now()
		_, ok := l.Enter(fresh).AwaitPost(t.Context())
		testkit.Equal(t, ok, true, "the place may post")
		testkit.Equal(t, time.Since(began), 3*time.Second, "time until the post")
	})
}
