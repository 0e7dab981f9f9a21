package summary

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval = 30 * time.Minute

var errStore = errors.New("the store is away")

// fakeStore keeps what it is told, and has claimed what the test wants.
type fakeStore struct {
	mu       sync.Mutex
	down     bool // it does what it is asked, and nobody hears of it
	away     bool
	reports  []told
	due      []throttle.DropSummary
	ended    []ended
	leftOut  int64
	claimed  int // calls
	numbers  map[int64]bool
	endFails int // so many times
}

// told is a report, and when it came.
type told struct {
	throttle.DropReport
	at time.Time
}

// ended is the end of an attempt.
type ended struct {
	category string
	again    time.Duration
	at       time.Time
}

func (s *fakeStore) CountDrops(_ context.Context, _ time.Duration, report throttle.DropReport) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return 0, errStore
	}
	if !s.numbers[report.Number] {
		if s.numbers == nil {
			s.numbers = make(map[int64]bool)
		}
		s.numbers[report.Number] = true
		s.reports = append(s.reports, told{report, time.Now()})
	}
	if s.down {
		return 0, errStore
	}
	return s.leftOut, nil
}

func (s *fakeStore) ClaimSummaries(_ context.Context, _, _ time.Duration, limit int) ([]throttle.DropSummary, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claimed++
	if s.away || s.down {
		return nil, errStore
	}
	claimed := s.due[:min(limit, len(s.due))]
	s.due = s.due[len(claimed):]
	return claimed, nil
}

func (s *fakeStore) EndSummary(_ context.Context, _ time.Duration, d throttle.DropSummary, again time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endFails > 0 {
		s.endFails--
		return errStore
	}
	s.ended = append(s.ended, ended{d.Category, again, time.Now()})
	return nil
}

func (s *fakeStore) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *fakeStore) told() []told {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reports)
}

func (s *fakeStore) ends() []ended {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ended)
}

func (s *fakeStore) claims() (calls, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimed, len(s.due)
}

// total is how many drops of a category it was told of.
func (s *fakeStore) total(category string) (total int64) {
	for _, report := range s.told() {
		for _, d := range report.Drops {
			if d.Category == category {
				total += d.Total
			}
		}
	}
	return total
}

// bench is a keeper at work, with its store, log and posts.
type bench struct {
	*testing.T
	*Keeper
	store *fakeStore
	log   *logBuffer
	stop  func() // returns when the keeper has stopped

	mu      sync.Mutex
	sent    []Summary
	results []string
	send    func(ctx context.Context, s Summary) error // nil: it succeeds
}

// startBench starts a keeper, in a bubble of synctest.
func startBench(t *testing.T, send func(ctx context.Context, s Summary) error, due ...throttle.DropSummary) *bench {
	t.Helper()
	b := &bench{T: t, store: &fakeStore{due: due}, log: &logBuffer{}, send: send}
	b.Keeper = NewKeeper(Options{
		Store: b.store, Interval: interval, Logger: b.log.logger(), Send: b.post,
		Describe: func(category, level string) string { return level + " of " + category },
		Opens:    func(string) time.Time { return time.Now().Add(time.Hour) },
		Observe: func(result string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.results = append(b.results, result)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.Keeper.Run(ctx) })
	b.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(b.stop)
	return b
}

func (b *bench) post(ctx context.Context, s Summary) error {
	b.mu.Lock()
	b.sent = append(b.sent, s)
	b.mu.Unlock()
	if b.send == nil {
		return nil
	}
	return b.send(ctx, s)
}

func (b *bench) posts() []Summary {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sent)
}

func (b *bench) wantResults(want ...string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.results, want) {
		b.Errorf("results %q, want %q", b.results, want)
	}
}

// due is a summary of a category as the store gives it.
func due(category string, attempt int) throttle.DropSummary {
	return throttle.DropSummary{Drops: throttle.Drops{Category: category, Total: 12}, Claim: 1, Attempt: attempt}
}

// logBuffer is a log that can be searched.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count is how many lines contain the text.
func (l *logBuffer) count(text string) int {
	return strings.Count(l.String(), text)
}
