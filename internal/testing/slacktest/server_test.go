package slacktest

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFaults wants the codes that Slack has for bad requests, "" for an accepted one. The suites trust these codes.
func TestFaults(t *testing.T) {
	t.Parallel()
	section := func(text string) string {
		return `{"type":"section","text":{"type":"plain_text","text":"` + text + `"}}`
	}
	long := "[" + section(strings.Repeat("x", 3001)) + "]"
	five := strings.TrimSuffix(strings.Repeat(section(strings.Repeat("x", 3000))+",", 5), ",")
	channels := WithChannels(Channel{ID: "C0000001", Name: "in", Member: true}, Channel{ID: "C0000002", Name: "out"},
		Channel{ID: "C0000003", Name: "old", Member: true, Archived: true}, Channel{ID: "C0000004", Name: "hidden", Private: true})
	s, anywhere := New(t, channels), New(t, channels, WithScopes("chat:write", "chat:write.public"))
	first, gone := ask(t, s, MethodPost, "text", "first").TS, ask(t, s, MethodPost, "text", "gone").TS
	s.Delete(gone)
	for _, test := range []struct {
		server      *Server
		method      string
		name, value string // a parameter, "" for none
		fault       string
	}{
		{s, MethodPost, "", "", ""},
		{s, MethodPost, "token", "", "not_authed"},
		{s, MethodPost, "token", "xoxb-other", "invalid_auth"},
		{s, MethodPost, "text", "", "no_text"},
		{s, MethodPost, "text", strings.Repeat("x", 40001), "msg_too_long"},
		{s, MethodPost, "blocks", "[" + section("hello") + "]", ""},
		{s, MethodPost, "blocks", "[", "invalid_blocks_format"},
		{s, MethodPost, "blocks", long, "invalid_blocks"},
		{s, MethodPost, "blocks", "[" + section("") + "]", "invalid_blocks"},
		{s, MethodPost, "blocks", `[{"type":"unknown"}]`, "invalid_blocks"},
		{s, MethodPost, "blocks", "[" + five + "]", "msg_blocks_too_long"},
		{s, MethodPost, "attachments", "{", "invalid_attachments"},
		{s, MethodPost, "attachments", `[{"blocks":` + long + `}]`, "invalid_attachments"},
		{s, MethodPost, "channel", "", "channel_not_found"},
		{s, MethodPost, "channel", "#in", ""},
		{s, MethodPost, "channel", "C0000002", "not_in_channel"},
		{anywhere, MethodPost, "channel", "C0000002", ""},
		{s, MethodPost, "channel", "C0000003", "is_archived"},
		{s, MethodPost, "channel", "C0000004", "channel_not_found"},
		{s, MethodPost, "thread_ts", "soon", "invalid_thread_ts"},
		{s, "chat.update", "", "", ""},
		{s, "chat.update", "token", "", "not_authed"},
		{s, "chat.update", "channel", "#in", "channel_not_found"},
		{s, "chat.update", "ts", "1700000000.000001", "message_not_found"},
		{s, "chat.update", "ts", gone, "message_not_found"},
		{s, "chat.update", "text", "", "no_text"},
		{s, "chat.unknown", "", "", "unknown_method"},
	} {
		posts := len(test.server.Accepted())
		got := ask(t, test.server, test.method, "text", "hello", "ts", first, test.name, test.value)
		testkit.Equal(t, got.Error, test.fault, "%s with %s=%.40q", test.method, test.name, test.value)
		testkit.Equal(t, len(test.server.Accepted()) > posts, test.fault == "" && test.method == MethodPost, "accepted post")
	}
	testkit.Equal(t, len(s.Updates()), 1, "accepted updates")
}

// TestThreads posts a reply outside its thread where the channel does not have the parent, as Slack does.
func TestThreads(t *testing.T) {
	t.Parallel()
	s := New(t)
	first := ask(t, s, MethodPost, "text", "first").TS
	expect := func(what, channel, thread, want string) {
		t.Helper()
		ask(t, s, MethodPost, "text", "reply", "channel", channel, "thread_ts", thread)
		posts := s.Accepted()
		testkit.Equal(t, posts[len(posts)-1].Thread, want, "thread of %s", what)
	}
	expect("a reply", "C0000001", first, first)
	expect("a reply in another channel", "C0000002", first, "")
	expect("a reply to nothing", "C0000001", "1700000000.000001", "")
	s.Delete(first)
	expect("a reply to a deleted message", "C0000001", first, "")
}
