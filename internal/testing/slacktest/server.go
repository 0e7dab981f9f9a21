package slacktest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultToken is the bot token that the server accepts unless WithToken changes it.
	DefaultToken = "xoxb-slacktest"
	// DefaultWebhookSecret is the last part of the webhook's path unless WithWebhookSecret says otherwise.
	DefaultWebhookSecret = "slacktest-webhook"
	// maxBody bounds a request's body, in bytes.
	maxBody = 4 << 20
)

// Channel is a channel of the workspace.
type Channel struct {
	ID       string `json:"id"`   // such as C0123456789
	Name     string `json:"name"` // without the leading "#"
	Member   bool   `json:"is_member"`
	Archived bool   `json:"is_archived"`
	Private  bool   `json:"is_private"`
}

// UserGroup is a group of users that can be mentioned.
type UserGroup struct {
	ID       string // such as S0123456789
	Handle   string // without the leading "@"
	Disabled bool
}

// The values of Post.Method.
const (
	MethodPost    = "chat.postMessage"
	MethodUpdate  = "chat.update"
	MethodWebhook = "webhook"
)

// Post is one request to post a message or, for Respond, to update one.
type Post struct {
	Received    time.Time
	Method      string
	Channel     string // as the client named it; empty for a webhook
	ChannelID   string // the channel's ID, as the answer names it; empty for a webhook
	Thread      string // the ts of the thread's first message; empty outside threads
	Text        string
	Blocks      json.RawMessage // as the client sent them; nil if absent
	Attachments json.RawMessage
	Options     url.Values // every other parameter but the token
	Metadata    Metadata   // parsed from Options; the zero Metadata if there is none
	Message     Message    // Text, Blocks and Attachments parsed
	Fault       string     // Slack's error code for the post; empty if Slack would take it
	Header      http.Header
	Remote      string // the client's address and port
	Accepted    bool   // Slack accepted the post, even if no answer reached the client
	Timestamp   string // the message's ts, if accepted; of an update that of the message to change

	taken   time.Time // when it was accepted
	deleted bool
}

// Metadata is what a post carries for programs.
type Metadata struct {
	EventType string         `json:"event_type"`
	Payload   map[string]any `json:"event_payload"`
}

// Update is a change of an accepted message.
type Update struct {
	Received  time.Time
	Channel   string // its ID
	Timestamp string // the message's ts
	Message   Message
}

// Server is a running Slack stand-in.
type Server struct {
	server   *httptest.Server
	listener *resettingListener
	end      context.CancelFunc // of every request under way
	token    string
	secret   string
	scopes   string
	channels []Channel // empty: every channel exists and the bot is in it
	groups   []UserGroup
	memory   int           // most posts and updates in memory; 0: no bound
	delay    time.Duration // until the history has a post
	limits   Limits
	handlers map[string]func(*Server) http.Handler

	mu       sync.Mutex
	posts    []*Post
	received int // posts, also those that it has forgotten
	accepted int
	last     int64 // ts of the newest message, in microseconds
	updates  []Update
	calls    map[string]int // by method
	queue    []Answer
	respond  func(Post) Answer
	others   map[string]func() Answer // by method
	counted  map[string][]time.Time   // requests that count against a limit, by the name of the limit
	limited  map[string]int           // requests that a limit refused, by method
	changed  chan struct{}            // closed and replaced when a post or an update is accepted
}

// Option changes a Server before it starts.
type Option func(*Server)

// WithToken sets the bot token that the server accepts.
func WithToken(token string) Option { return func(s *Server) { s.token = token } }

// WithWebhookSecret sets the last part of the webhook's path.
func WithWebhookSecret(secret string) Option { return func(s *Server) { s.secret = secret } }

// WithScopes sets the token's scopes. Without channels:read it may not ask about channels, without groups:read not list private channels,
// without usergroups:read not ask about user groups, without channels:history not about messages of public channels, and without groups:history not about messages of
// private channels.
func WithScopes(scopes ...string) Option {
	return func(s *Server) { s.scopes = strings.Join(scopes, ",") }
}

// WithChannels sets the channels that exist. Without it every channel exists, under any name, and the bot is in it.
func WithChannels(channels ...Channel) Option { return func(s *Server) { s.channels = channels } }

// WithUserGroups sets the user groups that exist. Without it there are none.
func WithUserGroups(groups ...UserGroup) Option { return func(s *Server) { s.groups = groups } }

// WithMemory has the server forget its oldest posts and updates above a number of each.
func WithMemory(most int) Option { return func(s *Server) { s.memory = most } }

