package slack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// lookingUp posts by token, and looks posts up at once.
func lookingUp(server *slacktest.Server) Options {
	o := byToken(server)
	o.LookUp = true
	return o
}

// named is a delivery of an event with a name of its own.
func named(e event.Event) sink.Delivery {
	return sink.Delivery{Event: e, Name: sink.NameOf("deployment", e.Identity(), "NOTIFICATIONS:7")}
}

// doubtful is a doubt about a delivery whose attempts were just now.
func doubtful(d sink.Delivery) sink.Doubt {
	return sink.Doubt{Delivery: d, First: time.Now().Add(-time.Second), Last: time.Now()}
}

// lost posts a delivery whose answer is lost.
func lost(t *testing.T, s sink.Sink, server *slacktest.Server, d sink.Delivery, then slacktest.Answer) {
	t.Helper()
	server.Script(slacktest.Stored(then))
	_, err := s.Send(t.Context(), d)
	wantFailure(t, "a post whose answer is lost", err, sink.Unknown, nil)
}

func wantPresence(t *testing.T, s sink.Finder, d sink.Doubt, want sink.Presence) sink.Finding {
	t.Helper()
	found := testkit.Must(s.Find(t.Context(), d))(t)
	testkit.Check(t, found.Presence == want && (found.Reason != "") == (want == sink.Unsearchable), "got %+v, want %d", found, want)
	return found
}

// TestFind finds posts whose answers did not show that Slack took them. Each post has its name, and the receipt is that of the post.
func TestFind(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]slacktest.Answer{
		"connection reset":   slacktest.Reset(),
		"answer cut":         slacktest.Truncated(100, `{"ok":true,"chan`),
		"server error":       slacktest.Status(500, ""),
		"fatal_error":        slacktest.Code("fatal_error"),
		"internal_error":     slacktest.Code("internal_error"),
		"answer of a proxy":  slacktest.HTML(502),
		"empty answer":       slacktest.Status(200, ""),
		"answer without ts":  slacktest.Status(200, `{"ok":true}`),
		"request timed out":  slacktest.Status(408, ""),
		"another connection": slacktest.Code("request_timeout"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			s := newTestSlack(t, lookingUp(server))
			lost(t, s, server, named(fired), answer)
			other := named(event.Event{ID: "another", Category: hello.Category, Title: "t"})
			wantPresence(t, s, doubtful(other), sink.Absent)
			found := wantPresence(t, s, doubtful(named(fired)), sink.Present)
			post := server.Accepted()[0]
			testkit.Equal(t, sink.PostedAs(found.Receipt), post.ChannelID+" "+post.Timestamp, "the receipt found")
			testkit.Equal(t, post.Metadata.EventType, "notifier_event", "event type")
			testkit.Equal(t, fmt.Sprint(post.Metadata.Payload), fmt.Sprint(map[string]any{"name": named(fired).Name}), "payload")
			testkit.Must(s.Send(t.Context(), resolved(found.Receipt)))(t)
			testkit.Equal(t, server.Accepted()[1].Thread, post.Timestamp, "thread of the resolved event")
		})
	}
}

// TestFindWaits has the history show a post late. A look-up before the time to settle would not find it.
func TestFindWaits(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t, slacktest.WithHistoryDelay(200*time.Millisecond))
	o := lookingUp(server)
	o.Settle = 300 * time.Millisecond
	s := newTestSlack(t, o)
	lost(t, s, server, named(hello), slacktest.Reset())
	wantPresence(t, s, doubtful(named(hello)), sink.Present)
	_, err := s.Find(testkit.Ended(t), doubtful(named(hello)))
	testkit.Fails(t, "with an ended context", err, context.Canceled)
}

// TestFindReply finds a reply in its thread, and in the channel if the message was gone when it was posted.
func TestFindReply(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		server := slacktest.New(t)
		s := newTestSlack(t, lookingUp(server))
		d := named(ended)
		d.Opened = fire(t, s)
		wantPresence(t, s, doubtful(d), sink.Absent)
		if gone {
			server.Delete(server.Accepted()[0].Timestamp)
		}
		reply := d
		if gone {
			reply.Opened = sink.WithoutMessage(d.Opened)
		}
		lost(t, s, server, reply, slacktest.Reset())
		testkit.Equal(t, server.Accepted()[1].Thread == "", gone, "it was posted to the channel")
		testkit.Equal(t, wantPresence(t, s, doubtful(d), sink.Present).Receipt, "", "receipt of a resolved event")
	}
}

