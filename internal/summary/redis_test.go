package summary

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

// liveInterval is between the digests of these tests, which run in real time.
const liveInterval = 2 * time.Second

// fleet is several instances with one Redis.
type fleet struct {
	*testing.T
	addr string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each digest
	sent    []post
}

// post is a digest, and when it was posted.
type post struct {
	Digest
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

func (i *instance) CountDrops(ctx context.Context, report Report) error {
	if i.killed.Load() {
		return errKilled
	}
	defer i.once.Do(func() { close(i.told) })
	return i.Store.CountDrops(ctx, report)
}

func (i *instance) DueDigests(ctx context.Context) ([]string, error) {
	if i.killed.Load() {
		return nil, errKilled
	}
	return i.Store.DueDigests(ctx)
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
	options := script.Options{Client: client, Prefix: "summaries", Timeout: patience}
	i := &instance{told: make(chan struct{}), Store: NewRedis(script.NewRunner(options), liveInterval, time.Hour)}
	o := defaultOptions()
	o.Store, o.Interval, o.Logger, o.Send = i, liveInterval, slog.New(slog.DiscardHandler), f.send
	i.Keeper = NewKeeper(o)
	stop := runKeeper(f.T, i.Keeper)
	f.Cleanup(func() {
		stop()
		_ = client.Close()
	})
	return i
}

func (f *fleet) send(_ context.Context, d Digest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, post{d, time.Now()})
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// until waits for digests, which the condition is given.
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

// totals adds up the drops that digests tell of, by channel.
func totals(sent []post) map[string]int64 {
	total := make(map[string]int64)
	for _, s := range sent {
		total[s.Channel] += s.Dropped
	}
	return total
}

// TestFleet has three instances drop at once: the digests tell of each drop once, and come at their intervals.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	want := make(map[string]int64)
	var work sync.WaitGroup
	for range 3 {
		i := f.start()
		for n := range 80 {
			want[channelOf(fleetCategory(n))] += int64(n)
		}
		work.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for n := range 80 {
				i.Counter().Add(drops(fleetCategory(n), n))
				<-tick.C
			}
		})
	}
	work.Wait()
	sent := f.until("all counts", func(sent []post) bool {
		got := totals(sent)
		return got["#a"] >= want["#a"] && got["#b"] >= want["#b"] && got["#alerts"] >= want["#alerts"]
	})
	testkit.EqualMaps(t, totals(sent), want, "drops that the digests tell of")
	last := make(map[string]time.Time)
	for _, s := range sent {
		if since := s.at.Sub(last[s.Channel]); since < liveInterval*9/10 { // a post may be late
			t.Errorf("%s: a digest %v after the one before", s.Channel, since)
		}
		var sum int64
		for _, path := range s.Paths {
			sum += path.Dropped
			if path.Reasons[0].Dropped != path.Dropped || path.Title != "title" {
				t.Errorf("path %+v", path)
			}
		}
		if s.AtLeast || s.Doubtful != 0 || sum != s.Dropped || s.MoreDropped != 0 || s.Last.Before(s.First) {
			t.Errorf("digest %+v", s.Digest)
		}
		last[s.Channel] = s.at
	}
}

// fleetCategory is the category of an instance's n-th drops.
func fleetCategory(n int) string { return []string{"a", "a.x", "b", "c"}[n%4] }

// TestInstanceIsKilled has one of two killed with drops that it has not told. The digest knows.
func TestInstanceIsKilled(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	survivor, victim := f.start(), f.start()
	survivor.Counter().Add(drops("a", 1))
	victim.Counter().Add(drops("a", 10))
	<-victim.told
	victim.killed.Store(true)
	victim.Counter().Add(drops("a", 100))
	sent := f.until("the digest", func(sent []post) bool { return len(sent) > 0 })
	if s := sent[0]; s.Dropped != 11 || !s.AtLeast {
		t.Errorf("%d drops, at least: %v; want at least 11", s.Dropped, s.AtLeast)
	}
}
