package sink

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

var (
	fired = event.Event{
		ID: "e-1", Category: "payments.refunds", Title: "refunds fail", Text: "all of them", Severity: event.SeverityError,
		Status: event.StatusFiring, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	ended = event.Event{
		ID: "e-2", Category: "payments.refunds", Title: "refunds work", Severity: event.SeverityError,
		Status: event.StatusResolved, Key: "refunds", Time: time.Date(2026, 1, 2, 3, 9, 5, 0, time.UTC),
	}
)

// fire posts a firing event and returns its receipt.
func fire(t *testing.T, s Sink) string {
	t.Helper()
	receipt := testkit.Must(s.Send(t.Context(), Delivery{Event: fired}))(t)
	if receipt == "" || len(receipt) > maxReceipt {
		t.Fatalf("receipt %q", receipt)
	}
	return receipt
}

// resolved is the delivery of the event that ends the one with a receipt.
func resolved(receipt string) Delivery { return Delivery{Event: ended, Opened: receipt} }

// textOf returns every text of a message, one on a line.
func textOf(m slacktest.Message) string {
	texts := []string{m.Text}
	for _, text := range m.Texts() {
		texts = append(texts, text.Text)
	}
	return strings.Join(texts, "\n")
}

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

		if got := s.Destination(delivery); got != channel {
			t.Errorf("%s: it goes to %s", channel, got)
		}
		receipt, err := s.Send(t.Context(), delivery)
		if err != nil || receipt != "" {
			t.Fatalf("%s: got receipt %q, %v", channel, receipt, err)
		}
		posts, updates := server.Accepted(), server.Updates()
		if len(posts) != 2 || len(updates) != 1 {
			t.Fatalf("%s: %d posts and %d updates, want 2 and 1", channel, len(posts), len(updates))
		}
		first, reply := posts[0], posts[1]
		if updates[0].Timestamp != first.Timestamp || updates[0].Channel != first.ChannelID || updates[0].Received.After(reply.Received) {
			t.Errorf("%s: updated %+v, want the first message, before the reply", channel, updates[0])
		}
		text := textOf(updates[0].Message)
		for _, want := range []string{"RESOLVED", "refunds fail", "all of them"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the update shows %q, want %q in it", channel, text, want)
			}
		}
		before, after := first.Message.Attachments, updates[0].Message.Attachments
		if len(before) != 1 || len(after) != 1 || before[0].Color == after[0].Color || strings.Contains(text, "<!here>") {
			t.Errorf("%s: the update shows %q beside %v, before %v", channel, text, after, before)
		}
		if text := textOf(reply.Message); reply.Thread != first.Timestamp || reply.ChannelID != first.ChannelID ||
			!strings.Contains(text, "RESOLVED") || !strings.Contains(text, "refunds work") || !strings.Contains(text, "5m") {
			t.Errorf("%s: replied in thread %q: %q", channel, reply.Thread, text)
		}
		if reply.Options.Has("reply_broadcast") || reply.Options.Has("parse") {
			t.Errorf("%s: replied with options %v", channel, reply.Options)
		}
		testkit.EqualSlices(t, observed.results, []Class{OK, OK, OK}, "%s: observed", channel)
	}
}

// A message that is resolved goes where the first one went, whatever the routes say by now.
func TestResolvedAfterARouteChanged(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	receipt := fire(t, newTestSlack(t, byToken(server)))
	o := byToken(server)
	o.Routes = routes(t, "payments", "C0000002")
	s := newTestSlack(t, o)
	testkit.Equal(t, s.Destination(resolved(receipt)), "C0000001", "destination")
	testkit.Must(s.Send(t.Context(), resolved(receipt)))(t)
	if posts := server.Accepted(); posts[1].Channel != "C0000001" || posts[1].Thread != posts[0].Timestamp {
		t.Errorf("posted to %s, thread %q", posts[1].Channel, posts[1].Thread)
	}
}

