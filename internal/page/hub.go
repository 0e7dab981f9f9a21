package page

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/status"
)

const (
	askEvery     = time.Second     // at most, however many watch
	statusWithin = 5 * time.Second // less than the script waits for a message
	maxDecisions = 20              // that a watcher is shown, so that what stands below them is near
)

// hub asks the source for all watchers.
type hub struct {
	source Source
	logger *slog.Logger
	closed context.Context // ends with the server
	close  func()          // ends everything, and waits for it

	asking sync.Mutex // held while the source is asked

	mu       sync.Mutex
	watchers map[*watcher]bool
	stop     context.CancelFunc // ends the goroutines that ask; nil: nobody watches
	running  sync.WaitGroup
	newest   *snapshot // nil: nobody has asked yet
	failing  bool
	last     []decision // the newest ones
	number   int        // of the newest one
	silent   string     // why no decisions come
}

// watcher is one open page.
type watcher struct{ wake chan struct{} }

// decision is one of the last decisions, rendered.
type decision struct {
	number int
	html   string
}

func newHub(source Source, logger *slog.Logger) *hub {
	closed, cancel := context.WithCancel(context.Background())
	h := &hub{source: source, logger: logger, closed: closed, watchers: make(map[*watcher]bool)}
	h.close = func() {
		h.mu.Lock()
		cancel() // nobody joins any more
		h.mu.Unlock()
		h.running.Wait()
	}
	return h
}

// join adds a watcher. The first one starts the asking. It returns nil if there are too many.
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
		h.last = nil // nobody saw what came after them
		h.running.Go(func() { h.ask(ctx) })
		h.running.Go(func() { h.follow(ctx) })
	}
	return w
}

// leave removes a watcher. The last one ends the asking.
func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
	if len(h.watchers) == 0 {
		h.stop()
		h.stop = nil
	}
}

// ask asks for the status every second.
func (h *hub) ask(ctx context.Context) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		h.current()
		h.mu.Lock()
		for w := range h.watchers {
			select {
			case w.wake <- struct{}{}:
			default: // it has not looked at the one before
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

// current returns the newest snapshot, and asks for one if it is too old.
func (h *hub) current() *snapshot {
	h.asking.Lock()
	defer h.asking.Unlock()
	newest := h.latest()
	// The ticker may come a little early.
	if newest != nil && time.Since(newest.asked) < askEvery*9/10 {
		return newest
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(h.closed, statusWithin)
	defer cancel()
	s, err := h.source.Status(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		problem := "the state cannot be asked: " + err.Error()
		if newest != nil {
			s = newest.status
		}
		s = status.Status{At: s.At, Workers: s.Workers, Unknown: []string{problem}}
		if !h.failing {
			h.logger.Warn("the page cannot ask for the state", "error", err)
		}
	}
	h.failing = err != nil
	if h.silent != "" {
		s.Unknown = append(slices.Clip(s.Unknown), h.silent)
	}
	h.newest = newSnapshot(s, asked, h.logger)
	return h.newest
}

// latest returns the newest snapshot without asking. A watcher that is woken has one.
func (h *hub) latest() *snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// follow keeps the last decisions. It begins anew when the source cannot go on.
func (h *hub) follow(ctx context.Context) {
	for {
		decisions, err := h.source.Decisions(ctx)
		if err != nil {
			h.setSilent("the last decisions cannot be read: " + err.Error())
		} else {
			h.setSilent("")
			for entries := range decisions {
				h.add(entries)
			}
		}
		select {
		case <-time.After(5 * askEvery):
		case <-ctx.Done():
			return
		}
	}
}

func (h *hub) setSilent(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = why
}

// add keeps the newest decisions. What comes too fast to be read is counted.
func (h *hub) add(entries []journal.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number += max(0, len(entries)-maxDecisions)
	for _, entry := range entries[max(0, len(entries)-maxDecisions):] {
		h.number++
		h.last = append(h.last, decision{h.number, string(rendered("decision", entry, h.logger))})
	}
	h.last = append([]decision(nil), h.last[max(0, len(h.last)-maxDecisions):]...)
}

// since returns the decisions with numbers above one, and the number of the newest.
func (h *hub) since(number int) ([]decision, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, d := range h.last {
		if d.number > number {
			return h.last[i:], h.number
		}
	}
	return nil, h.number
}
