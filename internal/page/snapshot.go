package page

import (
	"bytes"
	"html/template"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/status"
)

// parts are the changing parts of the page, without the limits, which each watcher may filter.
var parts = []string{"summary", "chart", "suppressed", "waiting", "channels", "letters", "workers", "findings"}

// snapshot is one answer of the source, rendered for all watchers.
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
	shown := newOverview(s)
	for _, name := range parts {
		n.rendered[name] = rendered(name, shown, logger)
	}
	return n
}

// all returns every part by name.
func (n *snapshot) all(filter string) map[string]template.HTML {
	n.mu.Lock()
	defer n.mu.Unlock()
	limits, known := n.filtered[filter]
	if !known {
		list := listLimits(n.status.Limits, n.status.Changes, filter)
		list.Known = knowsLimits(n.status)
		limits = rendered("limits", list, n.logger)
		n.filtered[filter] = limits
	}
	all := maps.Clone(n.rendered)
	all["limits"] = limits
	return all
}

// rendered renders a part of the page.
func rendered(name string, data any, logger *slog.Logger) template.HTML {
	var text bytes.Buffer
	if err := templates.ExecuteTemplate(&text, name, data); err != nil {
		logger.Error("rendering a part of the page", "part", name, "error", err)
		return "Cannot show this part: see the log for the reason."
	}
	return template.HTML(strings.TrimSpace(text.String())) //nolint:gosec // html/template has escaped it
}
