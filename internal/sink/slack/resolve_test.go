package slack

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestResolved(t *testing.T) {
	t.Parallel()
	for _, channel := range []string{"C0000001", "#ops", "ops"} {
		server := slacktest.New(t)
		o := byToken(server)
		o.Channel = channel
		var observed observer
		o.Observe = observed.observe
		s := newTestSlack(t, o)
		delivery := resolved(fire(t, s))
		delivery.Mention = "<!here>"

		testkit.Equal(t, s.Destination(delivery), channel, "destination")
		testkit.Equal(t, testkit.Must(s.Send(t.Context(), delivery))(t), "", "%s: receipt", channel)
		testkit.Equal(t, len(server.Updates()), 0, "%s: updates by the post", channel)
		testkit.Equal(t, s.Updatable(delivery.Opened), true, "%s: updatable", channel)
		testkit.NoError(t, s.Update(t.Context(), delivery, delivery.Opened))
		posts, updates := server.Accepted(), server.Updates()
		testkit.Require(t, len(posts) == 2 && len(updates) == 1, "%s: %d posts and %d updates, want 2 and 1", channel, len(posts), len(updates))
		first, update, reply := posts[0], updates[0], posts[1]
		testkit.Equal(t, update.Timestamp, first.Timestamp, "%s: the updated message", channel)
		testkit.Equal(t, update.Channel, first.ChannelID, "%s: channel of the update", channel)
		text := textOf(update.Message)
		testkit.Contains(t, "update", text, "RESOLVED", "refunds fail", "all of them")
		testkit.Check(t, update.Message.Attachments[0].Color != first.Message.Attachments[0].Color && !strings.Contains(text, "<!here>"),
			"%s: got the update %q, want another colour and no mention", channel, text)
		testkit.Check(t, reply.Thread == first.Timestamp && reply.ChannelID == first.ChannelID && !reply.Options.Has("reply_broadcast"),
			"%s: replied in thread %q of %s with %v, want %q of %s", channel, reply.Thread, reply.ChannelID, reply.Options, first.Timestamp, first.ChannelID)
		testkit.Contains(t, "reply", textOf(reply.Message), "RESOLVED", "refunds work", "5m")
		testkit.EqualSlices(t, observed.results, []sink.Class{sink.OK, sink.OK, sink.OK}, "%s: observed", channel)
	}
}

// refusals are answers to the reply. Each ends the attempt.
var refusals = []struct {
	name   string
	answer slacktest.Answer
	want   sink.Class
}{
	{"limited", slacktest.RateLimited(7 * time.Second), sink.RateLimited},
	{"failed", slacktest.Status(503, ""), sink.Unknown},
	{"refused", slacktest.Code("invalid_blocks"), sink.Rejected},
	{"not allowed", slacktest.Code("token_revoked"), sink.Misconfigured},
	{"lost", slacktest.Stored(slacktest.Reset()), sink.Unknown},
}

func TestResolvedWhenSlackRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			o := byToken(server)
			o.Channel = "#ops"
			receipt := fire(t, newTestSlack(t, o))
			var observed observer
			o.Channel, o.Observe = "C0000002", observed.observe
			s := newTestSlack(t, o)
			server.Script(test.answer)

			got, err := s.Send(t.Context(), resolved(receipt))
			failure := failureOf(t, err)
			if failure.Class != test.want || failure.Channel != "#ops" || got != "" || failure.Err == nil || failure.Lost {
				t.Errorf("got %v in %s, want %s in #ops", failure, failure.Channel, test.want)
			}
			testkit.Equal(t, failure.RetryAfter == 7*time.Second, test.want == sink.RateLimited, "waits for %v", failure.RetryAfter)
			testkit.EqualSlices(t, observed.results, []sink.Class{test.want}, "observed")

			// A second attempt posts one reply.
			before := len(server.Accepted())
			testkit.Must(s.Send(t.Context(), resolved(receipt)))(t)
			posts := server.Accepted()
			if len(posts) != before+1 || posts[before].Thread != posts[0].Timestamp {
				t.Errorf("again: got %d posts, the last in thread %q, want one reply", len(posts)-before, posts[len(posts)-1].Thread)
			}
		})
	}
}

