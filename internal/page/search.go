package page

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/seed-4578ace9/notifier/internal/why"
)

// spans are the time spans in the form.
var spans = []string{"15m", "1h", "6h", "24h"}

// found is the data for the template of an answer.
type found struct {
	Text   string
	Since  string // one of spans; "": the whole journal
	Spans  []string
	Link   string // to this page
	Answer why.Answer
	Asked  bool
	Zone   *time.Location // for the times in sentences
}

// serveWhy explains what happened to an event or to the events of a category.
func (p *page) serveWhy(w http.ResponseWriter, r *http.Request) {
	r, zone := withZone(r)
	f := found{Text: r.URL.Query().Get("q"), Since: r.URL.Query().Get("since"), Spans: spans, Zone: zone}
	var since time.Time
	if span, err := time.ParseDuration(f.Since); err == nil && span > 0 {
		since = time.Now().Add(-span)
	} else {
		f.Since = ""
	}
	if len(f.Text) > maxID {
		http.Error(w, fmt.Sprintf("the text has %d bytes; at most %d are looked up", len(f.Text), maxID), http.StatusRequestURITooLong)
		return
	}
	if f.Text != "" {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		select {
		case p.questions <- struct{}{}:
			defer func() { <-p.questions }()
		case <-ctx.Done():
			http.Error(w, "too many ask at once", http.StatusServiceUnavailable)
			return
		}
		f.Answer, f.Asked = p.Source.Why(ctx, f.Text, since), true
		query := url.Values{"q": {f.Text}}
		if f.Since != "" {
			query.Set("since", f.Since)
		}
		f.Link = "why?" + query.Encode()
	}
	p.render(w, http.StatusOK, "why.html", f)
}
