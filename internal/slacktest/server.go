package slacktest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// DefaultToken is the bot token that is taken unless WithToken says otherwise.
	DefaultToken = "xoxb-slacktest"
	// DefaultWebhookSecret is the last part of the webhook's path unless WithWebhookSecret
	// says otherwise.
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
	Webhook     bool
	Channel     string // as the client named it; empty for a webhook
	ChannelID   string // the channel's ID, as the answer names it; empty for a webhook
	Thread      string // the ts of the message in whose thread it stands; empty for none
	Text        string
	Blocks      json.RawMessage // as the client sent them; nil if absent
	Attachments json.RawMessage
	Options     url.Values // every other parameter but the token
	Message     Message    // Text, Blocks and Attachments parsed
	Fault       string     // the code with which Slack would refuse the post; empty if it would not
	Header      http.Header
	Remote      string // the client's address and port
	Accepted    bool   // the post was taken, whether or not the answer reached the client
	Timestamp   string // the message's ts, if accepted; of an update that of the message to change

	deleted bool
}

// Update is a change of a message that was taken.
type Update struct {
	Received  time.Time
	Channel   string // its ID
	Timestamp string // the message's ts
	Message   Message
}

// Server is a running Slack stand-in.
type Server struct {
	server   *http.Server
	listener *resettingListener
	token    string
	secret   string
	scopes   string
	channels []Channel // empty: every channel exists and the bot is in it
	groups   []UserGroup
	address  string
	closing  chan struct{}
	running  sync.WaitGroup // the accept loop and all handlers

	mu       sync.Mutex
	closed   bool // closing is closed
	posts    []*Post
	accepted int
	updates  []Update
	calls    map[string]int // by method
	queue    []Answer
	respond  func(Post) Answer
	changed  chan struct{} // closed and replaced when a post or an update is accepted
}

// Option changes a Server before it starts.
type Option func(*Server)

// WithToken sets the bot token that is taken.
func WithToken(token string) Option { return func(s *Server) { s.token = token } }

// WithWebhookSecret sets the last part of the webhook's path.
func WithWebhookSecret(secret string) Option { return func(s *Server) { s.secret = secret } }

// WithAddress sets the address to listen on instead of a free port of 127.0.0.1, so that a
// server can come back where another one was.
func WithAddress(address string) Option { return func(s *Server) { s.address = address } }

// WithScopes sets the token's scopes; without channels:read it may not ask about channels, and
// without usergroups:read not about user groups.
func WithScopes(scopes ...string) Option {
	return func(s *Server) { s.scopes = strings.Join(scopes, ",") }
}

// WithChannels sets the channels that exist. Without it every channel exists, under any name,
// and the bot is in it.
func WithChannels(channels ...Channel) Option {
	return func(s *Server) { s.channels = slices.Clone(channels) }
}

// WithUserGroups sets the user groups that exist. Without it there are none.
func WithUserGroups(groups ...UserGroup) Option {
	return func(s *Server) { s.groups = slices.Clone(groups) }
}

// New starts a server that is closed when the test ends.
func New(t testing.TB, options ...Option) *Server {
	t.Helper()
	s, err := Start(options...)
	if err != nil {
		t.Fatalf("start the Slack stand-in: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// Start starts a server. The caller closes it.
func Start(options ...Option) (*Server, error) {
	s := &Server{
		token:   DefaultToken,
		secret:  DefaultWebhookSecret,
		scopes:  "chat:write,channels:read,groups:read,usergroups:read",
		address: "127.0.0.1:0",
		closing: make(chan struct{}),
		changed: make(chan struct{}),
		calls:   make(map[string]int),
	}
	for _, option := range options {
		option(s)
	}
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.address, err)
	}
	s.listener = &resettingListener{Listener: listener}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/{method}", s.serveMethod)
	mux.HandleFunc("/services/{team}/{bot}/{secret}", s.serveWebhook)
	s.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !s.enter() {
				panic(http.ErrAbortHandler)
			}
			defer s.running.Done()
			mux.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // resets are part of the script
	}
	s.running.Go(func() { _ = s.server.Serve(s.listener) })
	return s, nil
}

// Close ends the server. It may be called more than once.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	_ = s.server.Close()
	s.running.Wait()
}

// enter lets a handler begin unless the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// Address returns the host and port that the server listens on.
func (s *Server) Address() string { return s.listener.Addr().String() }

// APIURL returns the Web API's URL, with a final slash.
func (s *Server) APIURL() string { return "http://" + s.Address() + "/api/" }

// WebhookURL returns the incoming webhook's URL.
func (s *Server) WebhookURL() string {
	return "http://" + s.Address() + "/services/T00000000/B00000000/" + url.PathEscape(s.secret)
}

// Script appends answers, each used for one post or update, before what Respond has set.
func (s *Server) Script(answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, answers...)
}

// Respond sets a function that answers the posts and updates for which Script holds nothing; nil
// means OK for all. It may be called for several of them at once.
func (s *Server) Respond(respond func(Post) Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.respond = respond
}

// ResetConnections resets the next n connections before a request is read from them. Such
// requests are not recorded.
func (s *Server) ResetConnections(n int) { s.listener.left.Store(int64(n)) }

// Posts returns every post received so far, in order of arrival.
func (s *Server) Posts() []Post { return s.copyPosts(func(*Post) bool { return true }) }

// Accepted returns the posts that were taken so far, in order of arrival.
func (s *Server) Accepted() []Post { return s.copyPosts(func(p *Post) bool { return p.Accepted }) }

// Updates returns the updates that were taken so far, in order of arrival.
func (s *Server) Updates() []Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.updates)
}

// Delete removes the posts with a ts, as a user does: a message that nobody answered leaves no trace,
// so it can neither be updated nor replied to.
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

// Calls returns how many requests came for a Web API method, or for "webhook".
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Await returns when n posts have been accepted, or with an error when ctx ends before that.
func (s *Server) Await(ctx context.Context, n int) error {
	return s.await(ctx, n, "posts", func() int { return s.accepted })
}

// AwaitUpdates returns when n updates have been taken, or with an error when ctx ends before that.
func (s *Server) AwaitUpdates(ctx context.Context, n int) error {
	return s.await(ctx, n, "updates", func() int { return len(s.updates) })
}

// await calls count with the lock held.
func (s *Server) await(ctx context.Context, n int, what string, count func() int) error {
	for {
		s.mu.Lock()
		accepted, changed := count(), s.changed
		s.mu.Unlock()
		if accepted >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("await %d accepted %s, have %d: %w", n, what, accepted, ctx.Err())
		}
	}
}
