package page

import (
	"bytes"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/status"
)

// parts are the parts of the page that change, but for the limits, which each watcher may filter.
var parts = []string{"summary", "chart", "suppressed", "channels", "letters", "workers", "findings"}

// snapshot is what the source said once, rendered for all watchers.
type snapshot struct {
	asked    time.Time
	status   status.Status
	news     string
	logger   *slog.Logger
	rendered map[string]template.HTML // by part

	mu       sync.Mutex
	filtered map[string]template.HTML // the limits, by filter
}

func newSnapshot(s status.Status, asked time.Time, logger *slog.Logger) *snapshot {
	n := &snapshot{
		asked: asked, status: s, news: news(s), logger: logger,
		rendered: make(map[string]template.HTML), filtered: make(map[string]template.HTML),
	}
	for _, name := range parts {
		n.rendered[name] = rendered(name, overview{s, draw(s.Minutes)}, logger)
	}
	return n
}

// overview is what the parts are rendered from.
type overview struct {
	status.Status
	Chart chart
}

// all returns every part by name.
func (n *snapshot) all(filter string) map[string]template.HTML {
	n.mu.Lock()
	defer n.mu.Unlock()
	limits, known := n.filtered[filter]
	if !known {
		limits = rendered("limits", grow(n.status.Limits, n.status.Changes, filter), n.logger)
		n.filtered[filter] = limits
	}
	all := maps.Clone(n.rendered)
	all["limits"] = limits
	return all
}

// news says in one sentence what somebody who hears the page wants to know at once. It changes seldom.
func news(s status.Status) string {
	full := 0
	for _, limit := range s.Limits {
		if limit.Full() {
			full++
		}
	}
	sentence := fmt.Sprintf("%s, %s full.", plural(len(s.Workers), "worker"), plural(full, "limit"))
	if n := notReady(s.Workers); n > 0 {
		sentence += fmt.Sprintf(" Not ready: %d.", n)
	}
	if degraded(s.Workers) != "" {
		sentence += " Redis is unavailable."
	}
	if len(s.Unknown) > 0 {
		sentence += " Not everything could be asked."
	}
	return sentence
}

func notReady(workers []status.Worker) int {
	n := 0
	for _, w := range workers {
		if !w.Ready {
			n++
		}
	}
	return n
}

// degraded is the failure policy that acts on a worker, "" if none does.
func degraded(workers []status.Worker) string {
	for _, w := range workers {
		if w.Degraded != "" {
			return w.Degraded
		}
	}
	return ""
}

// rendered is a part of the page.
func rendered(name string, data any, logger *slog.Logger) template.HTML {
	var text bytes.Buffer
	if err := templates.ExecuteTemplate(&text, name, data); err != nil {
		logger.Error("rendering a part of the page", "part", name, "error", err)
		return "This part cannot be shown: the log says why."
	}
	return template.HTML(strings.TrimSpace(text.String())) //nolint:gosec // html/template has escaped it
}