// TestFindDigest finds the digest of a claim, and not that of another claim.
func TestFindDigest(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, lookingUp(server))
	d := sampleSummary()
	d.Claim = "ONE"
	server.Script(slacktest.Stored(slacktest.Reset()))
	wantFailure(t, "the digest", s.SendSummary(t.Context(), d), sink.Unknown, nil)
	for claim, want := range map[string]sink.Presence{"ONE": sink.Present, "TWO": sink.Absent} {
		found := testkit.Must(s.FindSummary(t.Context(), d.Channel, claim, time.Now().Add(-time.Minute)))(t)
		testkit.Equal(t, found.Presence, want, "the digest of claim %s", claim)
	}
}

// TestFindByNameOfChannel has channels that the settings name. A worker knows the ID from its own posts and from those of other workers, or it
// lists its channels.
func TestFindByNameOfChannel(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scopes  string
		shared  bool // the workers share what they know
		private bool
		want    sink.Presence // for a worker that has not posted
		pages   int           // of lists of channels that it asks for
	}{
		"may list channels": {"channels:history channels:read groups:read", false, false, sink.Present, 3},
		"may list none":     {"channels:history", false, false, sink.Unsearchable, 1},
		"shared":            {"channels:history", true, false, sink.Present, 0},
		"shared, private":   {"groups:history", true, true, sink.Present, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			channels := []slacktest.Channel{{ID: "C0000009", Name: "ops", Member: true, Private: test.private}}
			for i := range 2 * channelsInPage {
				channels = append(channels, slacktest.Channel{ID: fmt.Sprint("C00001", i), Name: fmt.Sprint("other-", i), Member: true})
			}
			channels[0], channels[len(channels)-1] = channels[len(channels)-1], channels[0]
			server := slacktest.New(t, slacktest.WithChannels(channels...), slacktest.WithScopes(append(strings.Fields(test.scopes), "chat:write")...))
			o := lookingUp(server)
			o.Channel = "#ops"
			if test.shared {
				o.IDs = new(fakeIDs)
			}
			first, second := newTestSlack(t, o), newTestSlack(t, o)
			testkit.Must(first.Send(t.Context(), named(hello)))(t)
			wantPresence(t, first, doubtful(named(hello)), sink.Present)
			testkit.Equal(t, server.Calls("users.conversations"), 0, "lists of channels by a worker that has posted")
			for range 2 {
				wantPresence(t, second, doubtful(named(hello)), test.want)
			}
			testkit.Equal(t, server.Calls("users.conversations"), test.pages, "pages of channels that a new worker read")
		})
	}
}

// TestFindAfterARename has the name of a channel go to another channel. A worker that has posted only before learns it from another worker's post,
// and uses its own knowledge while Redis is unavailable. It finds a resolved event in the new channel if the firing event was in the old one.
func TestFindAfterARename(t *testing.T) {
	t.Parallel()
	channels := []slacktest.Channel{{ID: "C0000001", Name: "ops", Member: true}, {ID: "C0000002", Name: "new", Member: true}}
	server, ids := slacktest.New(t, slacktest.WithChannels(channels...)), new(fakeIDs)
	o := lookingUp(server)
	o.Channel, o.IDs = "#ops", ids
	first, second := newTestSlack(t, o), newTestSlack(t, o)
	resolving := named(ended)
	resolving.Opened = fire(t, first)
	testkit.NoError(t, send(t.Context(), second, hello))
	channels[0].Name, channels[1].Name = "old", "ops"
	testkit.Must(first.Send(t.Context(), named(fired)))(t)
	testkit.Equal(t, server.Accepted()[2].ChannelID, "C0000002", "channel after the rename")
	wantPresence(t, second, doubtful(named(fired)), sink.Present)
	ids.byName.Clear()
	ids.outage = errors.New("unavailable")
	wantPresence(t, second, doubtful(named(fired)), sink.Present)
	lost(t, first, server, named(ended), slacktest.Reset())
	wantPresence(t, second, doubtful(resolving), sink.Present)
}

