package store

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var (
	historyFor  = goflag.Duration("history.duration", 4*time.Second, "how long TestHistory makes calls under faults")
	historySeed = goflag.String("history.seed", "", "a number that draws events, faults and pauses of TestHistory; drawn itself if it is empty")
)

const (
	historyClients   = 12
	historyRound     = 15 * time.Second        // each round begins without state, so a check replays few calls
	historyPause     = 15 * time.Millisecond   // between the calls of a client
	historyOutage    = 1500 * time.Millisecond // how old an admission without Redis may be
	historyRetry     = 100 * time.Millisecond  // a request that lost its reply has reached Redis within this time
	historyLease     = 2 * time.Second
	historyCheckedIn = time.Minute
)

// historyRules has a limit of each algorithm. Without a global limit, only categories of one first level share buckets. Every second round has
// a global limit too: then all calls are checked as one history.
// The count of the token bucket stays the same: its level after a change depends on the moment of each refund, which no answer has.
const historyRules = "log=%[1]d/1s,two=%[1]d/1s+%[2]d/3s,deep=%[2]d/2s,deep.*=%[1]d/1s,fixed=fixed:%[1]d/1s,counter=counter:%[1]d/1s," +
	"token=token:6/1s;burst=3,leaky=leaky:%[2]d/1s,inflight=inflight:%[1]d/2s,adopted=none"

var historyCategories = append(restorable, "fixed", "counter", "token", "leaky", "inflight")

// restorable are the categories whose admissions without Redis are restored. The in-memory store knows that of sliding logs alone.
var restorable = []string{"log", "two", "deep.a", "deep.b", "deep"}

// TestHistory lets clients call one Redis under faults, and records when each call began and ended. Porcupine then looks for an order of the
// calls in which the in-memory store gives the same answers.
func TestHistory(t *testing.T) {
	t.Parallel()
	// With everysec a killed Redis loses answered calls: it postpones the write of its append-only file while a sync is under way.
	server := servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	proxy := servertest.StartProxy(t, server.Addr)
	seed := rand.Uint64N(1_000_000)
	if *historySeed != "" {
		testkit.Must(fmt.Sscan(*historySeed, &seed))(t)
	}
	t.Logf("repeat these draws with -history.seed=%d", seed)
	var took time.Duration
	for round, left := 0, *historyFor; left > 0; round++ {
		h := &history{
			prefix: fmt.Sprintf("history%d", round), shared: round%2 == 1, seed: seed + uint64(round), began: time.Now(),
			recent: make(map[string][]Request),
		}
		lasts := min(left, historyRound, *historyFor/2) // short runs have both kinds of rounds too
		if h.shared {
			lasts = min(lasts, historyRound/3) // the check of one long history takes longer
		}
		left -= lasts
		h.run(t, server, proxy, lasts)
		took += h.check(t)
	}
	t.Logf("all rounds were checked in %v", took.Round(time.Millisecond))
}

// history records the calls to one deployment.
type history struct {
	prefix   string
	shared   bool   // all categories share a global limit
	seed     uint64 // of its draws
	settings Settings
	began    time.Time
	first    *Rules
	inForce  atomic.Pointer[Rules]

	mu     sync.Mutex
	calls  []*recordedCall
	recent map[string][]Request // by family

	reached *historyState // of calls that were checked before; nil: none
}

func (h *history) run(t *testing.T, server *servertest.Redis, proxy *servertest.Proxy, lasts time.Duration) {
	h.first = h.rules(t, 1)
	h.settings = Settings{Tree: h.first.Tree, Lease: historyLease, Retention: time.Minute}
	h.inForce.Store(h.first)
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var clients sync.WaitGroup
	for i := range historyClients {
		c := h.client(t, i, proxy)
		clients.Go(func() { c.run(ctx) })
	}
	operator := h.client(t, historyClients, proxy)
	revisions := []*Rules{h.rules(t, 2), h.rules(t, 3), h.rules(t, 4), h.rules(t, 5)}
	clients.Go(func() {
		for _, rules := range revisions {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lasts / 6):
				operator.adopt(rules)
			}
		}
	})
	draws := h.draws(historyClients + 1)
	for fault := 0; ctx.Err() == nil; fault++ {
		disturb(draws, server, proxy, fault)
	}
	clients.Wait()
}