// WithHistoryDelay has the history of a channel show each message only so long after it was accepted.
func WithHistoryDelay(d time.Duration) Option { return func(s *Server) { s.delay = d } }

// WithHandler has the server answer requests of another pattern, such as "GET /", beside Slack's methods.
func WithHandler(pattern string, handler func(*Server) http.Handler) Option {
	return func(s *Server) { s.handlers[pattern] = handler }
}

// TB is what New needs of a test.
type TB interface {
	Helper()
	Cleanup(end func())
	Fatal(problem ...any)
}

// New starts a server that is closed when the test ends, unless the test closes it earlier.
func New(t TB, options ...Option) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Listen starts a server on an address. The caller closes it.
func Listen(address string, options ...Option) (*Server, error) {
	s := &Server{
		token:   DefaultToken,
		secret:  DefaultWebhookSecret,
		scopes:  "chat:write,channels:read,groups:read,channels:history,groups:history,usergroups:read",
		changed: make(chan struct{}),
		calls:   make(map[string]int),
		others:  make(map[string]func() Answer),
		counted: make(map[string][]time.Time),
		limited: make(map[string]int),

		handlers: make(map[string]func(*Server) http.Handler),
	}
	for _, option := range options {
		option(s)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/{method}", s.serveMethod)
	mux.HandleFunc("/services/{team}/{bot}/{secret}", s.serveWebhook)
	for pattern, handler := range s.handlers {
		mux.Handle(pattern, handler(s))
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	var running context.Context
	running, s.end = context.WithCancel(context.Background())
	s.listener = &resettingListener{Listener: listener}
	s.server = &httptest.Server{Listener: s.listener, Config: &http.Server{
		Handler:     mux,
		BaseContext: func(net.Listener) context.Context { return running },
		ErrorLog:    log.New(io.Discard, "", 0), // resets are part of the script
	}}
	s.server.Start()
	return s, nil
}

// Close ends the server. It may be called more than once.
func (s *Server) Close() {
	s.end()
	s.server.Close()
}

// Address returns the host and port that the server listens on.
func (s *Server) Address() string { return s.listener.Addr().String() }

// APIURL returns the Web API's URL, with a final slash.
func (s *Server) APIURL() string { return s.server.URL + "/api/" }

// WebhookURL returns the incoming webhook's URL.
func (s *Server) WebhookURL() string {
	return s.server.URL + "/services/T00000000/B00000000/" + url.PathEscape(s.secret)
}

// Script appends answers, each used for one post or update, before what Respond has set.
func (s *Server) Script(answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, answers...)
}

// Respond sets a function that answers the posts and updates beyond the answers of Script; nil means OK for all. It may be
// called for several of them at once.
func (s *Server) Respond(respond func(Post) Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.respond = respond
}

// RespondTo sets a function that answers the requests of a method that neither posts nor updates; nil means OK for all. It may be called
// for several of them at once.
func (s *Server) RespondTo(method string, respond func() Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others[method] = respond
}

// ResetConnections resets the next n connections before a request is read from them. Such requests are not recorded.
func (s *Server) ResetConnections(n int) { s.listener.left.Store(int64(n)) }

// Posts returns every post received so far, in order of arrival.
func (s *Server) Posts() []Post { return s.copyPosts(func(*Post) bool { return true }) }

// Accepted returns the accepted posts, in order of arrival.
func (s *Server) Accepted() []Post { return s.copyPosts(func(p *Post) bool { return p.Accepted }) }

// Counts returns how many posts were received and accepted, also those that the server has forgotten.
func (s *Server) Counts() (received, accepted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received, s.accepted
}

// Updates returns the accepted updates, in order of arrival.
func (s *Server) Updates() []Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.updates)
}

// Delete removes the posts with a ts, as a user does. They can neither be updated nor replied to.
func (s *Server) Delete(timestamp string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, post := range s.posts {
		post.deleted = post.deleted || post.Timestamp == timestamp
	}
}

func (s *Server) copyPosts(want func(*Post) bool) []Post {
	s.mu.Lock()
	defer s.mu.Unlock()
	var posts []Post
	for _, post := range s.posts {
		if want(post) {
			posts = append(posts, *post)
		}
	}
	return posts
}

// Calls returns how many requests came for a Web API method or "webhook".
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Await waits until the server has accepted n posts. It returns an error if ctx ends before that.
func (s *Server) Await(ctx context.Context, n int) error {
	for {
		s.mu.Lock()
		accepted, changed := s.accepted, s.changed
		s.mu.Unlock()
		if accepted >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("await %d accepted posts, have %d: %w", n, accepted, ctx.Err())
		}
	}
}
