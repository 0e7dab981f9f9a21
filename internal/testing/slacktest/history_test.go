package slacktest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// listed is an answer of a method that lists messages or channels.
type listed struct {
	OK       bool   `json:"ok"`
	Error    string `json:"error"`
	Needed   string `json:"needed"`
	TS       string `json:"ts"`
	HasMore  bool   `json:"has_more"`
	Messages []struct {
		Text, TS string
		Metadata *Metadata
	}
	Channels []Channel
	Next     struct {
		Cursor string `json:"next_cursor"`
	} `json:"response_metadata"`

	status     int
	retryAfter string
}

// texts returns the texts of the messages, joined by blanks.
func (l listed) texts() string {
	var texts []string
	for _, message := range l.Messages {
		texts = append(texts, message.Text)
	}
	return strings.Join(texts, " ")
}

// ask calls a method with pairs of parameters.
func ask(t *testing.T, s *Server, method string, pairs ...string) (answered listed) {
	t.Helper()
	form := url.Values{"token": {DefaultToken}, "channel": {"C0000001"}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	request := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, s.APIURL()+method, strings.NewReader(form.Encode())))(t)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	testkit.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	_ = json.NewDecoder(response.Body).Decode(&answered) // some answers are no JSON
	answered.status, answered.retryAfter = response.StatusCode, response.Header.Get("Retry-After")
	return answered
}

// TestHistory reads messages by pages, by time and by thread, and their metadata if it is asked for.
func TestHistory(t *testing.T) {
	t.Parallel()
	s := New(t)
	const metadata = `{"event_type":"e","event_payload":{"name":"n"}}`
	first := ask(t, s, MethodPost, "text", "one", "metadata", metadata)
	for _, text := range []string{"two", "three"} {
		ask(t, s, MethodPost, "text", text)
	}
	ask(t, s, MethodPost, "text", "reply", "thread_ts", first.TS)
	ask(t, s, MethodPost, "text", "elsewhere", "channel", "C0000002")
	page := ask(t, s, MethodHistory, "limit", "2", "include_all_metadata", "1")
	testkit.Equal(t, page.texts(), "three two", "first page")
	testkit.Equal(t, page.HasMore, true, "more")
	page = ask(t, s, MethodHistory, "limit", "2", "include_all_metadata", "1", "cursor", page.Next.Cursor)
	testkit.Equal(t, page.texts()+page.Next.Cursor, "one", "last page")
	testkit.Equal(t, fmt.Sprint(*page.Messages[0].Metadata), "{e map[name:n]}", "metadata")
	testkit.Equal(t, ask(t, s, MethodHistory, "oldest", first.TS).texts(), "three two", "after the first message")
	testkit.Check(t, ask(t, s, MethodHistory).Messages[2].Metadata == nil, "got metadata that nobody asked for")
	testkit.Equal(t, ask(t, s, MethodReplies, "ts", first.TS, "oldest", first.TS).texts(), "one reply", "thread")
	s.Delete(first.TS)
	testkit.Equal(t, ask(t, s, MethodHistory).texts(), "three two", "without the deleted message")
	testkit.Equal(t, ask(t, s, MethodReplies, "ts", "1.000001").Error, "thread_not_found", "no thread")
	testkit.Equal(t, ask(t, s, MethodPost, "text", "t", "metadata", "{").Error, "invalid_metadata_format", "bad metadata")
}

func TestHistoryIsLate(t *testing.T) {
	t.Parallel()
	s := New(t, WithHistoryDelay(100*time.Millisecond))
	ask(t, s, MethodPost, "text", "late")
	testkit.Equal(t, ask(t, s, MethodHistory).texts(), "", "at once")
	testkit.Eventually(t, "the message is in the history", func() bool { return ask(t, s, MethodHistory).texts() == "late" })
}

