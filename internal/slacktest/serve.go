package slacktest

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
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
