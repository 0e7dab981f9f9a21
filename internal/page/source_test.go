package page

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// scripted is a source with answers of the test.
type scripted struct {
	mu        sync.Mutex
	state     status.Status
	fails     error       // of Status and Decisions
	asked     int         // how often for the status
	following int         // readers of the decisions
	since     []time.Time // from which on they read
	followed  chan []journal.Entry
	answers   map[string]why.Answer // by text
	questions []question
	zone      string // of the reader who asked last
}

// question is what Why was asked.
type question struct {
	text string
	why.Question
}

func newScripted() *scripted {
	return &scripted{state: busy(), followed: make(chan []journal.Entry), answers: make(map[string]why.Answer)}
}

func (s *scripted) Status(context.Context) (status.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.state, s.fails
}

func (s *scripted) Why(ctx context.Context, text string, conditions why.Question) why.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone = ZoneOf(ctx).String()
	s.questions = append(s.questions, question{text, conditions})
	return s.answers[cmp.Or(text, conditions.Category)]
}

// Decisions sends batches that were stored one after the other, and none for a second time.
func (s *scripted) Decisions(ctx context.Context, since time.Time) (<-chan journal.Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return nil, s.fails
	}
	s.following++
	s.since = append(s.since, since)
	decisions := make(chan journal.Batch)
	go func() {
		defer close(decisions)
		for {
			select {
			case entries := <-s.followed:
				select {
				case decisions <- journal.Batch{Entries: entries, Stored: time.Now()}:
				case <-ctx.Done():
				}
			case <-ctx.Done():
				s.mu.Lock()
				s.following--
				s.mu.Unlock()
				return
			}
		}
	}()
	return decisions, nil
}

