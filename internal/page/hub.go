package page

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/status"
)

const (
	askEvery     = time.Second     // shortest interval, for any number of watchers
	statusWithin = 5 * time.Second // less than the script's timeout for a message
	maxDecisions = 20              // shown at once, so that the parts below stay near
	recent       = time.Minute     // how far back decisions are read that nobody watched
)

// hub reads the source on behalf of all watchers.
type hub struct {
	source   Source
	renderer *renderer
	state    *oplog.Condition // whether the source reports the state
	closed   context.Context  // ends with the server
	close    func()           // ends the goroutines and waits for them

	asking sync.Mutex // held during a request to the source

	mu       sync.Mutex
	watchers map[*watcher]bool
	stop     context.CancelFunc // ends the goroutines; nil: there is no watcher
	running  sync.WaitGroup
	newest   *snapshot // nil: there was no request yet

	decisions feed
}

// feed keeps the newest decisions.
type feed struct {
	renderer *renderer

	mu      sync.Mutex
	last    []decision
	number  int       // of the newest decision
	stored  time.Time // of the newest decision, by the journal's clock
	stopped time.Time // when the decisions were followed last; zero: never
	silent  string    // why no decisions arrive
}

// watcher is one open page.
type watcher struct{ wake chan struct{} }

// decision is one of the last decisions, rendered.
type decision struct {
	number int
	html   string
}

// decided is the data of the row of a decision.
type decided struct {
	journal.Entry
	Stored time.Time
}

// missed is the data of the row about a time whose decisions were not read: nobody watched, or the journal could not be read.
type missed struct{ From, Stored time.Time }

func newHub(source Source, logger *slog.Logger) *hub {
	closed, cancel := context.WithCancel(context.Background())
	renderer := &renderer{logger: logger}
	h := &hub{
		source: source, renderer: renderer, closed: closed, watchers: make(map[*watcher]bool), decisions: feed{renderer: renderer},
		state: oplog.NewCondition(logger, "cannot read the state for the page", "reading the state for the page again"),
	}
	h.close = func() {
		h.mu.Lock()
		cancel() // from now on, join returns nil
		h.mu.Unlock()
		h.running.Wait()
	}
	return h
}

// join adds a watcher. The first watcher starts the goroutines. join returns nil if there are too many watchers.
func (h *hub) join() *watcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) >= maxWatchers || h.closed.Err() != nil {
		return nil
	}
	w := &watcher{wake: make(chan struct{}, 1)}
	h.watchers[w] = true
	if h.stop == nil {
		var ctx context.Context
		ctx, h.stop = context.WithCancel(h.closed)
		h.running.Go(func() { h.ask(ctx) })
		h.running.Go(func() { h.follow(ctx) })
	}
	return w
}

// leave removes a watcher. The last watcher ends the goroutines.
func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
	if len(h.watchers) == 0 {
		h.stop()
		h.stop = nil
	}
}

// ask requests the status every second and wakes the watchers.
func (h *hub) ask(ctx context.Context) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		h.current()
		h.mu.Lock()
		for w := range h.watchers {
			select {
			case w.wake <- struct{}{}:
			default: // it has not handled the last wake yet
			}
		}
		h.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// current returns the newest snapshot. If it is too old and was requested before the call, current requests a new one.
func (h *hub) current() *snapshot {
	called := time.Now()
	h.asking.Lock()
	defer h.asking.Unlock()
	newest := h.latest()
	// The ticker may come a little early.
	if newest != nil && (newest.asked.After(called) || time.Since(newest.asked) < askEvery*9/10) {
		return newest
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(h.closed, statusWithin)
	defer cancel()
	s, err := h.source.Status(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		s = status.Status{Unknown: []string{status.Everything + ": " + err.Error()}}
	}
	h.state.Note(err)
	if silent := h.decisions.whySilent(); silent != "" {
		s.Unknown = append(slices.Clip(s.Unknown), silent)
	}
	h.newest = h.renderer.snapshot(s, asked)
	return h.newest
}

// latest returns the newest snapshot without a request. It is not nil for a watcher that was woken.
func (h *hub) latest() *snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// follow feeds the decisions. It retries when the source cannot go on.
func (h *hub) follow(ctx context.Context) {
	for {
		since := h.decisions.since(time.Now())
		decisions, err := h.source.Decisions(ctx, since)
		switch {
		case ctx.Err() != nil: // nobody watches any more
			return
		case err != nil:
			h.decisions.setSilent("the last decisions cannot be read: " + err.Error())
		default:
			h.decisions.resume(since)
			for batch := range decisions {
				h.decisions.add(batch)
			}
			h.decisions.stop(time.Now())
		}
		if !await.For(ctx, 5*askEvery) {
			return
		}
	}
}

// since returns the time from which decisions are to be read: behind the newest one, but not long ago.
func (f *feed) since(now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := now.Add(-recent)
	if f.stored.After(since) {
		return f.stored.Add(1)
	}
	return since
}

// resume notes that decisions are read from a time on. It adds a row about the time that was missed, if any was.
func (f *feed) resume(since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = ""
	if !f.stopped.IsZero() && f.stopped.Before(since) && f.stored.Before(f.stopped) {
		f.show("missed", missed{f.stopped, since})
	}
}

func (f *feed) stop(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = now
}

func (f *feed) setSilent(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = why
}

func (f *feed) whySilent() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.silent
}

// add keeps the newest decisions, once each. It counts all decisions, including those that arrive too fast to be shown.
func (f *feed) add(batch journal.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if age := f.stored.Sub(batch.Stored); 0 <= age && age < recent {
		return // the last watcher left and another one came: both goroutines have read it
	}
	f.stored = batch.Stored
	entries := batch.Entries
	f.number += max(0, len(entries)-maxDecisions)
	for _, entry := range entries[max(0, len(entries)-maxDecisions):] {
		f.show("decision", decided{entry, batch.Stored})
	}
}

// show adds a row. The caller holds the lock.
func (f *feed) show(template string, data any) {
	f.number++
	f.last = append(f.last, decision{f.number, string(f.renderer.render(template, data))})
	f.last = slices.Clone(f.last[max(0, len(f.last)-maxDecisions):])
}

// after returns the decisions after a number, and the number of the newest decision.
func (f *feed) after(number int) ([]decision, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, d := range f.last {
		if d.number > number {
			return f.last[i:], f.number
		}
	}
	return nil, f.number
}
