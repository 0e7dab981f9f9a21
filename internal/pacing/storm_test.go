package pacing

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// usual are the budgets of the default settings, stretched as internal/setup does.
var usual = Budgets{
	Channel:   Pace{1025 * time.Millisecond, 1},
	Workspace: Window{5, 1025 * time.Millisecond},
	Updates:   Window{50, 61500 * time.Millisecond},
	LookUps:   Window{50, 61500 * time.Millisecond},
}

// counting counts requests as Slack does.
type counting struct {
	mu        sync.Mutex
	posts     []time.Time
	byChannel map[string][]time.Time
	updates   []time.Time
	latest    time.Duration // the longest time between a slot and its request
}

func (c *counting) post(channel string, slot time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.latest = max(c.latest, now.Sub(slot))
	c.posts = append(c.posts, now)
	if c.byChannel == nil {
		c.byChannel = make(map[string][]time.Time)
	}
	c.byChannel[channel] = append(c.byChannel[channel], now)
}

// counts returns the posts to all channels, and to one of them.
func (c *counting) counts(channel string) (all, one int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.posts), len(c.byChannel[channel])
}

// wantAtMost counts the requests in each window. A request that is later than its slot shortens the windows before it.
func (c *counting) wantAtMost(t *testing.T, what string, requests []time.Time, most int, window time.Duration) {
	t.Helper()
	slices.SortFunc(requests, time.Time.Compare)
	for i := most; i < len(requests); i++ {
		took := requests[i].Sub(requests[i-most])
		testkit.Require(t, took >= window-c.latest, "%s: %d requests within %v, %d are allowed in %v", what, most+1, took, most, window)
	}
}

// workers are instances that share their budgets.
type workers struct {
	pacers []*Pacer
	server *counting
	paused time.Duration // what the server answers to the first post to #0; 0: it takes the post
}

// alone are workers that share a model in memory.
func alone(b Budgets, count int) *workers {
	w, together := &workers{server: &counting{}}, newLocal(b)
	for i := range count {
		p := New(Options{Instance: fmt.Sprint(i), Budgets: b, Available: func() bool { return false }, Logger: slog.New(slog.DiscardHandler)})
		p.local = together
		w.pacers = append(w.pacers, p)
	}
	return w
}

// deliver has a worker post the messages of a channel one by one, until ctx ends.
func (w *workers) deliver(ctx context.Context, worker int, channel string, messages int) (left int) {
	p, stored := w.pacers[worker], time.Now()
	for left = messages; left > 0; left-- {
		ask := Ask{Channel: channel, Urgency: Ordinary, Since: stored, MaxWait: time.Hour}
		var slot time.Time
		for slot.IsZero() {
			r := p.Reserve(ctx, ask)
			due := time.Now().Add(r.Wait)
			select {
			case <-time.After(r.Wait):
			case <-ctx.Done():
				return left
			}
			if r.OK && p.Paused(channel) == 0 {
				slot = due
			}
		}
		w.server.post(channel, slot)
		if w.paused > 0 && channel == "#0" {
			p.Pause(ctx, channel, w.paused)
			return left
		}
	}
	return 0
}

// storm has each channel get messages, each by another worker. It returns when each channel had its last message.
func (w *workers) storm(ctx context.Context, channels, messages int, killed <-chan struct{}) (done []time.Duration) {
	began := time.Now()
	doomed, kill := context.WithCancel(ctx)
	var posting sync.WaitGroup
	for c := range channels {
		for m := range messages {
			worker := (c + m) % len(w.pacers)
			posting.Go(func() {
				channel := fmt.Sprint("#", c)
				if worker > 0 || killed == nil {
					w.deliver(ctx, worker, channel, 1)
					return
				}
				if left := w.deliver(doomed, worker, channel, 1); left > 0 {
					time.Sleep(time.Second) // until another worker gets the messages of the killed one
					w.deliver(ctx, 1+(c+m)%(len(w.pacers)-1), channel, left)
				}
			})
		}
	}
	if killed != nil {
		<-killed
	}
	kill()
	posting.Wait()
	for _, posts := range w.server.byChannel {
		done = append(done, slices.MaxFunc(posts, time.Time.Compare).Sub(began))
	}
	return done
}

// wantPaced compares what the server counted with the budgets, and the throughput with the budget of the workspace. The rate is the posts
// that the settings allow in a second.
func (w *workers) wantPaced(t *testing.T, done []time.Duration, posts, rate int) {
	t.Helper()
	testkit.Equal(t, len(w.server.posts), posts, "posts")
	w.server.wantAtMost(t, "the workspace", w.server.posts, rate, time.Second)
	w.server.wantAtMost(t, "the workspace", w.server.posts, 60*rate, time.Minute)
	for channel, of := range w.server.byChannel {
		w.server.wantAtMost(t, channel, of, 1, time.Second)
	}
	longest, sum := time.Duration(0), time.Duration(0)
	for _, d := range done {
		longest, sum = max(longest, d), sum+d
	}
	mean := sum / time.Duration(len(done))
	used := float64(posts) / float64(rate) / longest.Seconds()
	t.Logf("%d posts in %v, %.3f of the budget; a channel was done after %v on average", posts, longest, used, mean)
	testkit.Check(t, used >= 0.95, "the posts used %.3f of the budget of the workspace, want 0.95", used)
	testkit.AtMost(t, longest, mean*3/2, "the time of the slowest channel, with a mean of %v", mean)
}