// lostThreads are codes of answers to the reply. The event becomes a message of its own, in its own channel.
var lostThreads = []string{
	"message_not_found", "channel_not_found", "is_archived", "not_in_channel", "is_inactive", "thread_not_found", "restricted_action_thread_locked",
	"cannot_reply_to_message",
}

func TestResolvedGoesOn(t *testing.T) {
	t.Parallel()
	for _, code := range lostThreads {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			o := byToken(server)
			receipt := fire(t, newTestSlack(t, o))
			var observed observer
			o.Channel, o.Observe = "C0000002", observed.observe
			s := newTestSlack(t, o)
			testkit.Equal(t, s.Destination(resolved(receipt)), "C0000001", "destination")
			server.Script(slacktest.Code(code))
			_, err := s.Send(t.Context(), resolved(receipt))
			wantFailure(t, "the reply", err, sink.Rejected, nil)
			testkit.Equal(t, failureOf(t, err).Lost, true, "the thread is lost")
			alone := resolved(sink.WithoutMessage(receipt))
			testkit.Equal(t, s.Destination(alone), "C0000002", "destination without the thread")
			testkit.Must(s.Send(t.Context(), alone))(t)
			posts := server.Accepted()
			testkit.Equal(t, len(posts), 2, "posts")
			last := posts[1]
			testkit.Equal(t, last.Channel, "C0000002", "channel")
			testkit.Equal(t, last.Options.Has("thread_ts"), false, "a thread is named")
			testkit.Contains(t, "posted", textOf(last.Message), "RESOLVED", "5m")
			testkit.EqualSlices(t, observed.results, []sink.Class{sink.Rejected, sink.OK}, "observed")
		})
	}
}

// Some refusals of a message of its own show that no reply reaches the channel.
func TestLostChannel(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"is_archived": true, "not_in_channel": true, "no_permission": false, "is_inactive": false, "invalid_blocks": false} {
		server := slacktest.New(t)
		server.Script(slacktest.Code(code))
		failure := failureOf(t, send(t.Context(), newTestSlack(t, byToken(server)), hello))
		testkit.Equal(t, failure.Lost, want, "no reply reaches the channel after %s", code)
	}
}

// The template knows whether the message is a reply, a message of its own or an update.
func TestTemplateOfResolvedEvents(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	o.Template = testkit.Must(render.Parse(`{"text": "reply {{.Reply}}, rewrite {{.Rewrite}}"}`))(t)
	s := newTestSlack(t, o)
	receipt := fire(t, s)
	testkit.Must(s.Send(t.Context(), resolved(receipt)))(t)
	testkit.NoError(t, s.Update(t.Context(), resolved(receipt), receipt))
	testkit.Must(s.Send(t.Context(), resolved(sink.WithoutMessage(receipt))))(t)
	var got []string
	for _, post := range server.Accepted() {
		got = append(got, post.Text)
	}
	got = append(got, server.Updates()[0].Message.Text)
	want := []string{"reply false, rewrite false", "reply true, rewrite false", "reply false, rewrite false", "reply false, rewrite true"}
	testkit.EqualSlices(t, got, want, "first, reply, message of its own, update")
}

