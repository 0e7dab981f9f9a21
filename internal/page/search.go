package page

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// spans are how far back a reader can look, as the form has them.
var spans = []string{"15m", "1h", "6h", "24h"}

// found is what the page of an answer is rendered from.
type found struct {
	Text   string
	Since  string // of spans; "": as long as the journal goes back
	Spans  []string
	Link   string // to this page
	Answer why.Answer
	Asked  bool
}

// serveWhy says what became of an event, or of the events of a category.
func (p *page) serveWhy(w http.ResponseWriter, r *http.Request) {
	f := found{Text: textOf(r, "q"), Since: r.URL.Query().Get("since"), Spans: spans}
	var since time.Time
	if span, err := time.ParseDuration(f.Since); err == nil && span > 0 {
		since = time.Now().Add(-span)
	} else {
		f.Since = ""
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
		f.Answer, f.Asked = ask(ctx, p.Source, f.Text, since), true
		query := url.Values{"q": {f.Text}}
		if f.Since != "" {
			query.Set("since", f.Since)
		}
		f.Link = "why?" + query.Encode()
	}
	p.render(w, http.StatusOK, "why.html", f)
}

// ask asks for an event by its ID, or by its sequence behind a "#". A text that nothing is known of as an ID is a category, if it is the
// path of one.
func ask(ctx context.Context, source Source, text string, since time.Time) why.Answer {
	if digits, found := strings.CutPrefix(text, "#"); found {
		if sequence, err := strconv.ParseUint(digits, 10, 64); err == nil && sequence > 0 {
			return source.Why(ctx, why.Question{Sequence: sequence, Since: since})
		}
	}
	ofID := source.Why(ctx, why.Question{ID: text, Since: since})
	if ofID.Known() || event.ValidatePath(text) != nil {
		return ofID
	}
	ofCategory := source.Why(ctx, why.Question{Category: text, Since: since})
	if !ofCategory.Known() {
		ofCategory.Counted = append(ofCategory.Counted, ofID.Counted...)
	}
	return ofCategory
}
