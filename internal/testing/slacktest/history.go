package slacktest

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The methods that read messages.
const (
	MethodHistory = "conversations.history"
	MethodReplies = "conversations.replies"
)

// Slack's page sizes.
const (
	usualPage   = 100
	largestPage = 999
)

// serveHistory lists the messages of a channel, the newest first. Replies are not in it.
func (s *Server) serveHistory(w http.ResponseWriter, p parameters) {
	if s.refuseReading(w, p["channel"]) {
		return
	}
	messages := s.visible(p["channel"], func(post *Post) bool { return post.Thread == "" })
	slices.Reverse(messages)
	s.servePage(w, messages, p)
}

// serveReplies lists the first message of a thread and its replies, the oldest first.
func (s *Server) serveReplies(w http.ResponseWriter, p parameters) {
	if s.refuseReading(w, p["channel"]) {
		return
	}
	messages := s.visible(p["channel"], func(post *Post) bool { return post.Thread == p["ts"] || post.Timestamp == p["ts"] })
	if len(messages) == 0 {
		refuse(w, "thread_not_found")
		return
	}
	s.servePage(w, messages, p)
}

// refuseReading refuses a request if the token may not read the messages of a channel. Like Slack, it takes IDs of channels alone.
func (s *Server) refuseReading(w http.ResponseWriter, id string) bool {
	channel := Channel{ID: id, Member: true}
	if len(s.channels) > 0 {
		at := slices.IndexFunc(s.channels, func(c Channel) bool { return c.ID == id && (c.Member || !c.Private) })
		if at < 0 {
			refuse(w, "channel_not_found")
			return true
		}
		channel = s.channels[at]
	} else if !channelID.MatchString(id) {
		refuse(w, "channel_not_found")
		return true
	}
	scope := "channels:history"
	if channel.Private {
		scope = "groups:history"
	}
	switch {
	case !slices.Contains(strings.Split(s.scopes, ","), scope):
		writeJSON(w, map[string]any{"ok": false, "error": "missing_scope", "needed": scope, "provided": s.scopes})
	case !channel.Member:
		refuse(w, "not_in_channel")
	default:
		return false
	}
	return true
}

// visible returns the messages of a channel that its history has by now, in order of their ts.
func (s *Server) visible(channel string, want func(*Post) bool) (messages []*Post) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, post := range s.posts {
		if post.Accepted && !post.deleted && post.ChannelID == channel && !now.Before(post.taken.Add(s.delay)) && want(post) {
			messages = append(messages, post)
		}
	}
	slices.SortFunc(messages, func(a, b *Post) int { return cmp.Compare(microseconds(a.Timestamp), microseconds(b.Timestamp)) })
	return messages
}

// servePage answers with the messages after "oldest" that follow the cursor, which is the ts of the last message of the page before.
func (s *Server) servePage(w http.ResponseWriter, messages []*Post, p parameters) {
	first, oldest := 0, microseconds(p["oldest"])
	if p["cursor"] != "" {
		first = slices.IndexFunc(messages, func(post *Post) bool { return post.Timestamp == p["cursor"] }) + 1
	}
	limit, err := strconv.Atoi(p["limit"])
	if err != nil || limit < 1 || limit > largestPage {
		limit = usualPage
	}
	metadata := p["include_all_metadata"] == "1" || p["include_all_metadata"] == "true"
	page, cursor := []map[string]any{}, ""
	for i, post := range messages[first:] {
		if microseconds(post.Timestamp) <= oldest && post.Timestamp != p["ts"] {
			continue
		}
		if len(page) == limit {
			cursor = messages[first+i-1].Timestamp
			break
		}
		page = append(page, post.shown(metadata))
	}
	answer(w, map[string]any{"messages": page, "has_more": cursor != "", "response_metadata": map[string]any{"next_cursor": cursor}})
}

// shown returns a message as Slack's answers have it.
func (p *Post) shown(metadata bool) map[string]any {
	message := map[string]any{
		"type": "message", "text": p.Text, "ts": p.Timestamp, "blocks": orEmpty(p.Blocks), "attachments": orEmpty(p.Attachments),
	}
	if p.Thread != "" {
		message["thread_ts"] = p.Thread
	}
	if metadata && p.Metadata.EventType != "" {
		message["metadata"] = p.Metadata
	}
	return message
}

// microseconds returns the time of a ts; 0 if it is none.
func microseconds(ts string) int64 {
	whole, fraction, _ := strings.Cut(ts, ".")
	seconds, _ := strconv.ParseInt(whole, 10, 64)
	rest, _ := strconv.ParseInt((fraction + "000000")[:6], 10, 64)
	return seconds*1e6 + rest
}

// serveMemberships lists the bot's channels, without the private ones unless the request asks for them. If every channel exists, these are the
// channels that it has posted to.
func (s *Server) serveMemberships(w http.ResponseWriter, p parameters) {
	channels := []Channel{}
	for _, channel := range s.channels {
		if channel.Member && !channel.Archived && (!channel.Private || strings.Contains(p["types"], "private_channel")) {
			channels = append(channels, channel)
		}
	}
	if len(s.channels) == 0 {
		for _, post := range s.Accepted() {
			channel := Channel{ID: post.ChannelID, Name: strings.ToLower(strings.TrimPrefix(post.Channel, "#")), Member: true}
			if post.ChannelID != "" && !slices.ContainsFunc(channels, func(c Channel) bool { return c.ID == channel.ID }) {
				channels = append(channels, channel)
			}
		}
	}
	first, _ := strconv.Atoi(p["cursor"])
	first = min(max(first, 0), len(channels))
	limit, err := strconv.Atoi(p["limit"])
	if err != nil || limit < 1 {
		limit = usualPage
	}
	last, cursor := min(first+limit, len(channels)), ""
	if last < len(channels) {
		cursor = strconv.Itoa(last)
	}
	answer(w, map[string]any{"channels": channels[first:last], "response_metadata": map[string]any{"next_cursor": cursor}})
}
