package slacktest

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
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

// parameters are those of one request; a nested JSON value keeps its text.
type parameters map[string]string

func readParameters(r *http.Request) (parameters, error) {
	p := make(parameters)
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if len(body) > maxBody {
		return nil, errors.New("the request is too large")
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "application/json" {
		values, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, fmt.Errorf("parse the form: %w", err)
		}
		for name, value := range r.URL.Query() {
			p[name] = value[0]
		}
		for name, value := range values {
			p[name] = value[0]
		}
		return p, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, fmt.Errorf("parse the JSON: %w", err)
	}
	for name, value := range members {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		p[name] = text
	}
	return p, nil
}

func (s *Server) count(method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[method]++
}

// authenticate returns the code with which Slack refuses the request, or "".
func (s *Server) authenticate(r *http.Request, p parameters) string {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer {
		token = p["token"]
	}
	switch {
	case token == "":
		return "not_authed"
	case subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 0:
		return "invalid_auth"
	}
	return ""
}

func (s *Server) serveMethod(w http.ResponseWriter, r *http.Request) {
	method := r.PathValue("method")
	s.count(method)
	p, err := readParameters(r)
	if err != nil {
		writeJSON(w, map[string]any{"ok": false, "error": "invalid_json"})
		return
	}
	fault := s.authenticate(r, p)
	if method == MethodPost || method == MethodUpdate {
		s.servePost(w, r, newPost(r, method, p), fault)
		return
	}
	w.Header().Set("X-OAuth-Scopes", s.scopes)
	if fault != "" {
		writeJSON(w, map[string]any{"ok": false, "error": fault})
		return
	}
	switch method {
	case "auth.test":
		writeJSON(w, map[string]any{
			"ok": true, "url": "http://" + s.Address() + "/", "team": "Test", "user": "notifier",
			"team_id": "T00000000", "user_id": "U00000000", "bot_id": "B00000000",
		})
	case "conversations.info":
		if s.allow(w, "channels:read") {
			s.serveChannel(w, p["channel"])
		}
	case "users.conversations":
		if s.allow(w, "channels:read") {
			s.serveMemberships(w)
		}
	case "usergroups.list":
		if s.allow(w, "usergroups:read") {
			s.serveUserGroups(w)
		}
	default:
		writeJSON(w, map[string]any{"ok": false, "error": "unknown_method"})
	}
}

// allow reports whether the token has a scope, and answers if it has not.
func (s *Server) allow(w http.ResponseWriter, scope string) bool {
	if slices.Contains(strings.Split(s.scopes, ","), scope) {
		return true
	}
	writeJSON(w, map[string]any{"ok": false, "error": "missing_scope", "needed": scope, "provided": s.scopes})
	return false
}

// serveChannel finds a channel by its ID alone, as Slack does.
func (s *Server) serveChannel(w http.ResponseWriter, id string) {
	if len(s.channels) == 0 {
		writeJSON(w, map[string]any{"ok": true, "channel": Channel{ID: id, Name: strings.ToLower(id), Member: true}})
		return
	}
	for _, channel := range s.channels {
		if channel.ID == id && (channel.Member || !channel.Private) {
			writeJSON(w, map[string]any{"ok": true, "channel": channel})
			return
		}
	}
	writeJSON(w, map[string]any{"ok": false, "error": "channel_not_found"})
}

func (s *Server) serveMemberships(w http.ResponseWriter) {
	channels := []Channel{}
	for _, channel := range s.channels {
		if channel.Member && !channel.Archived {
			channels = append(channels, channel)
		}
	}
	writeJSON(w, map[string]any{
		"ok": true, "channels": channels, "response_metadata": map[string]any{"next_cursor": ""},
	})
}

// serveUserGroups lists the groups without the disabled ones, each as long as Slack's are.
func (s *Server) serveUserGroups(w http.ResponseWriter) {
	groups := []map[string]any{}
	for _, group := range s.groups {
		if group.Disabled {
			continue
		}
		groups = append(groups, map[string]any{
			"id": group.ID, "team_id": "T00000000", "is_usergroup": true, "is_subteam": true, "is_external": false,
			"name": "The group " + group.Handle, "description": strings.Repeat("What it is for. ", 10), "handle": group.Handle,
			"date_create": 1446598059, "date_update": 1446670362, "date_delete": 0, "auto_type": nil, "auto_provision": false,
			"enterprise_subteam_id": "", "created_by": "U00000000", "updated_by": "U00000000", "deleted_by": nil,
			"prefs": map[string]any{"channels": []string{}, "groups": []string{}}, "user_count": 3, "channel_count": 0,
		})
	}
	writeJSON(w, map[string]any{"ok": true, "usergroups": groups})
}

func (s *Server) serveWebhook(w http.ResponseWriter, r *http.Request) {
	s.count(MethodWebhook)
	if r.PathValue("secret") != s.secret {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "no_service")
		return
	}
	p, err := readParameters(r)
	fault := ""
	if err != nil {
		fault = "invalid_payload"
	} else if payload := p["payload"]; payload != "" {
		fault = "invalid_payload" // the old form encoding is not what anyone should send
	}
	post := newPost(r, MethodWebhook, p)
	post.Channel = ""
	s.servePost(w, r, post, fault)
}