// What becomes of a resolved event when its update and its reply are answered so.
func TestResolvedWhenSlackRefuses(t *testing.T) {
	t.Parallel()
	ok := slacktest.OK()
	tests := []struct {
		name     string
		answers  []slacktest.Answer
		want     Class // of the failure; OK for none
		channel  string
		observed []Class
	}{
		{"update limited", []slacktest.Answer{slacktest.RateLimited(7 * time.Second)}, RateLimited, "#ops", []Class{RateLimited}},
		{"update failed", []slacktest.Answer{slacktest.Code("internal_error")}, Transient, "#ops", []Class{Transient}},
		{"update not allowed", []slacktest.Answer{slacktest.Code("token_revoked")}, Misconfigured, "#ops", []Class{Misconfigured}},
		{
			"update failed on the way", []slacktest.Answer{slacktest.Status(503, `{"ok":false,"error":"is_archived"}`)},
			Transient, "#ops", []Class{Transient},
		},
		{"update broken off", []slacktest.Answer{slacktest.Reset()}, Transient, "#ops", []Class{Unknown}},
		{"update's answer lost", []slacktest.Answer{slacktest.Lost()}, Transient, "#ops", []Class{Unknown}},
		{"update answered by something else", []slacktest.Answer{slacktest.HTML(200)}, Transient, "#ops", []Class{Unknown}},
		{"reply limited", []slacktest.Answer{ok, slacktest.RateLimited(7 * time.Second)}, RateLimited, "#ops", []Class{OK, RateLimited}},
		{"reply failed", []slacktest.Answer{ok, slacktest.Status(503, "")}, Transient, "#ops", []Class{OK, Transient}},
		{"reply refused", []slacktest.Answer{ok, slacktest.Code("invalid_blocks")}, Rejected, "#ops", []Class{OK, Rejected}},
		{"reply lost", []slacktest.Answer{ok, slacktest.Lost()}, Unknown, "#ops", []Class{OK, Unknown}},
		{
			"nobody may post any more", []slacktest.Answer{slacktest.Code("channel_not_found"), slacktest.Code("channel_not_found")},
			Misconfigured, "C0000002", []Class{Misconfigured, Misconfigured},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			o := byToken(server)
			o.Channel = "#ops"
			receipt := fire(t, newTestSlack(t, o))
			var observed observer
			o.Channel, o.Observe = "C0000002", observed.observe
			s := newTestSlack(t, o)
			server.Script(test.answers...)

			got, err := s.Send(t.Context(), resolved(receipt))
			failure := failureOf(t, err)
			if failure.Class != test.want || failure.Channel != test.channel || got != "" || failure.Err == nil {
				t.Errorf("got %v in %s, want %s in %s", failure, failure.Channel, test.want, test.channel)
			}
			if (failure.RetryAfter == 7*time.Second) != (test.want == RateLimited) {
				t.Errorf("got a wait of %v", failure.RetryAfter)
			}
			testkit.EqualSlices(t, observed.results, test.observed, "observed")

			// The whole of it is repeated, and that does no harm.
			before := len(server.Accepted())
			if _, err := s.Send(t.Context(), resolved(receipt)); err != nil {
				t.Errorf("again: %v", err)
			}
			posts := server.Accepted()
			if len(posts) != before+1 || posts[before].Thread != posts[0].Timestamp {
				t.Errorf("again: %d posts, the last in thread %q", len(posts)-before, posts[len(posts)-1].Thread)
			}
		})
	}
}

