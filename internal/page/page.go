package page

import (
	"bytes"
	"context"
	"embed"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// Source provides the data of the page. Its methods may be called concurrently.
type Source interface {
	// Status returns the present state of the deployment.
	Status(ctx context.Context) (status.Status, error)
	// Why explains the events that a text selects by an ID, a category or the number of a message, and that meet the conditions. Without a text,
	// it explains the events that meet the conditions.
	Why(ctx context.Context, text string, conditions why.Question) why.Answer
	// Decisions sends the decisions that are stored from a time on, the newest last, until ctx ends. It closes the channel when it cannot go on.
	Decisions(ctx context.Context, since time.Time) (<-chan journal.Batch, error)
}

// Options configure a page. The source and the logger must be set.
type Options struct {
	Source Source
	Token  string // that readers need; "": everybody who can reach the page may read it
	Logger *slog.Logger
}

// policy allows the browser only the page's own files, and no inline scripts.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; " +
	"form-action 'self'; frame-ancestors 'none'"

// Bounds of concurrent readers and of their input.
const (
	maxWatchers  = 256
	maxQuestions = 2    // each may read the whole journal
	maxText      = 256  // characters of a filter
	maxID        = 4096 // bytes of a search text, which is not trimmed, since white space in an ID counts
	askTimeout   = 30 * time.Second
)

//go:embed assets
var assets embed.FS

type page struct {
	Options
	hub       *hub
	questions chan struct{} // bounds concurrent searches
	local     bool          // only this host can reach it, and there is no token
	host      string        // configured host; may be empty
}

func newPage(o Options) *page {
	return &page{Options: o, hub: newHub(o.Source, o.Logger), questions: make(chan struct{}, maxQuestions)}
}

// handler answers GET and HEAD requests with the token. Without a token, on a loopback address, it answers only requests that name this host.
// Another site starts no search and watches no events: it may only link to the present state.
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
	admitted := httpserver.Working(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpserver.Protect(w.Header(), policy)
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
		case p.local && !p.isNamed(r.Host):
			http.Error(w, "this page is for this host alone: open it as localhost, or set NOTIFIER_PAGE_TOKEN", http.StatusForbidden)
		case !p.admits(w, r): // it has answered
		case isForeign(r):
			p.render(w, http.StatusForbidden, "foreign.html", linkHere(r, r.URL.Query()))
		default:
			admitted.ServeHTTP(w, r)
		}
	})
}

// isForeign reports whether a page of another origin made the browser send the request. It is not foreign if it only opens the present state.
// Programs and old browsers send no such header.
func isForeign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return r.URL.Path != "/" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// linkHere returns a link to the path of a request with a query. It is relative, for a proxy that serves the page below a path of its own.
func linkHere(r *http.Request, query url.Values) string {
	return (&url.URL{Path: "." + r.URL.Path, RawQuery: query.Encode()}).String()
}

// isNamed reports whether a request names this host or the page's address.
func (p *page) isNamed(host string) bool {
	return httpserver.NamesThisHost(host) || httpserver.HostOf(host) == p.host && p.host != ""
}

func (p *page) serveOverview(w http.ResponseWriter, r *http.Request) {
	filter := filterOf(r)
	newest := p.hub.current()
	p.render(w, http.StatusOK, "overview.html", map[string]any{"Parts": newest.all(filter), "News": newest.news, "Filter": filter})
}

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

// filterOf returns the text that paths of limits have to contain, in the form of paths and cut to maxText characters.
func filterOf(r *http.Request) string {
	return plain.Short(strings.ToLower(strings.TrimSpace(r.URL.Query().Get("filter"))), maxText)
}

// zoneCookie is the cookie with the browser's time zone. The page's script sets it.
const zoneCookie = "notifier-zone"

type zoneKey struct{}

// withZone returns the request with the reader's time zone in its context. The default is UTC.
func withZone(r *http.Request) (*http.Request, *time.Location) {
	zone := time.UTC
	if cookie, err := r.Cookie(zoneCookie); err == nil {
		if name, err := url.QueryUnescape(cookie.Value); err == nil && name != "Local" {
			if found, err := time.LoadLocation(name); err == nil {
				zone = found
			}
		}
	}
	return r.WithContext(context.WithValue(r.Context(), zoneKey{}, zone)), zone
}

// ZoneOf returns the time zone for the sentences of an answer. It is the zone of the page's reader, and time.Local outside of the page.
func ZoneOf(ctx context.Context) *time.Location {
	if zone, found := ctx.Value(zoneKey{}).(*time.Location); found {
		return zone
	}
	return time.Local
}