// TestFindWithoutTheID has a worker that does not know a channel's ID. As long as another worker or Slack may know the ID, the worker looks
// again. Many doubts ask Slack once for the list.
func TestFindWithoutTheID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		outage error
		answer slacktest.Answer
		want   sink.Class
	}{
		"redis is unavailable, and no scope": {errors.New("unavailable"), slacktest.Code("missing_scope"), sink.Transient},
		"limited":                            {nil, slacktest.RateLimited(7 * time.Second), sink.RateLimited},
		"refused by a proxy":                 {nil, slacktest.Status(http.StatusForbidden, `{"ok":false,"error":"missing_scope"}`), sink.Misconfigured},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			server.RespondTo("users.conversations", func() slacktest.Answer { return test.answer })
			o, pacer := lookingUp(server), new(fakePacer)
			ids := new(fakeIDs)
			o.Channel, o.Pacer, o.IDs = "#ops", pacer, ids
			s := newTestSlack(t, o)
			s.routes.note(t.Context())
			ids.outage = test.outage
			for range 3 {
				_, err := s.Find(t.Context(), doubtful(named(hello)))
				wantFailure(t, "a look-up", err, test.want, test.outage)
			}
			testkit.Equal(t, server.Calls("users.conversations"), 1, "lists of channels")
			testkit.Equal(t, pacer.allowed.Load(), 1, "requests that the pacer has allowed")
			testkit.Equal(t, pacer.paused.Load() > 0, test.want == sink.RateLimited, "look-ups are paused")
			ids.outage = nil
			testkit.NoError(t, send(t.Context(), s, hello)) // its receipt has the ID
			wantPresence(t, s, doubtful(named(hello)), sink.Absent)
		})
	}
}

// TestFindWithoutTheRoutes has a worker that has not read the routes of other workers, while Redis is unavailable. The error names the channel.
func TestFindWithoutTheRoutes(t *testing.T) {
	t.Parallel()
	o, ids := lookingUp(slacktest.New(t)), &fakeIDs{outage: errors.New("unavailable")}
	o.Channel, o.IDs = "#ops", ids
	_, err := newTestSlack(t, o).Find(t.Context(), doubtful(named(hello)))
	wantFailure(t, "a look-up", err, sink.Transient, ids.outage)
	testkit.Contains(t, "error", fmt.Sprint(err), "post to #ops: transient: not looked up: asking for the routes of other workers: ")
}

// TestRoutesAreNotedAgain has Redis lose its data while a worker runs. During an outage, the worker does not ask Redis for each post.
func TestRoutesAreNotedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ids := new(fakeIDs)
		r := newRoutes(&Options{Channel: "#ops", IDs: ids})
		noted := func(want int, when string) {
			t.Helper()
			r.note(t.Context())
			testkit.Equal(t, len(ids.routes), want, "noted routes %s", when)
		}
		noted(1, "after the first post")
		ids.routes = nil
		noted(0, "soon after the loss")
		ids.outage = errors.New("unavailable")
		time.Sleep(noteEvery)
		noted(0, "during an outage")
		ids.outage = nil
		noted(0, "soon after the outage")
		time.Sleep(noteEvery)
		noted(1, "an hour later")
	})
}