func TestResolvedGoesOn(t *testing.T) {
	t.Parallel()
	type outcome struct {
		channel string
		reply   bool
		updates int
	}
	reply, own := outcome{"C0000001", true, 0}, outcome{"C0000002", false, 0}
	after := func(o outcome, updates int) outcome { o.updates = updates; return o }
	tests := []struct {
		name    string
		answers []slacktest.Answer
		want    outcome
	}{
		{"too late to edit", []slacktest.Answer{slacktest.Code("edit_window_closed")}, reply},
		{"not ours to edit", []slacktest.Answer{slacktest.Code("cant_update_message")}, reply},
		{"edit refused for its blocks", []slacktest.Answer{slacktest.Code("invalid_blocks")}, reply},
		{"no such method", []slacktest.Answer{slacktest.Code("unknown_method")}, reply},
		{"message deleted", []slacktest.Answer{slacktest.Code("message_not_found")}, own},
		{"channel gone", []slacktest.Answer{slacktest.Code("channel_not_found")}, own},
		{"channel archived", []slacktest.Answer{slacktest.Code("is_archived")}, own},
		{"channel frozen", []slacktest.Answer{slacktest.Code("is_inactive")}, own},
		{"thread gone", []slacktest.Answer{slacktest.OK(), slacktest.Code("thread_not_found")}, after(own, 1)},
		{"thread locked", []slacktest.Answer{slacktest.OK(), slacktest.Code("restricted_action_thread_locked")}, after(own, 1)},
		{"channel archived in between", []slacktest.Answer{slacktest.OK(), slacktest.Code("is_archived")}, after(own, 1)},
		{"too late to edit, no thread", []slacktest.Answer{slacktest.Code("edit_window_closed"), slacktest.Code("cannot_reply_to_message")}, own},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			receipt := fire(t, newTestSlack(t, byToken(server)))
			o := byToken(server)
			o.Channel = "C0000002"
			s := newTestSlack(t, o)
			server.Script(test.answers...)
			testkit.Must(s.Send(t.Context(), resolved(receipt)))(t)
			posts := server.Accepted()
			if len(posts) != 2 {
				t.Fatalf("%d posts, want 2", len(posts))
			}
			last := posts[1]
			if got := (outcome{last.Channel, last.Thread == posts[0].Timestamp, len(server.Updates())}); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if last.Options.Has("thread_ts") != test.want.reply {
				t.Errorf("posted with options %v", last.Options)
			}
			if text := textOf(last.Message); !strings.Contains(text, "RESOLVED") || !strings.Contains(text, "5m") {
				t.Errorf("posted %q", text)
			}
		})
	}
}

func TestResolvedAfterTheMessageWasDeleted(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	receipt := fire(t, s)
	server.Delete(server.Accepted()[0].Timestamp)
	testkit.Must(s.Send(t.Context(), resolved(receipt)))(t)
	if posts := server.Accepted(); len(posts) != 2 || posts[1].Options.Has("thread_ts") {
		t.Errorf("posted %+v", posts)
	}
}

// A template is told whether the message stands in a thread.
func TestResolvedTellsTheTemplate(t *testing.T) {
	t.Parallel()
	template := testkit.Must(ParseTemplate(`{"text": "reply {{.Reply}}, rewrite {{.Rewrite}}"}`))(t)
	server := slacktest.New(t)
	o := byToken(server)
	o.Template = template
	s := newTestSlack(t, o)
	receipt := fire(t, s)
	for range 2 {
		testkit.Must(s.Send(t.Context(), resolved(receipt)))(t)
		server.Delete(server.Accepted()[0].Timestamp)
	}
	var got []string
	for _, post := range server.Accepted() {
		got = append(got, post.Text)
	}
	got = append(got, server.Updates()[0].Message.Text)
	want := []string{"reply false, rewrite false", "reply true, rewrite false", "reply false, rewrite false", "reply false, rewrite true"}
	testkit.EqualSlices(t, got, want, "first, reply, message of its own, update")
}

