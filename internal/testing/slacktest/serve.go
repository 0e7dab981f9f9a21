package slacktest

import (
	"cmp"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// parameters holds the parameters of one request. A nested JSON value keeps its text.
type parameters map[string]string

func readParameters(r *http.Request) (parameters, error) {
	p := make(parameters)
	r.Body = http.MaxBytesReader(nil, r.Body, maxBody)
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		if err := r.ParseForm(); err != nil {
			return nil, fmt.Errorf("parse the form: %w", err)
		}
		for name, values := range r.Form {
			p[name] = values[0]
		}
		return p, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
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

// authenticate returns Slack's error code for the request; "" if Slack takes it.
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
		refuse(w, "invalid_json")
		return
	}
	fault := s.authenticate(r, p)
	if method == MethodPost || method == MethodUpdate {
		s.servePost(w, r, newPost(r, method, p), fault)
		return
	}
	w.Header().Set("X-OAuth-Scopes", s.scopes)
	if fault != "" {
		refuse(w, fault)
		return
	}
	scope := map[string]string{
		"conversations.info": "channels:read", "users.conversations": "channels:read", "usergroups.list": "usergroups:read",
	}[method]
	if method == "users.conversations" && strings.Contains(p["types"], "private_channel") && !slices.Contains(strings.Split(s.scopes, ","), "groups:read") {
		scope = "groups:read"
	}
	if scope != "" && !slices.Contains(strings.Split(s.scopes, ","), scope) {
		writeJSON(w, map[string]any{"ok": false, "error": "missing_scope", "needed": scope, "provided": s.scopes})
		return
	}
	x := &exchange{server: s, writer: w, left: r.Context().Done()}
	if wait := s.overLimit(method, "", time.Now()); wait > 0 {
		RateLimited(wait).serve(x)
		return
	}
	x.succeed = func() { s.answerMethod(w, method, p) }
	s.answerTo(method).serve(x)
}

// answerTo returns the answer that a test has set for a method.
func (s *Server) answerTo(method string) Answer {
	s.mu.Lock()
	respond := s.others[method]
	s.mu.Unlock()
	if respond == nil {
		return OK()
	}
	return respond()
}

// answerMethod answers a method that posts nothing.
func (s *Server) answerMethod(w http.ResponseWriter, method string, p parameters) {
	switch method {
	case "auth.test":
		answer(w, map[string]any{
			"url": s.server.URL + "/", "team": "Test", "user": "notifier",
			"team_id": "T00000000", "user_id": "U00000000", "bot_id": "B00000000",
		})
	case "conversations.info":
		s.serveChannel(w, p["channel"])
	case "users.conversations":
		s.serveMemberships(w, p)
	case MethodHistory:
		s.serveHistory(w, p)
	case MethodReplies:
		s.serveReplies(w, p)
	case "usergroups.list":
		s.serveUserGroups(w)
	default:
		refuse(w, "unknown_method")
	}
}

// serveChannel finds a channel by its ID alone, as Slack does.
func (s *Server) serveChannel(w http.ResponseWriter, id string) {
	channel := Channel{ID: id, Name: strings.ToLower(id), Member: true}
	if len(s.channels) > 0 {
		i := slices.IndexFunc(s.channels, func(c Channel) bool { return c.ID == id && (c.Member || !c.Private) })
		if i < 0 {
			refuse(w, "channel_not_found")
			return
		}
		channel = s.channels[i]
	}
	answer(w, map[string]any{"channel": channel})
}

// serveUserGroups lists the groups without the disabled ones, each as long as Slack's are.
func (s *Server) serveUserGroups(w http.ResponseWriter) {
	groups := []map[string]any{}
	for _, group := range s.groups {
		if group.Disabled {
			continue
		}
		groups = append(groups, map[string]any{
			"id": group.ID, "handle": group.Handle, "date_delete": 0, "description": strings.Repeat("What it is for. ", 30),
		})
	}
	answer(w, map[string]any{"usergroups": groups})
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
	if err != nil || p["payload"] != "" { // the old form encoding is not what anyone should send
		fault = "invalid_payload"
	}
	post := newPost(r, MethodWebhook, p)
	post.Channel = ""
	s.servePost(w, r, post, fault)
}