// TestReadingIsRefused wants the codes of Slack for channels that the token may not read.
func TestReadingIsRefused(t *testing.T) {
	t.Parallel()
	channels := WithChannels(Channel{ID: "C0000001", Name: "ops", Member: true}, Channel{ID: "C0000002", Name: "other"},
		Channel{ID: "C0000003", Name: "secret", Private: true, Member: true}, Channel{ID: "C0000004", Private: true})
	s, blind := New(t, channels, WithScopes("channels:history", "channels:read")), New(t, channels, WithScopes("channels:read"))
	for channel, want := range map[string]string{
		"C0000001": "", "C0000002": "not_in_channel", "C0000003": "missing_scope", "C0000004": "channel_not_found", "#ops": "channel_not_found",
	} {
		testkit.Equal(t, ask(t, s, MethodHistory, "channel", channel).Error, want, "history of %s", channel)
	}
	testkit.Equal(t, ask(t, blind, MethodReplies, "ts", "1.000001").Needed, "channels:history", "needed")
	const types = "public_channel,private_channel"
	testkit.Equal(t, ask(t, s, "users.conversations", "types", types).Needed, "groups:read", "needed for private channels")
	testkit.Equal(t, len(ask(t, s, "users.conversations").Channels), 1, "public channels")
	all := New(t, channels)
	page := ask(t, all, "users.conversations", "types", types, "limit", "1")
	testkit.Equal(t, page.Channels[0].Name+page.Next.Cursor, "ops1", "first page of channels")
	page = ask(t, all, "users.conversations", "types", types, "limit", "1", "cursor", page.Next.Cursor)
	testkit.Equal(t, page.Channels[0].Name+page.Next.Cursor, "secret", "last page of channels")
	everywhere := New(t)
	testkit.Equal(t, ask(t, everywhere, MethodHistory, "channel", "ops").Error, "channel_not_found", "a name")
	ask(t, everywhere, MethodPost, "text", "t", "channel", "#ops")
	testkit.Equal(t, ask(t, everywhere, "users.conversations").Channels[0].Name, "ops", "the channels that exist")
}

// TestStored answers as if Slack failed after it took the message.
func TestStored(t *testing.T) {
	t.Parallel()
	s := New(t)
	s.Script(Stored(Status(500, "")), Stored(Code("fatal_error")))
	testkit.Equal(t, ask(t, s, MethodPost, "text", "one").status, 500, "status")
	testkit.Equal(t, ask(t, s, MethodPost, "text", "two").Error, "fatal_error", "code")
	testkit.Equal(t, ask(t, s, MethodHistory).texts(), "two one", "history")
	s.RespondTo(MethodHistory, func() Answer { return Code("internal_error") })
	testkit.Equal(t, ask(t, s, MethodHistory).Error, "internal_error", "a look-up that fails")
	s.RespondTo(MethodHistory, nil)
	testkit.Equal(t, ask(t, s, MethodHistory).OK, true, "the next one")
}

// TestLimits counts requests as Slack does. A refused request counts against no limit.
func TestLimits(t *testing.T) {
	t.Parallel()
	hour := func(n int) Limit { return Limit{n, time.Hour} }
	s := New(t, WithLimits(Limits{Methods: map[string]Limit{MethodHistory: hour(1)}, Channel: hour(2), Workspace: hour(3)}))
	post := func(channel string) int { return ask(t, s, MethodPost, "text", "t", "channel", channel).status }
	for i, test := range []struct {
		channel string
		status  int
	}{{"C0000001", 200}, {"C0000001", 200}, {"C0000001", 429}, {"C0000002", 200}, {"C0000003", 429}} {
		testkit.Equal(t, post(test.channel), test.status, "post %d", i)
	}
	testkit.Equal(t, ask(t, s, MethodHistory).status, 200, "first look-up")
	limited := ask(t, s, MethodHistory)
	testkit.Equal(t, limited.Error+" "+limited.retryAfter, "ratelimited 3600", "second look-up")
	testkit.Equal(t, s.Limited(MethodPost)+s.Limited(MethodHistory), 3, "requests above a limit")
	testkit.Equal(t, len(s.Accepted()), 3, "accepted posts")

	short := New(t, WithLimits(Limits{Workspace: Limit{1, 50 * time.Millisecond}}))
	testkit.Equal(t, ask(t, short, MethodPost, "text", "t").status, 200, "first post")
	testkit.Eventually(t, "room in the window", func() bool { return ask(t, short, MethodPost, "text", "t").OK })
	testkit.Equal(t, SlackLimits().Workspace, Limit{300, time.Minute}, "posts of a workspace")
}