// A receipt that tells nothing of use makes a message of its own.
func TestResolvedWithoutAFirstMessage(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	token, webhook := newTestSlack(t, byToken(server)), newTestSlack(t, byWebhook(server))
	byTokenReceipt, byWebhookReceipt := fire(t, token), fire(t, webhook)
	for _, test := range []struct {
		name, receipt string
		sink          *Slack
		duration      bool
	}{
		{"none", "", token, false},
		{"not JSON", "receipt", token, false},
		{"another version", `{"v":2,"channel":"C0000001","ts":"1.1"}`, token, false},
		{"another form", `{"v":1,"channel":["C0000001"]}`, token, false},
		{"a ts of another form", `{"v":1,"channel":"C0000001","ts":"soon","time":"2026-01-02T03:04:05Z"}`, token, true},
		{"a channel of another form", `{"v":1,"channel":"#ops","ts":"1.1","time":"2026-01-02T03:04:05Z"}`, token, true},
		{"posted by webhook, resolved by token", byWebhookReceipt, token, true},
		{"posted by token, resolved by webhook", byTokenReceipt, webhook, true},
		{"webhook", byWebhookReceipt, webhook, true},
	} {
		before := len(server.Accepted())
		if _, err := test.sink.Send(t.Context(), resolved(test.receipt)); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		posts := server.Accepted()[before:]
		if len(posts) != 1 || posts[0].Options.Has("thread_ts") {
			t.Fatalf("%s: posted %+v, want one message of its own", test.name, posts)
		}
		text := textOf(posts[0].Message)
		if !strings.Contains(text, "RESOLVED") || strings.Contains(text, "5m") != test.duration {
			t.Errorf("%s: posted %q, want a duration: %t", test.name, text, test.duration)
		}
		if got, want := test.sink.Destination(resolved(test.receipt)), test.sink.SummaryDestination(""); got != want {
			t.Errorf("%s: goes to %s, want %s", test.name, got, want)
		}
	}
	testkit.Equal(t, server.Calls("chat.update"), 0, "updates")
}

// A receipt counts only for what resolves it.
func TestOnlyResolvedEventsOpenReceipts(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, byToken(server))
	receipt := fire(t, s)
	for _, status := range []event.Status{"", event.StatusFiring} {
		e := ended
		e.Status = status
		got, err := s.Send(t.Context(), Delivery{Event: e, Opened: receipt})
		if err != nil || (got != "") != (status == event.StatusFiring) {
			t.Errorf("%q: got receipt %q, %v", status, got, err)
		}
	}
	if updates, posts := len(server.Updates()), server.Accepted(); updates != 0 || posts[1].Thread != "" || posts[2].Thread != "" {
		t.Errorf("%d updates, posts %+v", updates, posts)
	}
}

// Both requests together take no longer than the timeout, and the update leaves time for the reply.
func TestResolvedTimesOut(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	receipt := fire(t, newTestSlack(t, o))
	server.Respond(func(slacktest.Post) slacktest.Answer { return slacktest.Hold(nil, slacktest.OK()) })
	o.Timeout = 200 * time.Millisecond
	_, err := newTestSlack(t, o).Send(t.Context(), resolved(receipt))
	failure := failureOf(t, err)
	if failure.Class != Transient || !errors.Is(failure, context.DeadlineExceeded) || !strings.Contains(failure.Error(), "100ms") {
		t.Errorf("got %v", failure)
	}
	server.Respond(nil)
	o.Timeout = 2 * time.Second
	server.Script(slacktest.Delay(50*time.Millisecond, slacktest.OK()), slacktest.Hold(nil, slacktest.OK()))
	_, err = newTestSlack(t, o).Send(t.Context(), resolved(receipt))
	failure = failureOf(t, err)
	if !errors.Is(failure, context.DeadlineExceeded) || strings.Contains(failure.Error(), "within 2s") {
		t.Errorf("the reply waited as if there had been no update: %v", failure)
	}
	s := newTestSlack(t, byToken(server))
	_, late := s.post(t.Context(), -time.Second, place{"C0000001", "C0000001", ""}, s.render(newView(resolved(""), nil, time.Now())))
	if late == nil || late.Class != Transient || !errors.Is(late, context.DeadlineExceeded) {
		t.Errorf("no time left: got %v", late)
	}
}