// draws returns the random numbers of one goroutine.
func (h *history) draws(of int) *rand.Rand { return rand.New(rand.NewPCG(h.seed, uint64(of))) }

// rules alternates between two sets of limits.
func (h *history) rules(t *testing.T, revision uint64) *Rules {
	count, global := 4+3*int(revision%2), "none"
	if h.shared {
		global = fmt.Sprintf("%d/1s", 4*count)
	}
	tree := newTree(t, global, "none", fmt.Sprintf(historyRules, count, 2*count))
	return Compile(limits.Ruleset{Tree: tree, Position: limits.Position{Generation: 1, Revision: revision}})
}

// family names the categories that share buckets with a category; "" for all categories.
func (h *history) family(category string) string {
	family, _, _ := strings.Cut(category, ".")
	if h.shared && category != "" {
		return "all"
	}
	return family
}

func (h *history) client(t *testing.T, number int, proxy *servertest.Proxy) *historyClient {
	// A request without a timeout has either been executed when its connection breaks, or never is.
	client := newClient(t, redis.Options{Addr: proxy.Addr, MaxRetries: -1, PoolSize: 2, ReadTimeout: patience, WriteTimeout: patience})
	runner := script.NewRunner(script.Options{Client: client, Prefix: h.prefix, Timeout: patience, Scripting: script.Eval})
	return &historyClient{history: h, number: number, store: NewRedis(runner, h.settings), random: h.draws(number)}
}

// disturb makes one fault. No fault loses what Redis has answered.
func disturb(draws *rand.Rand, server *servertest.Redis, proxy *servertest.Proxy, fault int) {
	time.Sleep(100*time.Millisecond + below(draws, 300*time.Millisecond)) // the calm between two faults
	switch fault % 4 {
	case 0:
		proxy.CutAfterRequest("")
	case 1:
		proxy.Cut()
	case 2:
		server.Pause()
		time.Sleep(below(draws, 200*time.Millisecond)) // the length of the pause
		server.Resume()
	case 3:
		server.Kill()
		server.Restart()
	}
}

func below(draws *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(draws.Int64N(int64(most)))
}

// historyClient makes one call after the other.
type historyClient struct {
	*history

	number int
	store  *Redis
	random *rand.Rand
	events int
}

func (c *historyClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		category := historyCategories[c.random.IntN(len(historyCategories))]
		c.store.AdoptRules(c.inForce.Load())
		var leases []Lease
		if c.random.IntN(5) == 0 && slices.Contains(restorable, category) {
			leases = c.restore(category)
		} else {
			leases = c.decide(callDecide, category, c.draw(category))
		}
		time.Sleep(below(c.random, historyPause))
		switch {
		case len(leases) == 0:
		case c.random.IntN(20) == 0:
			c.outlive(category, leases)
		case c.random.IntN(4) > 0:
			c.finish(leases)
		case c.random.IntN(2) > 0:
			c.refund(leases)
		}
		time.Sleep(below(c.random, historyPause))
	}
}

// outlive lets leases lapse, has the events leased once more, and then returns slots as the former holder.
func (c *historyClient) outlive(category string, leases []Lease) {
	time.Sleep(historyLease + historyLease/10) // the lease is over
	var requests []Request
	for _, lease := range leases {
		requests = append(requests, lease.Request)
	}
	c.decide(callDecide, category, requests)
	c.refund(leases)
}