// An event with an unusable receipt is posted as a message of its own.
func TestResolvedWithoutAFirstMessage(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	both := ways(t, server)
	token, webhook := both[0], both[1]
	byTokenReceipt, byWebhookReceipt := fire(t, token), fire(t, webhook)
	for _, test := range []struct {
		name, receipt string
		sink          *Sink
		duration      bool
	}{
		{"none", "", token, false},
		{"not JSON", "receipt", token, false},
		{"another version", `{"v":2,"channel":"C0000001","ts":"1.1"}`, token, false},
		{"a ts of another form", `{"v":1,"channel":"C0000001","ts":"soon","time":"2026-01-02T03:04:05Z"}`, token, true},
		{"a channel of another form", `{"v":1,"channel":"#ops","ts":"1.1","time":"2026-01-02T03:04:05Z"}`, token, true},
		{"posted by webhook, resolved by token", byWebhookReceipt, token, true},
		{"posted by token, resolved by webhook", byTokenReceipt, webhook, true},
		{"webhook", byWebhookReceipt, webhook, true},
	} {
		before := len(server.Accepted())
		testkit.Must(test.sink.Send(t.Context(), resolved(test.receipt)))(t)
		posts := server.Accepted()[before:]
		testkit.Require(t, len(posts) == 1 && !posts[0].Options.Has("thread_ts"), "%s: posted %+v, want one message of its own", test.name, posts)
		text := textOf(posts[0].Message)
		testkit.Check(t, strings.Contains(text, "RESOLVED") && strings.Contains(text, "5m") == test.duration,
			"%s: posted %q, want a duration: %t", test.name, text, test.duration)
		testkit.Equal(t, test.sink.Destination(resolved(test.receipt)), test.sink.o.route(""), "%s: goes to", test.name)
	}
	testkit.Equal(t, server.Calls("chat.update"), 0, "updates")
}

// TestUpdate updates messages of an alert that has ended, and posts nothing.
func TestUpdate(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	var observed observer
	o.Observe = observed.observe
	s := newTestSlack(t, o)
	first, second := fire(t, s), fire(t, s)
	d := resolved(first)
	webhook := newTestSlack(t, byWebhook(server))
	for receipt, updatable := range map[string]bool{first: true, second: true, "": false, "no receipt": false, `{"v":1}`: false} {
		testkit.Equal(t, s.Updatable(receipt), updatable, "the message of %q can be updated", receipt)
		testkit.Equal(t, webhook.Updatable(receipt), false, "a webhook can update the message of %q", receipt)
	}
	for _, err := range []error{webhook.Update(t.Context(), d, second), s.Update(t.Context(), d, "no receipt")} {
		wantFailure(t, "an update without a message", err, sink.Rejected, errOutOfReach)
	}
	testkit.Equal(t, len(server.Updates()), 0, "updates without a message")

	testkit.NoError(t, s.Update(t.Context(), d, second))
	posts, updates := server.Accepted(), server.Updates()
	testkit.Require(t, len(posts) == 2 && len(updates) == 1 && updates[0].Timestamp == posts[1].Timestamp,
		"got %d posts and updates %+v, want 2 and one of the second message", len(posts), updates)
	testkit.Contains(t, "update", textOf(updates[0].Message), "RESOLVED")

	for _, test := range []struct {
		answer slacktest.Answer
		want   sink.Class
	}{
		{slacktest.OK(), sink.OK}, {slacktest.Code("message_not_found"), sink.Rejected}, {slacktest.Code("channel_not_found"), sink.Rejected},
		{slacktest.Code("is_archived"), sink.Rejected}, {slacktest.Code("not_in_channel"), sink.Rejected},
		{slacktest.Code("edit_window_closed"), sink.Rejected}, {slacktest.Code("msg_too_long"), sink.Rejected}, {slacktest.Stored(slacktest.Reset()), sink.Transient},
		{slacktest.Status(503, `{"ok":false,"error":"is_archived"}`), sink.Transient}, {slacktest.HTML(200), sink.Transient},
		{slacktest.RateLimited(7 * time.Second), sink.RateLimited}, {slacktest.Code("internal_error"), sink.Transient}, {slacktest.Code("token_revoked"), sink.Misconfigured},
	} {
		server.Script(test.answer)
		class := sink.OK
		if failure, failed := errors.AsType[*sink.Error](s.Update(t.Context(), d, second)); failed {
			class = failure.Class
		}
		testkit.Equal(t, class, test.want, "class of %+v", test.answer)
		if request := observed.results[len(observed.results)-1]; test.want != sink.Transient { // a request without an answer is unknown
			testkit.Equal(t, request, test.want, "observed after %+v", test.answer)
		}
	}
}