func TestResolvedCancelled(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	var observed observer
	o := byToken(server)
	receipt := fire(t, newTestSlack(t, o))
	o.Observe = observed.observe
	s := newTestSlack(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	server.Respond(func(p slacktest.Post) slacktest.Answer {
		cancel()
		return slacktest.Hold(nil, slacktest.OK())
	})
	for _, want := range [][]Class{{Unknown}, {Unknown}} { // nothing is asked, and thus observed, the second time
		_, err := s.Send(ctx, resolved(receipt))
		if failure := failureOf(t, err); failure.Class != Transient || !errors.Is(failure, context.Canceled) {
			t.Errorf("got %v", failure)
		}
		testkit.EqualSlices(t, observed.results, want, "observed")
	}
	testkit.Equal(t, len(server.Posts()), 1, "posts, want the first alone")
}

// An update replaces everything, even by nothing.
func TestUpdateReplacesAll(t *testing.T) {
	t.Parallel()
	forms := make(chan map[string][]string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		forms <- r.PostForm
		_, _ = w.Write([]byte(`{"ok":true}`))
	}))
	t.Cleanup(server.Close)
	s := newTestSlack(t, SlackOptions{Token: "xoxb-1", Channel: "#ops", APIURL: server.URL})
	t.Cleanup(s.Close)
	if failure := s.update(t.Context(), generous, place{"#ops", "C0000001", "1.1"}, s.message(layout{Text: "over"})); failure != nil {
		t.Fatal(failure)
	}
	want := map[string]string{"channel": "C0000001", "ts": "1.1", "text": "over", "blocks": "[]", "attachments": "[]", "parse": "none"}
	got := <-forms
	for name, value := range want {
		if !slices.Equal(got[name], []string{value}) {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
}

func TestSendSummary(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := byToken(server)
	o.Routes = routes(t, "payments", "C0000002")
	var observed observer
	o.Observe = observed.observe
	s := newTestSlack(t, o)
	digest := summary.Digest{
		Channel: "C0000002", Dropped: 12, First: fired.Time, Last: ended.Time,
		Paths: []summary.Path{{Path: "payments.refunds", Dropped: 12, Title: "<!here> fails"}},
	}
	for _, sink := range []*Slack{s, newTestSlack(t, byWebhook(server))} {
		testkit.NoError(t, sink.SendSummary(t.Context(), digest))
	}
	testkit.Equal(t, s.SummaryDestination("payments.refunds"), "C0000002", "destination of the summary")
	posts := server.Accepted()
	if posts[0].Channel != "C0000002" || !posts[1].Webhook {
		t.Errorf("posted to %s, by webhook: %t", posts[0].Channel, posts[1].Webhook)
	}
	for _, post := range posts {
		if text := textOf(post.Message); !strings.Contains(text, "12") || !strings.Contains(text, "payments.refunds") || strings.Contains(text, "<!here>") {
			t.Errorf("posted %q", text)
		}
	}
	server.Script(slacktest.RateLimited(9 * time.Second))
	failure := failureOf(t, s.SendSummary(t.Context(), digest))
	if failure.Class != RateLimited || failure.Channel != "C0000002" || failure.RetryAfter != 9*time.Second {
		t.Errorf("got %v", failure)
	}
	testkit.EqualSlices(t, observed.results, []Class{OK, RateLimited}, "observed")
}

// A template that fails on an event is told of, and the event is posted all the same.
func TestTemplateFails(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	// Fails for the one title that no sample has.
	broken, err := ParseTemplate(`{"text": {{if eq .Title "refunds fail"}}{{index .Fields 99}}{{else}}{{json (cut 100 .Title)}}{{end}}}`)
	if err != nil {
		t.Fatal(err)
	}
	var told []error
	o := byToken(server)
	o.Template, o.TemplateFailed = broken, func(err error) { told = append(told, err) }
	testkit.NoError(t, send(t.Context(), newTestSlack(t, o), fired))
	if len(told) != 1 || !strings.Contains(textOf(server.Accepted()[0].Message), "refunds fail") {
		t.Errorf("told %v, posted %q", told, textOf(server.Accepted()[0].Message))
	}
	o.TemplateFailed = nil
	if err := send(t.Context(), newTestSlack(t, o), fired); err != nil {
		t.Error(err)
	}
	if err := send(t.Context(), newTestSlack(t, o), sample); err != nil || server.Accepted()[2].Text != "hello" || len(told) != 1 {
		t.Errorf("a sound message: %v, told %v", err, told)
	}
}
