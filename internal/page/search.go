package page

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
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
	Since    string // the value of one of the choices; "": the whole journal
	Choices  []choice
	Link     string // to this page
	Answer   why.Answer
	Asked    bool
	Zone     *time.Location // for the times in sentences
}

// choice is a beginning of the searched time that the form offers.
type choice struct{ Value, Text string }

// beginOf reads the time since when events are searched: a time, or a time span that ends now. It returns the zero time for "".
func beginOf(since string, now time.Time) (time.Time, error) {
	if since == "" {
		return time.Time{}, nil
	}
	if span, err := time.ParseDuration(since); err == nil && span > 0 {
		return now.Add(-span).UTC().Truncate(time.Second), nil
	}
	if begin, err := time.Parse(time.RFC3339, since); err == nil {
		return begin.UTC(), nil
	}
	return time.Time{}, fmt.Errorf("since is %.40q; expected a time span such as 1h, or a time such as 2026-03-01T12:00:00Z", since)
}

func choicesOf(since string, begin time.Time, zone *time.Location) []choice {
	choices := []choice{{"", "the journal begins"}}
	for _, span := range spans {
		choices = append(choices, choice{span, span + " ago"})
	}
	if !slices.ContainsFunc(choices, func(c choice) bool { return c.Value == since }) {
		choices = append(choices, choice{since, begin.In(zone).Format("2 Jan 15:04:05")})
	}
	return choices
}

// serveWhy explains what happened to an event or to the events of a category.
func (p *page) serveWhy(w http.ResponseWriter, r *http.Request) {
	r, zone := withZone(r)
	asked := r.URL.Query()
	f := found{Text: strings.ToValidUTF8(asked.Get("q"), "\ufffd"), Category: strings.ToLower(asked.Get("category")), Since: asked.Get("since"), Zone: zone}
	begin, err := beginOf(f.Since, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.Choices = choicesOf(f.Since, begin, zone)
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
		f.Answer, f.Asked = p.Source.Why(ctx, f.Text, why.Question{Category: f.Category, Since: begin}), true
		f.Link = linkTo(f.Text, f.Category, begin)
	}
	p.render(w, http.StatusOK, "why.html", f)
}

// linkTo returns the link to a search. It names the time of its beginning, since the events of the last hour are others later.
func linkTo(text, category string, begin time.Time) string {
	query := make(url.Values)
	for name, value := range map[string]string{"q": text, "category": category} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if !begin.IsZero() {
		query.Set("since", begin.Format(time.RFC3339))
	}
	return "why?" + query.Encode()
}
