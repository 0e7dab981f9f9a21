package page

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// spans are the time spans in the form.
var spans = []string{"15m", "1h", "6h", "24h"}

// found is the data for the template of an answer.
type found struct {
	Text     string
	Category string // of the events; "": any
	Since    string // one of spans; "": the whole journal
	Spans    []string
	Link     string // to this page
	Answer   why.Answer
	Asked    bool
	Zone     *time.Location // for the times in sentences
}

// serveWhy explains what happened to an event or to the events of a category.
func (p *page) serveWhy(w http.ResponseWriter, r *http.Request) {
	r, zone := withZone(r)
	asked := r.URL.Query()
	f := found{Text: asked.Get("q"), Category: strings.ToLower(asked.Get("category")), Since: asked.Get("since"), Spans: spans, Zone: zone}
	var since time.Time
	if span, err := time.ParseDuration(f.Since); err == nil && span > 0 {
		since = time.Now().Add(-span)
	} else {
		f.Since = ""
	}
	if length := max(len(f.Text), len(f.Category)); length > maxID {
		http.Error(w, fmt.Sprintf("the text has %d bytes; at most %d are looked up", length, maxID), http.StatusRequestURITooLong)
		return
	}
	if err := event.ValidatePath(f.Category); f.Category != "" && err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if f.Text != "" || f.Category != "" {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		select {
		case p.questions <- struct{}{}:
			defer func() { <-p.questions }()
		case <-ctx.Done():
			http.Error(w, "too many ask at once", http.StatusServiceUnavailable)
			return
		}
		f.Answer, f.Asked = p.Source.Why(ctx, f.Text, why.Question{Category: f.Category, Since: since}), true
		query := make(url.Values)
		for name, value := range map[string]string{"q": f.Text, "category": f.Category, "since": f.Since} {
			if value != "" {
				query.Set(name, value)
			}
		}
		f.Link = "why?" + query.Encode()
	}
	p.render(w, http.StatusOK, "why.html", f)
}
