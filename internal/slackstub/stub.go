package slackstub

import (
	"embed"
	"html/template"
	"net/http"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
)

// Token is the bot token that the server takes.
const Token = "xoxb-slack-stub" //nolint:gosec // a token for rehearsals, which opens nothing

// memory bounds the messages and the updates that the stub keeps.
const memory = 500

//go:embed assets
var assets embed.FS

var messages = template.Must(template.ParseFS(assets, "assets/messages.html"))

// Listen starts a server on an address, with the page at "/". The caller closes it.
func Listen(address string) (*slacktest.Server, error) {
	return slacktest.Listen(address,
		slacktest.WithToken(Token), slacktest.WithMemory(memory),
		slacktest.WithHandler("/", func(s *slacktest.Server) http.Handler { return newPage(s, address) }))
}

const policy = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// newPage returns the page of a server that listens on an address.
func newPage(s *slacktest.Server, address string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = messages.Execute(w, viewOf(s)) // a reader who has gone needs no page
	})
	mux.HandleFunc("GET /messages.css", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		http.ServeFileFS(w, r, assets, "assets/messages.css")
	})
	isLocal := httpserver.NamesThisHost(address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpserver.Protect(w.Header(), policy)
		if isLocal && !httpserver.NamesThisHost(r.Host) {
			http.Error(w, "this page is for this host alone: open it as localhost", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