// draw returns one to three events, some of which other clients have asked about.
func (c *historyClient) draw(category string) (requests []Request) {
	family := c.family(category)
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 1 + c.random.IntN(3) {
		recent := c.recent[family]
		if len(recent) > 0 && c.random.IntN(3) == 0 {
			again := recent[c.random.IntN(len(recent))]
			if c.random.IntN(5) == 0 {
				again.Message.Sequence++ // another message with the ID
			}
			requests = append(requests, again)
			continue
		}
		r := c.newEvent(category)
		requests = append(requests, r)
		c.recent[family] = append(recent[max(0, len(recent)-20):], r)
	}
	return requests
}

func (c *historyClient) newEvent(category string) Request {
	c.events++
	r := request(fmt.Sprintf("%s %d-%d", category, c.number, c.events), category).withCost(1 + c.random.IntN(2))
	r.Message.Sequence = uint64(1 + 2*c.events)
	return r
}

// restore has Redis record admissions that this client made without Redis, of events that no other client knows. It returns the leases of
// those that are not delivered.
func (c *historyClient) restore(category string) (leases []Lease) {
	call := recordedCall{kind: callRestore, client: c.number, family: c.family(category), rules: c.store.Rules(), clock: time.Now()}
	became := Became(c.random.IntN(int(WasDelivered) + 1))
	for range 1 + c.random.IntN(3) {
		r, at := c.newEvent(category), call.clock.Add(-below(c.random, historyOutage))
		call.requests = append(call.requests, r)
		call.restored = append(call.restored, Admission{Lease: Lease{Request: r}, At: at, Became: became})
	}
	for again := true; again; again = c.random.IntN(4) == 0 { // repeating it is harmless
		call.began = time.Since(c.began)
		c.restoreOnce(&call)
		c.record(call)
	}
	if became == WasDelivered {
		return nil
	}
	for _, r := range call.requests {
		leases = append(leases, Lease{Request: r, End: call.result.At + historyLease.Microseconds(), rules: call.rules})
	}
	return leases
}

// restoreOnce makes a call until it has had an effect. Its time is in the records of the events, even if the reply was lost.
func (c *historyClient) restoreOnce(call *recordedCall) {
	earlier, tries := call.result.At, 0
	_ = c.until(func(ctx context.Context) (err error) {
		if tries++; tries > 1 {
			if call.result.At, err = c.restoredAt(ctx, call.restored[0]); err != nil || call.result.At > earlier {
				return err
			}
		}
		end, err := c.store.Restore(ctx, call.restored, call.clock)
		call.result.At = end - historyLease.Microseconds()
		return err
	})
	call.ended = time.Since(c.began)
}

// restoredAt returns when Redis recorded an admission; 0 if it has no record.
func (c *historyClient) restoredAt(ctx context.Context, a Admission) (at int64, err error) {
	set, kept := c.store.d.keys.leased, c.settings.Lease
	if a.Became == WasDelivered {
		set, kept = c.store.d.keys.done, c.settings.Retention
	}
	err = c.store.d.runner.Read(ctx, "reading a record", func(ctx context.Context, client redis.Cmdable) error {
		score, err := client.ZScore(ctx, set, a.Lease.Request.eventKey()).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		at = int64(score) - kept.Microseconds()
		return err
	})
	return at, err
}

// adopt puts limits in force with a decision by them. A try without a reply may have put them in force before the answered one.
func (c *historyClient) adopt(rules *Rules) {
	put := recordedCall{
		kind: callPut, client: c.number, family: c.family(""), began: time.Since(c.began), rules: rules, seen: c.inForce.Load().Position, unheard: true,
	}
	c.store.AdoptRules(rules)
	c.decide(callAdopt, "", []Request{request(fmt.Sprint("adopted ", rules.Position.Revision), "adopted")})
	put.ended = time.Since(c.began)
	c.record(put)
	c.inForce.Store(rules)
}

