package summary

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval = 30 * time.Minute

var errStore = errors.New("the store is unavailable")

// fakeStore keeps reports, and hands out the digests of the test.
type fakeStore struct {
	mu          sync.Mutex
	down        bool // every reply is lost
	unavailable bool
	reports     []received
	due         []*Digest
	claimed     map[string]*Digest // by the name of the claim
	doubt       Claimed            // the result of the next claim, if it has a digest
	ended       []ended
	called      testkit.Counts // of look and claim
	numbers     map[int64]bool
	endFails    int // the number of failing calls of EndDigest
}

// received is a report with its time.
type received struct {
	Report
	at time.Time
}

// ended is the end of an attempt.
type ended struct {
	DigestEnd
	channel string
	at      time.Time
}

func (s *fakeStore) CountDrops(_ context.Context, report Report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unavailable {
		return errStore
	}
	if !s.numbers[report.Number] {
		if s.numbers == nil {
			s.numbers = make(map[int64]bool)
		}
		s.numbers[report.Number] = true
		s.reports = append(s.reports, received{report, time.Now()})
	}
	if s.down {
		return errStore
	}
	return nil
}

func (s *fakeStore) DueDigests(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called.Add("look", 1)
	if s.unavailable {
		return nil, errStore
	}
	var channels []string
	for _, digest := range s.due {
		channels = append(channels, digest.name())
	}
	return channels, nil
}

func (s *fakeStore) ClaimDigest(_ context.Context, channel, claim string, _ LimitChanges) (Claimed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called.Add("claim", 1)
	if s.unavailable {
		return Claimed{}, errStore
	}
	if doubt := s.doubt; doubt.Digest != nil {
		s.doubt = Claimed{}
		return doubt, nil
	}
	digest, known := s.claimed[claim]
	if at := slices.IndexFunc(s.due, func(d *Digest) bool { return d.name() == channel }); !known && at >= 0 {
		digest = s.due[at]
		s.due = slices.Delete(s.due, at, at+1)
		if s.claimed == nil {
			s.claimed = make(map[string]*Digest)
		}
		s.claimed[claim] = digest
	}
	if s.down {
		return Claimed{}, errStore
	}
	return Claimed{Digest: digest}, nil
}

func (s *fakeStore) EndDigest(_ context.Context, channel, _ string, end DigestEnd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endFails > 0 {
		s.endFails--
		return errStore
	}
	s.ended = append(s.ended, ended{end, channel, time.Now()})
	return nil
}

// set changes or reads the store under its lock.
func (s *fakeStore) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *fakeStore) received() (reports []received) {
	s.set(func() { reports = slices.Clone(s.reports) })
	return reports
}

func (s *fakeStore) ends() (all []ended) {
	s.set(func() { all = slices.Clone(s.ended) })
	return all
}

// total returns the number of reported drops of a channel.
func (s *fakeStore) total(channel string) (total int64) {
	for _, report := range s.received() {
		if report.Channel == channel {
			total += report.Total()
		}
	}
	return total
}

// bench is a running reporter with its store, log and posts.
type bench struct {
	*testing.T
	*Reporter
	store *fakeStore
	log   *testkit.Log
	stop  func()

	mu       sync.Mutex
	sent     []Digest
	results  []string
	observed []Digest                                  // of these results
	send     func(ctx context.Context, d Digest) error // nil: it succeeds
	busy     map[string]bool
	paused   map[string]time.Duration // the last argument of Pause
	wait     time.Duration            // until the channels take a message
	moments  int                      // that were asked for
	changes  LimitChanges
	find     func(ctx context.Context) (posted, known bool, err error) // nil: nobody can know
	lookedAt []time.Time                                               // when the digests were claimed that find looked for
	mutes    bool                                                      // are in force
}

// startBench starts a reporter in a bubble of synctest. It runs until stop or the end of the test.
func startBench(t *testing.T, send func(ctx context.Context, d Digest) error, due ...*Digest) *bench {
	t.Helper()
	b := &bench{
		T: t, store: &fakeStore{due: due}, log: testkit.NewLog(t), send: send,
		busy: make(map[string]bool), paused: make(map[string]time.Duration),
	}
	b.Reporter = NewReporter(Options{
		Store: b.store, Interval: interval, ChannelOf: channelOf, Logger: b.log.Logger(), Send: b.post,
		LimitOf: func(category, _ string) string { return "of " + category },
		Opens:   func(string) time.Time { return time.Now().Add(time.Hour) },
		Busy: func(channel string) (busy bool) {
			b.set(func() { busy = b.busy[channel] })
			return busy
		},
		Wait: func(context.Context, string) (wait time.Duration, _ error) {
			b.set(func() { b.moments, wait = b.moments+1, b.wait })
			return wait, nil
		},
		Pause: func(_ context.Context, channel string, d time.Duration) { b.set(func() { b.paused[channel] = d }) },
		Changes: func(context.Context) (known LimitChanges) {
			b.set(func() { known = b.changes })
			return known
		},
		Find: func(ctx context.Context, _, _ string, claimed time.Time) (posted, known bool, err error) {
			b.set(func() { b.lookedAt = append(b.lookedAt, claimed) })
			if b.find == nil {
				return false, false, nil
			}
			return b.find(ctx)
		},
		Now: time.Now,
		Ended: func(*limits.Mute) (ended bool) {
			b.set(func() { ended = !b.mutes })
			return ended
		},
		Observe: func(result string, d Digest) {
			b.set(func() { b.results, b.observed = append(b.results, result), append(b.observed, d) })
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.Reporter.Run(ctx) })
	b.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(b.stop)
	return b
}

func (b *bench) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *bench) post(ctx context.Context, d Digest) error {
	b.set(func() { b.sent = append(b.sent, d) })
	if b.send == nil {
		return nil
	}
	return b.send(ctx, d)
}

func (b *bench) posts() (sent []Digest) {
	b.set(func() { sent = slices.Clone(b.sent) })
	return sent
}

func (b *bench) wantResults(want ...string) {
	b.Helper()
	b.set(func() { testkit.EqualSlices(b, b.results, want, "results") })
}

// wantEnds compares the recorded ends of posts in their order.
func (b *bench) wantEnds(want ...DigestEnd) {
	b.Helper()
	var got []DigestEnd
	for _, end := range b.store.ends() {
		got = append(got, end.DigestEnd)
	}
	testkit.EqualSlices(b, got, want, "recorded")
}

// manyDue are the digests of the channels #0, #1 and so on.
func manyDue(n int) []*Digest {
	var digests []*Digest
	for i := range n {
		digests = append(digests, due(fmt.Sprint("#", i), 0))
	}
	return digests
}

func due(channel string, failures int) *Digest {
	return &Digest{Channel: channel, Claim: "1", Dropped: 12, Failures: failures}
}