// channelFault returns Slack's error code for a post to the channel; "" if there is none.
func (s *Server) channelFault(named string) string {
	if named == "" {
		return "channel_not_found"
	}
	if len(s.channels) == 0 {
		return ""
	}
	channel, known := s.channel(named)
	switch {
	case !known, channel.Private && !channel.Member:
		return "channel_not_found"
	case channel.Archived:
		return "is_archived"
	case !channel.Member && !strings.Contains(s.scopes, "chat:write.public"):
		return "not_in_channel"
	}
	return ""
}

// channel finds a channel by its ID or its name.
func (s *Server) channel(named string) (channel Channel, known bool) {
	for _, channel := range s.channels {
		if channel.ID == named || channel.Name == strings.TrimPrefix(named, "#") {
			return channel, true
		}
	}
	return Channel{}, false
}

// channelID returns the channel ID of Slack's answers, whatever the client called the channel. If every channel exists, each name gets its
// own ID.
func (s *Server) channelID(named string) string {
	if channel, known := s.channel(named); known {
		return channel.ID
	}
	if channelID.MatchString(named) {
		return named
	}
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, strings.TrimPrefix(named, "#"))
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

// servePost answers a post or an update. fault is the only fault found so far.
func (s *Server) servePost(w http.ResponseWriter, r *http.Request, post *Post, fault string) {
	if fault == "" {
		fault = s.placeFault(post)
	}
	var messageFault string
	post.Message, messageFault = parseMessage(post.Text, post.Blocks, post.Attachments)
	if metadata := post.Options.Get("metadata"); metadata != "" && json.Unmarshal([]byte(metadata), &post.Metadata) != nil {
		messageFault = cmp.Or(messageFault, "invalid_metadata_format")
	}
	post.Fault = cmp.Or(fault, messageFault)
	x := &exchange{server: s, post: post, writer: w, left: r.Context().Done()}
	x.succeed = func() { s.succeedPost(x) }
	wait := s.overLimit(post.Method, cmp.Or(post.ChannelID, post.Method), post.Received)
	if wait > 0 {
		post.Fault = "ratelimited"
		s.record(post)
		RateLimited(wait).serve(x)
		return
	}
	s.record(post)
	s.answerFor(post).serve(x)
}

// succeedPost accepts a post without a fault, and refuses any other post.
func (s *Server) succeedPost(x *exchange) {
	post := x.post
	if post.Fault != "" {
		Code(post.Fault).serve(x)
		return
	}
	s.accept(post)
	if post.Method == MethodWebhook {
		x.writer.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(x.writer, "ok")
		return
	}
	answer(x.writer, map[string]any{"channel": post.ChannelID, "ts": post.Timestamp, "message": post.shown(true)})
}

// record keeps a post.
func (s *Server) record(post *Post) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if post.Method != MethodUpdate {
		s.received++
		s.posts = remembered(append(s.posts, post), s.memory)
	}
}

// placeFault finds the channel and thread of a post. For an update it finds the message to change. It returns Slack's error code for an
// invalid place, "" for a valid place.
func (s *Server) placeFault(post *Post) string {
	if post.Method == MethodWebhook {
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

// answerFor takes the answer to a post or an update from the script.
func (s *Server) answerFor(post *Post) Answer {
	s.mu.Lock()
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

// remembered drops the oldest entries above a number; 0 keeps all.
func remembered[T any](entries []T, most int) []T {
	if most > 0 && len(entries) > most {
		return slices.Delete(entries, 0, len(entries)-most)
	}
	return entries
}

// accept counts a post or an update as taken. The caller answers afterwards, so that a client with an answer finds its post
// accepted.
func (s *Server) accept(post *Post) {
	s.mu.Lock()
	defer s.mu.Unlock()
	post.Accepted = true
	if post.Method == MethodUpdate {
		s.updates = remembered(append(s.updates, Update{post.Received, post.ChannelID, post.Timestamp, post.Message}), s.memory)
	} else {
		s.accepted++
		s.last = max(s.last+1, post.Received.UnixMicro())
		post.Timestamp, post.taken = fmt.Sprintf("%d.%06d", s.last/1e6, s.last%1e6), time.Now()
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// answer answers a method that succeeded.
func answer(w http.ResponseWriter, members map[string]any) {
	members["ok"] = true
	writeJSON(w, members)
}

// refuse answers with an error code.
func refuse(w http.ResponseWriter, code string) {
	writeJSON(w, map[string]any{"ok": false, "error": code})
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(value) // a client that has gone needs no answer
}