// unsearchable are the places where nobody can look. The delivery is as certain as without look-ups.
var unsearchable = []struct {
	name    string
	options func(*testing.T) Options
}{
	{"no scope", func(t *testing.T) Options {
		return lookingUp(slacktest.New(t, slacktest.WithScopes("chat:write", "channels:read")))
	}},
	{"private channel without its scope", func(t *testing.T) Options {
		return lookingUp(slacktest.New(t, slacktest.WithScopes("channels:history"), slacktest.WithChannels(slacktest.Channel{ID: "C0000001", Private: true, Member: true})))
	}},
	{"not in the channel", func(t *testing.T) Options {
		return lookingUp(slacktest.New(t, slacktest.WithChannels(slacktest.Channel{ID: "C0000001", Name: "ops"})))
	}},
	{"name of a channel that the bot is not in", func(t *testing.T) Options {
		o := lookingUp(slacktest.New(t, slacktest.WithChannels(slacktest.Channel{ID: "C0000001", Name: "ops"})))
		o.Channel = "#ops"
		return o
	}},
	{"name of a channel, and no scope to list channels", func(t *testing.T) Options {
		o := lookingUp(slacktest.New(t, slacktest.WithScopes("channels:history")))
		o.Channel = "#ops"
		return o
	}},
	{"a server without the method", func(t *testing.T) Options {
		o := alwaysAnswered(t, map[string]string{"conversations.history": `{"ok":false,"error":"unknown_method"}`})
		o.Channel, o.LookUp = "C0000001", true
		return o
	}},
	{"turned off", func(t *testing.T) Options { return byToken(slacktest.New(t)) }},
	{"webhook", func(t *testing.T) Options {
		o := byWebhook(slacktest.New(t))
		o.LookUp = true
		return o
	}},
}

func TestFindNowhere(t *testing.T) {
	t.Parallel()
	for _, test := range unsearchable {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newTestSlack(t, test.options(t))
			wantPresence(t, s, doubtful(named(hello)), sink.Unsearchable)
			found := testkit.Must(s.FindSummary(t.Context(), s.Destinations()[0], "1", time.Now()))(t)
			testkit.Equal(t, found.Presence, sink.Unsearchable, "a digest")
		})
	}
	wantPresence(t, newTestSlack(t, lookingUp(slacktest.New(t))), doubtful(sink.Delivery{Event: hello}), sink.Unsearchable)
}

// TestFindFails has look-ups fail. None of them may say that the post is not there.
func TestFindFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer slacktest.Answer
		want   sink.Class
	}{
		"server error":                {slacktest.Status(500, ""), sink.Unknown},
		"limited":                     {slacktest.RateLimited(7 * time.Second), sink.RateLimited},
		"limited by code":             {slacktest.Code("ratelimited"), sink.RateLimited},
		"reset":                       {slacktest.Reset(), sink.Unknown},
		"a page":                      {slacktest.HTML(200), sink.Unknown},
		"no messages":                 {slacktest.Status(200, `{"ok":true}`), sink.Unknown},
		"cut":                         {slacktest.Truncated(1000, `{"ok":true,"messages":[`), sink.Unknown},
		"token revoked":               {slacktest.Code("token_revoked"), sink.Misconfigured},
		"internal error":              {slacktest.Code("internal_error"), sink.Unknown},
		"unlisted code":               {slacktest.Code("invalid_cursor"), sink.Rejected},
		"not found":                   {slacktest.Status(http.StatusNotFound, ""), sink.Misconfigured},
		"too large":                   {slacktest.Status(http.StatusRequestEntityTooLarge, ""), sink.Rejected},
		"more to read, and no cursor": {slacktest.Status(200, `{"ok":true,"messages":[],"has_more":true}`), sink.Transient},
		"proxy wants auth": {
			slacktest.Status(http.StatusProxyAuthRequired, `{"ok":false,"error":"access_denied"}`), sink.Rejected,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := slacktest.New(t)
			s := newTestSlack(t, lookingUp(server))
			testkit.Must(s.Send(t.Context(), named(hello)))(t)
			server.RespondTo(slacktest.MethodHistory, func() slacktest.Answer { return test.answer })
			found, err := s.Find(t.Context(), doubtful(named(hello)))
			wantFailure(t, "a look-up", err, test.want, nil)
			testkit.Equal(t, found, sink.Finding{}, "what is known after a failure")
			server.RespondTo(slacktest.MethodHistory, nil)
			wantPresence(t, s, doubtful(named(hello)), sink.Present)
		})
	}
}

// fakePacer counts what is asked of it. It allows look-ups until their context ends, unless it has an error for them.
type fakePacer struct {
	allowed atomic.Int32
	paused  atomic.Int64
	refuses error
}

func (f *fakePacer) AwaitLookUp(ctx context.Context) error {
	f.allowed.Add(1)
	return cmp.Or(f.refuses, ctx.Err())
}

func (f *fakePacer) PauseLookUps(_ context.Context, d time.Duration) { f.paused.Add(int64(d)) }

