package summary

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

// liveInterval is between the summaries of these tests, which run in real time.
const liveInterval = 2 * time.Second

// fleet is several instances with one Redis.
type fleet struct {
	*testing.T
	addr string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each summary
	sent    []post
}

// post is a summary, and when it was posted.
type post struct {
	Summary
	at time.Time
}

// instance is one of them, that may be killed: nothing that it does has an effect any more.
type instance struct {
	Store
	*Keeper
	killed atomic.Bool
	told   chan struct{} // closed when the first report is counted
	once   sync.Once
}

var errKilled = errors.New("killed")

func (i *instance) CountDrops(ctx context.Context, interval time.Duration, report throttle.DropReport) (int64, error) {
	if i.killed.Load() {
		return 0, errKilled
	}
	defer i.once.Do(func() { close(i.told) })
	return i.Store.CountDrops(ctx, interval, report)
}

func (i *instance) ClaimSummaries(ctx context.Context, interval, lease time.Duration, limit int) ([]throttle.DropSummary, error) {
	if i.killed.Load() {
		return nil, errKilled
	}
	return i.Store.ClaimSummaries(ctx, interval, lease, limit)
}

func newFleet(t *testing.T) *fleet {
	return &fleet{T: t, addr: servertest.StartRedis(t).Addr, changed: make(chan struct{})}
}

// start starts an instance, which runs until the test ends.
func (f *fleet) start() *instance {
	f.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: f.addr, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	tree, err := throttle.NewTree(throttle.Plan{})
	if err != nil {
		f.Fatal(err)
	}
	options := throttle.RedisOptions{Client: client, Prefix: "summaries", Timeout: patience}
	i := &instance{told: make(chan struct{}), Store: throttle.NewRedis(options, throttle.Settings{Tree: tree, Retention: time.Hour})}
	i.Keeper = NewKeeper(Options{Store: i, Interval: liveInterval, Logger: new(logBuffer).logger(), Send: f.send})
	ctx, cancel := context.WithCancel(f.Context())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	f.Cleanup(func() {
		cancel()
		running.Wait()
		_ = client.Close()
	})
	return i
}

func (f *fleet) send(_ context.Context, s Summary) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, post{s, time.Now()})
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// until waits for summaries, which the condition is given.
func (f *fleet) until(what string, condition func(sent []post) bool) []post {
	f.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		sent, changed := f.sent, f.changed
		f.mu.Unlock()
		if condition(sent) {
			return sent
		}
		select {
		case <-changed:
		case <-deadline:
			f.Fatalf("wait for %s: nothing after %v, of %+v", what, patience, sent)
		}
	}
}

// TestFleet has three instances drop at once: the summaries tell of each drop once, and come at their intervals.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	var (
		mu     sync.Mutex
		counts = make(map[string]int64)
		work   sync.WaitGroup
	)
	for range 3 {
		i := f.start()
		work.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for n := range 80 {
				category := fmt.Sprint("c", n%4)
				i.Counter().Add(drops(category, n))
				mu.Lock()
				counts[category] += int64(n)
				mu.Unlock()
				<-tick.C
			}
		})
	}
	work.Wait()
	sent := f.until("all counts", func(sent []post) bool {
		told := make(map[string]int64)
		for _, s := range sent {
			told[s.Path] += s.Dropped
		}
		for category, count := range counts {
			if told[category] < count {
				return false
			}
		}
		return true
	})
	told, last := make(map[string]int64), make(map[string]time.Time)
	for _, s := range sent {
		told[s.Path] += s.Dropped
		if since := s.at.Sub(last[s.Path]); since < liveInterval*9/10 { // a post may be late
			t.Errorf("%s: a summary %v after the one before", s.Path, since)
		}
		if s.AtLeast || s.Limits[0].Dropped != s.Dropped || s.Titles[0].Count != s.Dropped || s.Last.Before(s.First) {
			t.Errorf("summary %+v", s.Summary)
		}
		last[s.Path] = s.at
	}
	for category, count := range counts {
		if told[category] != count {
			t.Errorf("%s: the summaries tell of %d drops, want %d", category, told[category], count)
		}
	}
}

// TestInstanceIsKilled has one of two killed with drops that it has not told. The summary knows.
func TestInstanceIsKilled(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	survivor, victim := f.start(), f.start()
	survivor.Counter().Add(drops("a", 1))
	victim.Counter().Add(drops("a", 10))
	<-victim.told
	victim.killed.Store(true)
	victim.Counter().Add(drops("a", 100))
	sent := f.until("the summary", func(sent []post) bool { return len(sent) > 0 })
	if s := sent[0]; s.Dropped != 11 || !s.AtLeast {
		t.Errorf("%d drops, at least: %v; want at least 11", s.Dropped, s.AtLeast)
	}
}