func TestStorm(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]bool{"calm": false, "a worker is killed": true}, func(t *testing.T, kills bool) {
		synctest.Test(t, func(t *testing.T) {
			w := alone(usual, 4)
			var killed chan struct{}
			if kills {
				killed = make(chan struct{})
				time.AfterFunc(20*time.Second, func() { close(killed) })
			}
			w.wantPaced(t, w.storm(t.Context(), 200, 2, killed), 400, 5)
		})
	})
}

// TestShares has one channel have many more messages than the others. It gets no more posts than each of them, while they wait.
func TestShares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := alone(usual, 4)
		const others, each = 20, 10
		ctx, stop := context.WithCancel(t.Context())
		var flood, posting sync.WaitGroup
		for worker := range w.pacers {
			flood.Go(func() { w.deliver(ctx, worker, "#flood", 10_000) })
		}
		for c := range others {
			posting.Go(func() { w.deliver(ctx, c%len(w.pacers), fmt.Sprint("#", c), each) })
		}
		posting.Wait()
		before, ofFlood := w.server.counts("#flood")
		began := time.Now()
		testkit.AtMost(t, ofFlood, each+2, "posts of the channel with many messages")
		least := each - 2
		testkit.Check(t, ofFlood >= least, "%d posts of the channel with many messages, want its share of %d", ofFlood, least)
		time.Sleep(time.Minute) // alone, the channel has its pace
		stop()
		flood.Wait()
		all, _ := w.server.counts("#flood")
		got, want := all-before, int(time.Since(began)/usual.Channel.Interval)-1
		testkit.Check(t, got >= want, "%d posts of a channel alone, want %d", got, want)
	})
}

// TestDigestInLine has events of other channels use up the budget of the workspace. A digest gets its turn, as a channel does, but not
// while events wait for its own channel.
func TestDigestInLine(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]int{"no event of its channel": 0, "with events of its channel": 8}, func(t *testing.T, own int) {
		synctest.Test(t, func(t *testing.T) {
			w := alone(usual, 4)
			const others = 20
			ctx, stop := context.WithCancel(t.Context())
			var posting sync.WaitGroup
			for c := range others {
				posting.Go(func() { w.deliver(ctx, c%len(w.pacers), fmt.Sprint("#", c), 10_000) })
			}
			time.Sleep(time.Minute) // the line is full
			posting.Go(func() { w.deliver(ctx, 0, "#digest", own) })
			began, posted := time.Now(), make(chan time.Time, len(w.pacers))
			for _, p := range w.pacers {
				posting.Go(func() {
					for ctx.Err() == nil {
						time.Sleep(10 * time.Millisecond) // more often than the events of its channel ask
						if wait, err := p.AwaitDigest(ctx, "#digest"); wait == 0 && err == nil {
							posted <- time.Now()
							return
						}
					}
				})
			}
			took := (<-posted).Sub(began)
			stop()
			posting.Wait()
			_, events := w.server.counts("#digest")
			testkit.Equal(t, events, own, "events of its channel before the digest")
			turn := time.Duration(others+1) * time.Second / 5
			testkit.AtMost(t, took, time.Duration(own+1)*2*turn, "the time until the digest is posted")
		})
	})
}

// TestPausedChannelDelaysNoOther compares the posts of the other channels with and without a pause.
func TestPausedChannelDelaysNoOther(t *testing.T) {
	t.Parallel()
	run := func(paused time.Duration) (posts []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			w := alone(usual, 4)
			w.paused = paused
			began := time.Now()
			ctx, stop := context.WithCancel(t.Context())
			var others, first sync.WaitGroup
			for worker := range w.pacers {
				first.Go(func() { w.deliver(ctx, worker, "#0", 50) })
			}
			synctest.Wait() // in both runs #0 has the first post
			for c := range 30 {
				others.Go(func() { w.deliver(ctx, c%len(w.pacers), fmt.Sprint("#", c+1), 5) })
			}
			others.Wait()
			stop()
			first.Wait()
			for _, at := range w.server.posts {
				posts = append(posts, at.Sub(began))
			}
			for _, at := range w.server.byChannel["#0"] {
				i := slices.Index(posts, at.Sub(began))
				posts = slices.Delete(posts, i, i+1)
			}
		})
		return posts
	}
	undisturbed, disturbed := run(0), run(time.Hour)
	for i, at := range undisturbed {
		testkit.AtMost(t, disturbed[i], at+50*time.Millisecond, "the time of post %d beside a paused channel, %v without the pause", i, at)
	}
}

// TestUpdatesInEveryMinute has four workers update messages as fast as they may.
func TestUpdatesInEveryMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := alone(usual, 4)
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		var updating sync.WaitGroup
		for _, p := range w.pacers {
			updating.Go(func() {
				for ctx.Err() == nil {
					r := p.BeginUpdate(ctx, next(time.Hour))
					time.Sleep(r.Wait)
					w.server.mu.Lock()
					w.server.updates = append(w.server.updates, time.Now())
					w.server.mu.Unlock()
				}
			})
		}
		updating.Wait()
		w.server.wantAtMost(t, "updates", w.server.updates, 50, time.Minute)
		got := len(w.server.updates)
		testkit.Check(t, got >= 4*50, "%d updates in five minutes, want at least %d", got, 4*50)
	})
}