// fakeIDs knows the IDs that it was given.
type fakeIDs struct {
	byName sync.Map
	outage error

	mu     sync.Mutex
	routes []string
}

func (f *fakeIDs) Routes(_ context.Context, own string) (others []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	others = slices.DeleteFunc(slices.Clone(f.routes), func(noted string) bool { return noted == own })
	if f.outage == nil {
		f.routes = append([]string{own}, others...)
	}
	return others, f.outage
}

func (f *fakeIDs) ID(_ context.Context, channel string) (string, error) {
	id, _ := f.byName.Load(channel)
	text, _ := id.(string)
	return text, f.outage
}

func (f *fakeIDs) Note(_ context.Context, channel, id string) error {
	f.byName.Store(channel, id)
	return f.outage
}

// TestFindByEarlierRoutes has a worker look for a post in doubt of a worker with other routes.
func TestFindByEarlierRoutes(t *testing.T) {
	t.Parallel()
	refunds := event.Event{ID: "refund", Category: "payments.refunds", Title: "t", Key: "k", Status: event.StatusFiring}
	for name, test := range map[string]struct {
		earlier, now string // channels of payments
		unreadable   bool   // the earlier channel cannot be read any more
		outage       error
		want         sink.Presence
		fails        bool
	}{
		"another channel":           {earlier: "C0000011", now: "C0000012", want: sink.Present},
		"a channel that is gone":    {earlier: "C0000011", now: "C0000012", unreadable: true, want: sink.Absent},
		"the same channel":          {earlier: "C0000012", now: "C0000012", want: sink.Present},
		"the routes cannot be read": {earlier: "C0000011", now: "C0000012", outage: errors.New("no answer"), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, ids := slacktest.New(t), new(fakeIDs)
			worker := func(channel string) *Sink {
				o := lookingUp(server)
				o.IDs, o.Routes = ids, routes(t, "payments", channel)
				return newTestSlack(t, o)
			}
			lost(t, worker(test.earlier), server, named(refunds), slacktest.Code("fatal_error"))
			if test.unreadable {
				var reads atomic.Int64
				server.RespondTo(slacktest.MethodHistory, func() slacktest.Answer {
					if reads.Add(1) == 1 { // of the present channel
						return slacktest.OK()
					}
					return slacktest.Code("not_in_channel")
				})
			}
			ids.outage = test.outage
			found, err := worker(test.now).Find(t.Context(), doubtful(named(refunds)))
			testkit.Equal(t, err != nil, test.fails, "the look-up fails")
			testkit.Equal(t, found.Presence, test.want, "presence")
			if test.fails {
				testkit.Equal(t, server.Calls(slacktest.MethodHistory), 0, "requests for the history")
			}
			if test.want == sink.Present {
				testkit.Equal(t, sink.PostedAs(found.Receipt), test.earlier+" "+server.Accepted()[0].Timestamp, "the receipt found")
			}
		})
	}
}

// TestFindIsPaced has a pacer allow each request. A refusal by Slack pauses the look-ups of all instances. A pacer that allows no look-up keeps Slack
// from being asked, and nothing is known of the post.
func TestFindIsPaced(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o, pacer := lookingUp(server), new(fakePacer)
	o.Pacer = pacer
	s := newTestSlack(t, o)
	wantPresence(t, s, doubtful(named(hello)), sink.Absent)
	testkit.Equal(t, pacer.allowed.Load(), 1, "requests that the pacer has allowed")

	server.RespondTo(slacktest.MethodHistory, func() slacktest.Answer { return slacktest.RateLimited(7 * time.Second) })
	_, err := s.Find(t.Context(), doubtful(named(hello)))
	testkit.Equal(t, failureOf(t, err).RetryAfter, 7*time.Second, "retry after")
	testkit.Equal(t, time.Duration(pacer.paused.Load()), 7*time.Second, "pause of all look-ups")

	pacer.refuses = context.DeadlineExceeded
	found, err := s.Find(t.Context(), doubtful(named(hello)))
	wantFailure(t, "a look-up that the pacer refuses", err, sink.Transient, nil)
	testkit.Equal(t, found, sink.Finding{}, "what is known")
	testkit.Equal(t, server.Calls(slacktest.MethodHistory), 2, "requests")
}