// change alters the state of the source. The page may still read the limits that it was given before.
func (s *scripted) change(alter func(*status.Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Limits = slices.Clone(s.state.Limits)
	alter(&s.state)
}

func (s *scripted) counts() (asked, following int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.following
}

// busy is a state with an entry of each kind.
func busy() status.Status {
	now := time.Now()
	opens := now.Add(90 * time.Second)
	s := status.Status{
		At: now, Revision: "1:7",
		Workers: []status.Worker{
			{Instance: "a", Name: "host-a", Version: "v1.2.3", Started: now, Ready: true, InHand: 4, Revision: "1:7", PerMinute: status.Rates{Sent: 12, Dropped: 1234}},
			{Instance: "b", Name: "host-b", Version: "v1.2.3", Started: now, NotReady: "redis is unavailable", Degraded: "local", Revision: "1:7",
				Journal: &journal.Health{Error: "no responders", Complete: now.Add(-time.Minute)}},
		},
		Mismatches: []status.Mismatch{{Variable: "NOTIFIER_GLOBAL_LIMIT", Values: map[string][]string{"100/30m": {"host-a"}, "90/30m": {"host-b"}}}},
		Backlog:    status.Backlog{Waiting: 4321, Unacked: 17, InRoom: map[string]int64{"slot": 5, "channel": 1200}, Stream: 4338, Bytes: 3 << 20, Capacity: 1 << 30},
		Redis:      status.Redis{Role: "primary", Version: "7.2.4", Replicas: 1, Memory: 5 << 20, SlowestCall: 3 * time.Millisecond},
		NATS:       status.NATS{Server: "nats-1", Version: "2.12.0", Replicas: 3, Lagging: 1, Bytes: 7 << 20},
		Limits: []status.Limit{
			{Use: limits.Use{Level: "global", Limit: "100/30m", Used: 60, Size: 100}},
			{Use: limits.Use{Level: "category", Path: "payments", Limit: "10/30m", Used: 10, Size: 10, Next: &opens}, PerMinute: 1180},
			{Use: limits.Use{Level: "payments.*", Path: "payments.refunds", Limit: "5/30m", Used: 2, Size: 5}},
			{Use: limits.Use{Level: "category", Path: "search", Limit: "10/30m", Used: 7, Size: 10}},
		},
		Suppressed:  []status.Suppressed{{Category: "payments", Level: "category", Count: 1204, Titles: []string{"card declined"}, Since: now.Add(-time.Hour), Until: opens}},
		Channels:    []status.Channel{{Name: "#payments", PausedUntil: opens, Queue: new(int64(31)), PerMinute: 58, Rate: 1}, {Name: "#search", Queue: new(int64(0)), Rate: 1, PacedUntil: now.Add(-time.Second), Held: 8}, {Name: "#infra", PacedUntil: opens}, {Name: "#idle", Queue: new(int64(0))}},
		Budgets:     []status.Budget{{Name: "workspace", Limit: "5/1s", Used: 4, Size: 5, Waiting: 12, PausedUntil: opens}},
		Changes:     []status.Change{{Path: "debug", Limit: "0/1h", By: "alice", At: now.Add(-time.Hour), Until: opens}},
		DeadLetters: []status.DeadLetter{{Reason: "malformed", Count: 3}},
	}
	for i := range 60 {
		s.Minutes = append(s.Minutes, status.Minute{At: now.Add(time.Duration(i-60) * time.Minute), Sent: int64(i), Dropped: int64(10 * i), Delayed: 2})
	}
	return s
}

// dropped makes n decisions, numbered from first.
func dropped(first, n int) []journal.Entry {
	var entries []journal.Entry
	for i := range n {
		entries = append(entries, journal.Entry{
			ID: fmt.Sprintf("evt-%d", first+i), Category: "payments.refunds", Title: fmt.Sprintf("card %d declined", first+i),
			Result: journal.Dropped, Level: "category", Limit: "10/30m", Used: 10, Size: 10, Decided: time.Now(),
		})
	}
	return entries
}

// served is a running page and its client.
type served struct {
	t      testing.TB
	source *scripted
	log    *testkit.Log
	url    string
	stop   func()
}

func serve(t testing.TB, source *scripted, address, token string) *served {
	t.Helper()
	return serveBehind(t, source, address, token, func(page http.Handler) http.Handler { return page })
}

// serveBehind is serve with something in front of the page.
func serveBehind(t testing.TB, source *scripted, address, token string, front func(page http.Handler) http.Handler) *served {
	t.Helper()
	log := testkit.NewLog(t)
	server := testkit.Must(Listen(t.Context(), address, Options{Source: source, Token: token, Logger: log.Logger()}))(t)
	server.HTTP.Handler = front(server.HTTP.Handler)
	done := make(chan error, 1)
	go func() { done <- server.Serve() }()
	stop := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("stopping: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	t.Cleanup(stop)
	return &served{t, source, log, "http://" + server.Addr(), stop}
}

func start(t testing.TB) *served { return serve(t, newScripted(), "127.0.0.1:0", "") }

// answer is the answer to a request.
type answer struct {
	code    int
	header  http.Header
	cookies []*http.Cookie
	body    string
}

// do sends a request with headers: name, value, … It follows no redirect.
func (s *served) do(method, path string, headers ...string) answer {
	s.t.Helper()
	return s.send(s.request(method, path, headers...))
}

// doAt sends a request that names a host.
func (s *served) doAt(host, path string) answer {
	s.t.Helper()
	request := s.request(http.MethodGet, path)
	request.Host = host
	return s.send(request)
}

func (s *served) request(method, path string, headers ...string) *http.Request {
	s.t.Helper()
	request := testkit.Must(http.NewRequestWithContext(testkit.Context(s.t), method, s.url+path, nil))(s.t)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return request
}

func (s *served) send(request *http.Request) answer {
	s.t.Helper()
	response, err := http.DefaultTransport.RoundTrip(request)
	testkit.NoError(s.t, err)
	defer func() { _ = response.Body.Close() }()
	body := testkit.Must(io.ReadAll(response.Body))(s.t)
	return answer{response.StatusCode, response.Header, response.Cookies(), string(body)}
}