// channelFault returns the code with which Slack refuses to post to a channel, or "".
func (s *Server) channelFault(named string) string {
	if named == "" {
		return "channel_not_found"
	}
	if len(s.channels) == 0 {
		return ""
	}
	for _, channel := range s.channels {
		if channel.ID != named && channel.Name != strings.TrimPrefix(named, "#") {
			continue
		}
		switch {
		case channel.Private && !channel.Member:
			return "channel_not_found"
		case channel.Archived:
			return "is_archived"
		case !channel.Member && !strings.Contains(s.scopes, "chat:write.public"):
			return "not_in_channel"
		}
		return ""
	}
	return "channel_not_found"
}

// channelID returns the ID of a channel as Slack's answers name it, whatever the client called it. Where
// every channel exists, a name gets an ID of its own.
func (s *Server) channelID(named string) string {
	name := strings.TrimPrefix(named, "#")
	for _, channel := range s.channels {
		if channel.ID == named || channel.Name == name {
			return channel.ID
		}
	}
	if channelID.MatchString(named) {
		return named
	}
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, name)
	return fmt.Sprintf("C%08X", hash.Sum32())
}

var (
	channelID = regexp.MustCompile(`^[CDG][A-Z0-9]{2,}$`)
	timestamp = regexp.MustCompile(`^[0-9]{1,12}\.[0-9]{6}$`)
)

func newPost(r *http.Request, method string, p parameters) *Post {
	post := &Post{
		Received: time.Now(),
		Method:   method,
		Webhook:  method == MethodWebhook,
		Channel:  p["channel"],
		Text:     p["text"],
		Options:  make(url.Values),
		Header:   r.Header.Clone(),
		Remote:   r.RemoteAddr,
	}
	if method == MethodUpdate {
		post.Timestamp = p["ts"]
	}
	for name, value := range p {
		switch name {
		case "channel", "text", "token":
		case "blocks":
			post.Blocks = json.RawMessage(value)
		case "attachments":
			post.Attachments = json.RawMessage(value)
		default:
			post.Options.Set(name, value)
		}
	}
	return post
}

// servePost answers a post or an update for which nothing but fault is wrong so far.
func (s *Server) servePost(w http.ResponseWriter, r *http.Request, post *Post, fault string) {
	if fault == "" {
		fault = s.placeFault(post)
	}
	var messageFault string
	post.Message, messageFault = parseMessage(post.Text, post.Blocks, post.Attachments)
	if fault == "" {
		fault = messageFault
	}
	post.Fault = fault
	s.answerFor(post).serve(&exchange{server: s, post: post, writer: w, request: r})
}

// placeFault finds the channel and the thread of a post, or the message that an update changes. It returns
// the code with which Slack refuses the place, or "".
func (s *Server) placeFault(post *Post) string {
	if post.Webhook {
		return ""
	}
	if fault := s.channelFault(post.Channel); fault != "" {
		return fault
	}
	post.ChannelID = s.channelID(post.Channel)
	thread := post.Options.Get("thread_ts")
	switch {
	case post.Method == MethodUpdate && post.Channel != post.ChannelID:
		return "channel_not_found" // chat.update takes IDs alone
	case post.Method == MethodUpdate && !s.exists(post.ChannelID, post.Timestamp):
		return "message_not_found"
	case post.Options.Has("thread_ts") && !timestamp.MatchString(thread):
		return "invalid_thread_ts"
	case post.Method == MethodPost && thread != "" && s.exists(post.ChannelID, thread):
		post.Thread = thread // else Slack posts it to the channel and says nothing
	}
	return ""
}

// exists reports whether a message was posted and not deleted.
func (s *Server) exists(channel, timestamp string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.posts, func(p *Post) bool {
		return p.Accepted && !p.deleted && p.ChannelID == channel && p.Timestamp == timestamp
	})
}

// answerFor records a post and takes its answer, or that of an update, from the script.
func (s *Server) answerFor(post *Post) Answer {
	s.mu.Lock()
	if post.Method != MethodUpdate {
		s.posts = append(s.posts, post)
	}
	respond, record := s.respond, *post
	if len(s.queue) > 0 {
		answer := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		return answer
	}
	s.mu.Unlock()
	if respond == nil {
		return OK()
	}
	return respond(record)
}

// accept counts a post or an update as taken. It happens before the answer is written, so that a client
// that has its answer finds it accepted.
func (s *Server) accept(post *Post) {
	s.mu.Lock()
	defer s.mu.Unlock()
	post.Accepted = true
	if post.Method == MethodUpdate {
		s.updates = append(s.updates, Update{post.Received, post.ChannelID, post.Timestamp, post.Message})
	} else {
		s.accepted++
		post.Timestamp = fmt.Sprintf("%d.%06d", post.Received.Unix(), s.accepted)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(value) // a client that has gone needs no answer
}