// TestFindTogether has many callers post at once, and be in doubt about one channel at once. They share the requests that look for posts.
func TestFindTogether(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, lookingUp(server))
	release := make(chan struct{})
	const callers = 100
	testkit.AtOnce(callers/2, func(i int) {
		if _, err := s.Send(t.Context(), eventNamed(fmt.Sprint(2*i))); err != nil {
			t.Error(err)
		}
	})
	testkit.Equal(t, len(server.Accepted()), callers/2, "posts")
	server.RespondTo(slacktest.MethodHistory, func() slacktest.Answer { return slacktest.Hold(release, slacktest.OK()) })
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			want := sink.Absent
			if i%2 == 0 {
				want = sink.Present
			}
			d := doubtful(eventNamed(fmt.Sprint(i)))
			d.First = d.First.Add(-time.Minute)
			wantPresence(t, s, d, want)
		})
	}
	testkit.Eventually(t, "the first look-up is under way", func() bool { return server.Calls(slacktest.MethodHistory) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := s.Find(ctx, doubtful(named(hello)))
	testkit.Fails(t, "a caller that leaves", err, context.DeadlineExceeded)
	close(release)
	all.Wait()
	testkit.AtMost(t, server.Calls(slacktest.MethodHistory), 3, "requests of %d callers", callers)
}

// TestReadingsBegin has a caller ask while a reading is under way. The reading that answers it begins afterwards, and finds the post of
// the meantime.
func TestReadingsBegin(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	s := newTestSlack(t, lookingUp(server))
	release := make(chan struct{})
	server.RespondTo(slacktest.MethodHistory, func() slacktest.Answer {
		if server.Calls(slacktest.MethodHistory) == 1 {
			return slacktest.Hold(release, slacktest.Status(200, `{"ok":true,"messages":[]}`))
		}
		return slacktest.OK()
	})
	var first sync.WaitGroup
	first.Go(func() { wantPresence(t, s, doubtful(named(hello)), sink.Absent) })
	testkit.Eventually(t, "the first look-up is under way", func() bool { return server.Calls(slacktest.MethodHistory) == 1 })
	testkit.Must(s.Send(t.Context(), named(hello)))(t)
	var second sync.WaitGroup
	second.Go(func() { wantPresence(t, s, doubtful(named(hello)), sink.Present) })
	testkit.Eventually(t, "the second caller waits", func() bool {
		s.history.mu.Lock()
		defer s.history.mu.Unlock()
		r := s.history.newest[thread{channel: "C0000001"}]
		return r.before != nil || r.callers == 2
	})
	close(release)
	first.Wait()
	second.Wait()
}

// TestFindInPages reads more than one page, pages above the size that is read at once, and messages of other apps of any form.
func TestFindInPages(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o, pacer := lookingUp(server), new(fakePacer)
	o.Pacer = pacer
	s := newTestSlack(t, o)
	testkit.Must(s.Send(t.Context(), named(hello)))(t)
	for range messagesInPage + 10 {
		testkit.NoError(t, send(t.Context(), s, hello))
	}
	wantPresence(t, s, doubtful(named(hello)), sink.Present)
	testkit.Equal(t, server.Calls(slacktest.MethodHistory), 2, "pages")
	testkit.Equal(t, pacer.allowed.Load(), 2, "requests that the pacer has allowed")

	asked := make(chan string, 100)
	const odd = `{"ts":"1.1","metadata":"odd","blocks":[{"type":7}]},{"ts":"1.2","metadata":{"event_type":"notifier_event","event_payload":{"name":7}}}`
	o = answeredBy(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.FormValue("limit")
		if r.FormValue("limit") != "50" {
			_, _ = fmt.Fprintf(w, `{"ok":true,"messages":[{"text":"%s"}]}`, strings.Repeat("x", maxHistoryPage))
			return
		}
		_, _ = fmt.Fprintf(w, `{"ok":true,"messages":[%s,{"ts":"1.3","metadata":{"event_type":"notifier_event","event_payload":{"name":"%s"}}}]}`, odd, named(hello).Name)
	})
	o.Channel, o.LookUp = "C0000001", true
	large := newTestSlack(t, o)
	wantPresence(t, large, doubtful(named(hello)), sink.Present)
	testkit.EqualSlices(t, []string{<-asked, <-asked, <-asked}, []string{"200", "100", "50"}, "page sizes")
}

