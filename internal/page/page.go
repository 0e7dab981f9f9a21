package page

import (
	"bytes"
	"context"
	"embed"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// Source is what the page shows. Its methods may be called at once.
type Source interface {
	// Status says what the deployment does now.
	Status(ctx context.Context) (status.Status, error)
	// Why says what became of the events that a text means: an ID, a category, or the number of a message. The zero time asks for all that
	// the journal holds.
	Why(ctx context.Context, text string, since time.Time) why.Answer
	// Decisions hands over what is decided until ctx ends, the newest last, and may begin with the newest that are known. It closes the
	// channel when it cannot go on.
	Decisions(ctx context.Context) (<-chan []journal.Entry, error)
}

// Options configure a page. The source and the logger must be set.
type Options struct {
	Source Source
	Token  string // that readers need; "": everybody who reaches the page reads it
	Logger *slog.Logger
}

// policy lets the browser load nothing but the page's own files, and run nothing that stands in the page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; " +
	"form-action 'self'; frame-ancestors 'none'"

// Bounds of what readers can ask for at once.
const (
	maxWatchers  = 256
	maxQuestions = 2    // each may read the whole journal
	maxText      = 256  // characters of a filter
	maxID        = 4096 // bytes of what is looked up, which stands as it is: white space in an ID counts
	askTimeout   = 30 * time.Second
)

//go:embed assets
var assets embed.FS

// page answers the requests.
type page struct {
	Options
	hub       *hub
	questions chan struct{} // as many as are asked
	local     bool          // it is reached from this host alone, by readers without a token
	host      string        // by which it is told to be reached; "": by none
}

func newPage(o Options) *page {
	return &page{Options: o, hub: newHub(o.Source, o.Logger), questions: make(chan struct{}, maxQuestions)}
}

// handler answers GET and HEAD alone, and only those who have the token. Without a token, on a loopback address, it answers only requests
// that name this host.
func (p *page) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.serveOverview)
	mux.HandleFunc("GET /why", p.serveWhy)
	mux.HandleFunc("GET /events", p.serveEvents)
	for name, kind := range map[string]string{
		"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "times.js": "text/javascript; charset=utf-8",
		"icon.svg": "image/svg+xml",
	} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			http.ServeFileFS(w, r, assets, "assets/"+name)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
		case p.local && !p.isNamed(r.Host):
			http.Error(w, "this page is for this host alone: open it as localhost, or set NOTIFIER_PAGE_TOKEN", http.StatusForbidden)
		case p.admits(w, r):
			mux.ServeHTTP(w, r)
		}
	})
}

// serveOverview shows everything at once.
func (p *page) serveOverview(w http.ResponseWriter, r *http.Request) {
	filter := textOf(r, "filter")
	newest := p.hub.current()
	p.render(w, http.StatusOK, "overview.html", map[string]any{"Parts": newest.all(filter), "News": newest.news, "Filter": filter})
}

// render answers with a whole page.
func (p *page) render(w http.ResponseWriter, code int, name string, data any) {
	var body bytes.Buffer
	if err := templates.ExecuteTemplate(&body, name, data); err != nil {
		p.Logger.Error("rendering the page", "template", name, "error", err)
		http.Error(w, "the page cannot be rendered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(body.Bytes()) // the reader may have left
}

// textOf is a text of the address, cut to maxText characters.
func textOf(r *http.Request, name string) string {
	return plain.Short(r.URL.Query().Get(name), maxText)
}