// decide makes a call until it is answered, and returns the leases.
func (c *historyClient) decide(kind kindOfCall, category string, requests []Request) (leases []Lease) {
	call := recordedCall{
		kind: kind, client: c.number, family: c.family(category), began: time.Since(c.began),
		rules: c.store.Rules(), nonce: NewNonce(), requests: requests,
	}
	tries, tried := 0, []*Rules{call.rules}
	try := func(ctx context.Context) (err error) {
		tries++
		call.result, err = c.store.DecideOnce(ctx, call.nonce, requests)
		return err
	}
	err := c.until(try)
	for ; errors.Is(err, script.ErrStale) && tries > 1; err = c.until(try) { // an earlier try may have had an effect
		time.Sleep(time.Millisecond) // until the operator has put the newer limits in force
		c.store.AdoptRules(c.inForce.Load())
		call.rules = c.store.Rules()
		tried = append(tried, call.rules)
	}
	call.ended = time.Since(c.began)
	if err != nil {
		call.kind = callStale
		c.record(call)
		return nil
	}
	earlier := make(map[int64]bool)
	for _, d := range call.result.Decisions {
		if d.Lease.End != 0 {
			leases = append(leases, d.Lease)
			if at := d.Lease.End - historyLease.Microseconds(); at != call.result.At {
				earlier[at] = true // a try without a reply has granted this lease
			}
		}
	}
	for at := range earlier {
		unheard := call
		unheard.result, unheard.unheard, unheard.tried = BatchResult{At: at}, true, tried
		c.record(unheard)
	}
	c.record(call)
	return leases
}

func (c *historyClient) finish(leases []Lease) {
	nonce := NewNonce()
	c.settle(recordedCall{kind: callFinish, leases: leases}, func(ctx context.Context) ([]bool, error) { return c.store.finishBatch(ctx, nonce, leases) })
}

func (c *historyClient) refund(leases []Lease) {
	c.settle(recordedCall{kind: callRefund, leases: leases}, func(ctx context.Context) ([]bool, error) { return c.store.Refund(ctx, leases) })
}

func (c *historyClient) settle(call recordedCall, do func(context.Context) ([]bool, error)) {
	call.client, call.rules, call.began = c.number, c.store.Rules(), time.Since(c.began)
	call.family = c.family(call.leases[0].Request.Category)
	tries := 0
	err := c.until(func(ctx context.Context) (err error) {
		tries++
		call.flags, err = do(ctx)
		return err
	})
	call.ended, call.unheard = time.Since(c.began), tries > 1 && call.kind == callRefund
	if err == nil {
		c.record(call)
	}
}

// until repeats a call until it is answered.
func (c *historyClient) until(do func(context.Context) error) (err error) {
	for {
		if err = do(context.Background()); err == nil || errors.Is(err, script.ErrStale) {
			return err
		}
		time.Sleep(historyRetry)
		c.catchUp()
	}
}

// catchUp returns when Redis has read what came before on other connections, which may take long on a busy machine. It answers requests of one
// connection in the order of their arrival, and first those of connections that were readable before. The first answer may be of a connection
// that was opened before the fault.
func (c *historyClient) catchUp() {
	for answers := 0; answers < 2; {
		err := c.store.d.runner.Read(context.Background(), "asking for an answer", func(ctx context.Context, client redis.Cmdable) error {
			return client.Ping(ctx).Err()
		})
		if err == nil {
			answers++
			continue
		}
		time.Sleep(historyRetry)
	}
}

func (c *historyClient) record(call recordedCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, &call)
}

// byFamily returns the calls of each family, with the adoptions, and numbers the calls with times.
func (h *history) byFamily() map[string][]*recordedCall {
	families := make(map[string][]*recordedCall)
	for _, category := range historyCategories {
		family := h.family(category)
		if families[family] != nil {
			continue
		}
		for _, call := range h.calls {
			if call.family == family || call.family == "" {
				copied := *call
				copied.family = family
				families[family] = append(families[family], &copied)
			}
		}
		var timed []*recordedCall
		for _, call := range families[family] {
			if call.result.At != 0 {
				timed = append(timed, call)
			}
		}
		slices.SortStableFunc(timed, func(a, b *recordedCall) int { return int(a.result.At - b.result.At) })
		for i, call := range timed {
			call.place = i + 1
		}
	}
	return families
}