// gatedPacer allows look-ups when it is open.
type gatedPacer struct {
	fakePacer
	open  chan struct{}
	asked atomic.Int32
}

func (g *gatedPacer) AwaitLookUp(ctx context.Context) error {
	g.asked.Add(1)
	<-g.open
	return ctx.Err()
}

// TestFindTooMany has a channel without an end, whose first page has a post. Two callers share a reading. The post is found at once. A post that is
// not among so many messages cannot be looked up. If nobody looks for such a post, the reading ends with the first page.
func TestFindTooMany(t *testing.T) {
	t.Parallel()
	var pages atomic.Int32
	found := make(chan struct{})
	o := answeredBy(t, func(w http.ResponseWriter, r *http.Request) {
		const more = `"has_more":true,"response_metadata":{"next_cursor":"more"}`
		if pages.Add(1); r.FormValue("cursor") == "" {
			_, _ = fmt.Fprintf(w, `{"ok":true,"messages":[{"ts":"1.3","metadata":{"event_type":"notifier_event","event_payload":{"name":"%s"}}}],%s}`, named(hello).Name, more)
			return
		}
		<-found
		_, _ = fmt.Fprintf(w, `{"ok":true,"messages":[],%s}`, more)
	})
	pacer := &gatedPacer{open: make(chan struct{})}
	o.Channel, o.LookUp, o.Pacer = "C0000001", true, pacer
	s := newTestSlack(t, o)
	var callers sync.WaitGroup
	callers.Go(func() {
		wantPresence(t, s, doubtful(named(hello)), sink.Present)
		close(found)
	})
	callers.Go(func() {
		wantPresence(t, s, doubtful(named(event.Event{ID: "another", Category: hello.Category, Title: "t"})), sink.Unsearchable)
	})
	testkit.Eventually(t, "both callers wait", func() bool {
		s.history.mu.Lock()
		defer s.history.mu.Unlock()
		r := s.history.waiting[thread{channel: "C0000001"}]
		return r != nil && r.callers == 2
	})
	close(pacer.open)
	callers.Wait()
	testkit.Equal(t, pages.Load(), maxHistoryPages, "pages for both callers")
	wantPresence(t, s, doubtful(named(hello)), sink.Present)
	testkit.Eventually(t, "no reading goes on", func() bool {
		s.history.mu.Lock()
		defer s.history.mu.Unlock()
		return len(s.history.newest) == 0
	})
	testkit.Equal(t, pacer.asked.Load(), maxHistoryPages+1, "turns, with those until the post was found again")
}

// TestFindWithAWrongClock has the clock of this process ahead of Slack's clock. The look-up begins where the post can be.
func TestFindWithAWrongClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 20 * time.Second, 10 * time.Minute, -10 * time.Minute} {
		server := slacktest.New(t)
		s := newTestSlack(t, lookingUp(server))
		s.history.now = func() time.Time { return time.Now().Add(ahead) }
		testkit.Must(s.Send(t.Context(), named(hello)))(t)
		now := s.history.now()
		wantPresence(t, s, sink.Doubt{Delivery: named(hello), First: now, Last: now.Add(-time.Hour)}, sink.Present)
	}
}

// TestQuietRun posts without a doubt. No request is made beside the posts and updates.
func TestQuietRun(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	o := lookingUp(server)
	o.Channel, o.Settle = "#ops", time.Hour
	s := newTestSlack(t, o)
	d := named(ended)
	d.Opened = testkit.Must(s.Send(t.Context(), named(fired)))(t)
	testkit.Must(s.Send(t.Context(), d))(t)
	testkit.NoError(t, s.SendSummary(t.Context(), sampleSummary()))
	for _, method := range []string{slacktest.MethodHistory, slacktest.MethodReplies, "users.conversations", "conversations.info", "auth.test"} {
		testkit.Equal(t, server.Calls(method), 0, "requests of %s", method)
	}
	testkit.Equal(t, server.Calls(slacktest.MethodPost), 3, "posts")
}
