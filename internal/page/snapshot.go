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

// maxFiltered bounds the renderings of the limits that a snapshot keeps, since a reader may ask for any filter.
const maxFiltered = 64

type renderer struct {
	logger *slog.Logger

	filtering sync.Mutex // held during the rendering of filtered limits; so filters, of which there are any number, take one processor
}

// snapshot is one answer of the source, rendered for all watchers.
type snapshot struct {
	renderer *renderer
	asked    time.Time
	status   status.Status
	news     string
	rendered map[string]template.HTML // by part, the limits without a filter

	filtered map[string]template.HTML // the limits, by filter; guarded by renderer.filtering
}

func (r *renderer) snapshot(s status.Status, asked time.Time) *snapshot {
	n := &snapshot{
		renderer: r, asked: asked, status: s, news: news(s),
		rendered: make(map[string]template.HTML), filtered: make(map[string]template.HTML),
	}
	shown := newOverview(s)
	for _, name := range parts {
		n.rendered[name] = r.render(name, shown)
	}
	n.rendered["limits"] = n.limits("")
	return n
}

// all returns every part by name, with the limits of the paths that contain the filter. The caller must not change the map.
func (n *snapshot) all(filter string) map[string]template.HTML {
	if filter == "" {
		return n.rendered
	}
	n.renderer.filtering.Lock()
	defer n.renderer.filtering.Unlock()
	limits, known := n.filtered[filter]
	if !known {
		limits = n.limits(filter)
		if len(n.filtered) < maxFiltered {
			n.filtered[filter] = limits
		}
	}
	all := maps.Clone(n.rendered)
	all["limits"] = limits
	return all
}

func (n *snapshot) limits(filter string) template.HTML {
	list := listLimits(n.status.Limits, n.status.Changes, filter)
	list.Known = knowsLimits(n.status)
	return n.renderer.render("limits", list)
}

func (r *renderer) render(name string, data any) template.HTML {
	var text bytes.Buffer
	if err := templates.ExecuteTemplate(&text, name, data); err != nil {
		r.logger.Error("rendering a part of the page", "part", name, "error", err)
		return "Cannot show this part: see the log for the reason."
	}
	return template.HTML(strings.TrimSpace(text.String())) //nolint:gosec // html/template has escaped it
}
