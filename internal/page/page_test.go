package page

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/httpserver"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/why"
)

func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{"/", "/why", "/events", "/page.js", "/elsewhere"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
			got := s.do(method, path)
			testkit.Equal(t, got.code, http.StatusMethodNotAllowed, "%s %s", method, path)
			testkit.Equal(t, got.header.Get("Allow"), "GET, HEAD", "what %s allows", path)
		}
	}
	for path, want := range map[string]int{
		"/": 200, "/why": 200, "/page.js": 200, "/times.js": 200, "/page.css": 200, "/icon.svg": 200, "/elsewhere": 404, "/assets/page.js": 404, "/overview.html": 404,
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			got := s.do(method, path)
			testkit.Equal(t, got.code, want, "%s %s", method, path)
			if method == http.MethodHead && got.body != "" {
				t.Errorf("HEAD %s: got the body %q, want none", path, got.body)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	s := serve(t, newScripted(), "127.0.0.1:0", "pa55 word")
	for _, path := range []string{"/", "/why", "/page.css", "/elsewhere", "/?token=pa55+word"} {
		for _, authorization := range []string{"", "Bearer pa55 word"} {
			got := s.do(http.MethodGet, path, "Authorization", authorization)
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
					"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
				"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			} {
				testkit.Equal(t, got.header.Get(name), want, "%s of %s", name, path)
			}
		}
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	s := serve(t, newScripted(), "127.0.0.1:0", "pa55 word")
	for _, path := range []string{"/", "/why?q=evt-1", "/events", "/page.js", "/?token=other", "/?token="} {
		for _, headers := range [][]string{nil, {"Authorization", "Bearer other"}, {"Authorization", "pa55 word"}, {"Cookie", cookieName + "=pa55 word"}} {
			got := s.do(http.MethodGet, path, headers...)
			testkit.Equal(t, got.code, http.StatusUnauthorized, "%s with %q", path, headers)
			testkit.Equal(t, got.header.Get("WWW-Authenticate"), "Bearer", "what is asked for")
			testkit.Lacks(t, path, got.body, "host-a", "pa55 word")
		}
	}
	asked, _ := s.source.counts()
	testkit.Equal(t, asked, 0, "questions without the token")
	got := s.do(http.MethodGet, "/", "Authorization", "Bearer pa55 word")
	testkit.Equal(t, got.code, http.StatusOK, "with the header")

	got = s.do(http.MethodGet, "/why?token=pa55+word&q=evt-1")
	testkit.Equal(t, got.code, http.StatusSeeOther, "with the token in the address")
	testkit.Equal(t, got.header.Get("Location"), "./why?q=evt-1", "where it leads")
	cookie := got.cookies[0]
	testkit.Check(t, cookie.HttpOnly && cookie.SameSite == http.SameSiteStrictMode && !strings.Contains(cookie.Value, "pa55"),
		"got the cookie %v, want HttpOnly, strict and without the token", cookie)
	got = s.do(http.MethodGet, "/why?q=evt-1", "Cookie", cookie.Name+"="+cookie.Value)
	testkit.Equal(t, got.code, http.StatusOK, "with the cookie")
}

// A page without a token for this host refuses foreign host names, as DNS rebinding uses them.
func TestHost(t *testing.T) {
	t.Parallel()
	open, guarded := serve(t, newScripted(), "localhost:0", ""), serve(t, newScripted(), "127.0.0.1:0", "pa55 word")
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:8081": 200, "localhost.": 200, "page.localhost:1": 200, "127.0.0.1": 200, "127.9.8.7:8081": 200, "[::1]:8081": 200,
		"rebound.example.org": 403, "rebound.example.org:8081": 403, "127.0.0.1.example.org": 403, "notlocalhost": 403, "10.0.0.1:8081": 403, "[::]": 403,
	} {
		for _, path := range []string{"/", "/why?q=evt-1", "/page.js"} {
			testkit.Equal(t, open.doAt(host, path).code, want, "%s at the host %q", path, host)
		}
		testkit.Equal(t, guarded.doAt(host, "/").code, http.StatusUnauthorized, "a page with a token at the host %q", host)
	}
	named := newPage(Options{Source: newScripted(), Logger: testkit.NewLog(t).Logger()})
	named.local, named.host = true, httpserver.HostOf("Page.internal:8081")
	testkit.Equal(t, named.isNamed("page.internal:8081"), true, "the configured address names this host")
}

// Another site makes the browser of a reader start no search and watch no events. It may link to the page.
func TestForeignSites(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, test := range []struct {
		path, site, dest string
		want             int
	}{
		{"/why?q=evt-1", "cross-site", "document", 403}, {"/why?q=evt-1", "cross-site", "image", 403}, {"/why?q=evt-1", "same-site", "document", 403},
		{"/why?q=evt-1", "cross-site", "", 403}, {"/events", "cross-site", "empty", 403}, {"/events", "same-site", "empty", 403},
		{"/?filter=a", "cross-site", "image", 403}, {"/page.js", "cross-site", "script", 403}, {"/", "cross-site", "iframe", 403},
		{"/", "cross-site", "document", 200}, {"/?filter=a", "same-site", "document", 200},
		{"/why", "same-origin", "document", 200}, {"/why", "none", "document", 200}, {"/why", "", "", 200}, {"/page.js", "same-origin", "script", 200},
	} {
		headers := []string{"Sec-Fetch-Dest", test.dest}
		if test.site != "" {
			headers = append(headers, "Sec-Fetch-Site", test.site)
		}
		got := s.do(http.MethodGet, test.path, headers...)
		testkit.Equal(t, got.code, test.want, "%s from %q as %q", test.path, test.site, test.dest)
		if test.path == "/why?q=evt-1" {
			testkit.Contains(t, "the answer", got.body, `<a href="./why?q=evt-1">`)
		}
	}
	testkit.Equal(t, len(s.source.questions), 0, "searches of other sites")
	_, following := s.source.counts()
	testkit.Equal(t, following, 0, "watchers from other sites")
}

// get asks a page inside of a synctest bubble. The events end with the context.
func get(ctx context.Context, handler http.Handler, path string) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
	return recorder
}

func bubble(t *testing.T, source *scripted) (handler http.Handler) {
	p := newPage(Options{Source: source, Logger: testkit.NewLog(t).Logger()})
	t.Cleanup(p.hub.close)
	return p.handler()
}

// watch receives events until leave is called, which returns what came.
func watch(t *testing.T, handler http.Handler) (leave func() string) {
	t.Helper()
	var recorder *httptest.ResponseRecorder
	stop := testkit.Run(t, func(ctx context.Context) { recorder = get(ctx, handler, "/events") })
	return func() string {
		stop()
		return recorder.Body.String()
	}
}

func TestOnePollerForAllWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newScripted()
		handler := bubble(t, source)
		asked := func() int { n, _ := source.counts(); return n }
		time.Sleep(10 * time.Second)
		testkit.Equal(t, asked(), 0, "questions while nobody watches")

		ctx, leave := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		for i := range 50 {
			path := "/events"
			if i%2 == 0 {
				path += "?filter=payments"
			}
			watching.Go(func() { get(ctx, handler, path) })
		}
		for range 50 {
			watching.Go(func() { get(ctx, handler, "/") })
		}
		time.Sleep(10*time.Second + time.Millisecond)
		testkit.Equal(t, asked(), 11, "questions of 50 watchers in 10 seconds")
		_, following := source.counts()
		testkit.Equal(t, following, 1, "readers of the decisions")

		leave()
		watching.Wait()
		synctest.Wait()
		_, following = source.counts()
		testkit.Equal(t, following, 0, "readers of the decisions after all have left")
		time.Sleep(10 * time.Second)
		testkit.Equal(t, asked(), 11, "questions after all have left")
	})
}

func TestTooManyWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := bubble(t, newScripted())
		for range maxWatchers { // none of them watches
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodHead, "http://localhost/events", nil))
		}
		ctx, leave := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		for range maxWatchers {
			watching.Go(func() { get(ctx, handler, "/events") })
		}
		synctest.Wait()
		testkit.Equal(t, get(ctx, handler, "/events").Code, http.StatusServiceUnavailable, "one too many")
		leave()
		watching.Wait()
	})
}

// Filters that differ in letter case or blanks share a rendering. Readers with many filters do not fill the memory, and get what they ask for.
func TestFilters(t *testing.T) {
	t.Parallel()
	p := newPage(Options{Source: newScripted(), Logger: testkit.NewLog(t).Logger()})
	t.Cleanup(p.hub.close)
	read := func(filter string) string {
		return get(t.Context(), p.handler(), "/?"+url.Values{"filter": {filter}}.Encode()).Body.String()
	}
	newest := p.hub.current()
	newest.asked = time.Now().Add(time.Hour) // it serves the whole test
	for _, filter := range []string{"refunds", " ReFunds", "REFUNDS	", "", "  "} {
		read(filter)
	}
	testkit.Equal(t, len(newest.filtered), 1, "renderings of one filter")
	for i := range 2 * maxFiltered {
		testkit.Contains(t, "the filtered page", read(fmt.Sprint("none-", i)), fmt.Sprintf("contains “none-%d”", i))
	}
	testkit.Equal(t, len(newest.filtered), maxFiltered, "renderings of many filters")
}

// A watcher gets everything once, and then only changes.
func TestOnlyChangesAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newScripted()
		source.change(func(s *status.Status) { s.Mismatches = nil })
		handler := bubble(t, source)
		leave := watch(t, handler)
		time.Sleep(1500 * time.Millisecond)
		source.change(func(s *status.Status) { s.Backlog.Waiting = 99 })
		source.followed <- dropped(1, 3)
		time.Sleep(time.Second)
		messages := strings.Split(strings.TrimSpace(leave()), "\n\n")
		testkit.Equal(t, len(messages), 3, "messages")
		for i, want := range []map[string]bool{
			{"whole": true, "limits": true, "summary": true, "workers": true, "findings": true}, // also a part without text
			{"whole": false, "limits": false, "summary": false, "decisions": false},
			{"whole": false, "limits": false, "summary": true, "decisions": true},
		} {
			for field, has := range want {
				testkit.Equal(t, strings.Contains(messages[i], `"`+field+`":`), has, "message %d has %s: %s", i, field, messages[i])
			}
		}
	})
}

// The decisions stay when the last watcher leaves. The next one gets them with those that came meanwhile, and reads which time nobody watched.
func TestDecisionsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newScripted()
		handler := bubble(t, source)
		receive := func(entries []journal.Entry) string {
			leave := watch(t, handler)
			synctest.Wait()
			source.followed <- entries
			time.Sleep(2 * time.Second)
			received := leave()
			synctest.Wait() // for the readers of the source
			return received
		}
		began := time.Now()
		receive(dropped(1, 2))
		time.Sleep(30 * time.Second)
		soon := receive(dropped(3, 1))
		testkit.Contains(t, "a watcher who comes soon", soon, "card 1 declined", "card 2 declined", "card 3 declined")
		testkit.Lacks(t, "a watcher who comes soon", soon, "were not read")
		time.Sleep(time.Hour)
		late := receive(dropped(4, 1))
		testkit.Contains(t, "a watcher who comes late", late, "card 1 declined", "card 3 declined", "card 4 declined", "were not read")
		testkit.EqualSlices(t, source.since, []time.Time{
			began.Add(-recent), began.Add(1), began.Add(34*time.Second + time.Hour - recent),
		}, "the times from which on decisions were read")
	})
}

// A batch counts once, also if two goroutines read it. A journal whose clock was set back is read again.
func TestFeedTakesABatchOnce(t *testing.T) {
	t.Parallel()
	f := feed{renderer: &renderer{logger: testkit.NewLog(t).Logger()}}
	now := time.Now()
	for _, stored := range []time.Time{now, now, now.Add(-time.Second), now.Add(1), now.Add(-recent)} {
		f.add(journal.Batch{Entries: dropped(1, 2), Stored: stored})
	}
	_, number := f.after(0)
	testkit.Equal(t, number, 6, "decisions of three batches")
}

func TestSourceFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newScripted()
		handler := bubble(t, source)
		read := func() string { return get(t.Context(), handler, "/").Body.String() }
		if body := read(); !strings.Contains(body, "host-a") || strings.Contains(body, "cannot be asked") {
			t.Errorf("before the failure: got %s, want the state", body)
		}
		source.mu.Lock()
		source.fails = errors.New("nats: <b>no responders</b>")
		source.mu.Unlock()
		time.Sleep(2 * time.Second)
		if body := read(); !strings.Contains(body, "the state cannot be asked: nats: &lt;b&gt;no responders") || strings.Contains(body, "4,321") || strings.Contains(body, "host-a") {
			t.Errorf("after the failure: got %s, want the escaped error", body)
		}
	})
}

// Of a part that did not answer, the page shows no number: a zero would say that there is nothing.
func TestPartsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	const none, nothing, noLimit, stored = "None.", "Nothing is suppressed.", "The workers report no used limit.", "0 B stored"
	for name, test := range map[string]struct {
		unknown            []string
		workers            []status.Worker
		state              string
		questionMarks      int // of the counters and of the chart
		present, forbidden []string
	}{
		"all answer":      {nil, []status.Worker{{Ready: true}}, "normal", 0, []string{none, nothing, noLimit, stored, "not delivered"}, []string{"ot known"}},
		"no worker":       {[]string{"workers: none answers"}, nil, "no worker answers", 6, []string{none, stored, "No worker answers."}, []string{nothing, noLimit}},
		"no backlog":      {[]string{"backlog: timeout"}, []status.Worker{{Ready: true}}, "normal", 1, []string{none, nothing}, []string{"not delivered", stored}},
		"no dead letters": {[]string{"dead letters: timeout"}, []status.Worker{{Ready: true}}, "normal", 1, []string{nothing, stored}, []string{none}},
		"no limits":       {[]string{"limits: no worker has read their use from Redis"}, []status.Worker{{Ready: true}}, "the use of the limits is not known", 1, []string{none, nothing, "The use of the limits is not known."}, []string{noLimit}},
		"nothing":         {[]string{status.Everything + ": timeout"}, nil, "not known", 9, nil, []string{none, nothing, noLimit, "not delivered", "No worker answers."}},
	} {
		source := newScripted()
		source.change(func(s *status.Status) {
			*s = status.Status{At: s.At, Workers: test.workers, Unknown: test.unknown}
			if test.unknown == nil || s.Knows(status.Everything) {
				s.NATS.Version = "2.12.0"
			}
		})
		page := serve(t, source, "127.0.0.1:0", "")
		if filtered := page.do(http.MethodGet, "/?filter=payments").body; slices.Contains(test.forbidden, noLimit) {
			testkit.Lacks(t, name+": the filtered page", filtered, "no used limit")
		}
		body := page.do(http.MethodGet, "/").body
		testkit.Lacks(t, name+": the chart", body, " in all")
		testkit.Contains(t, name, body, append(test.present, ">"+test.state+"</p>")...)
		testkit.Equal(t, strings.Count(body, ">?</b>"), test.questionMarks, "%s: unknown numbers", name)
		for _, text := range test.forbidden {
			testkit.Equal(t, strings.Contains(body, text), false, "%s: the page says %q", name, text)
		}
	}
}

func TestNothingIsSuppressed(t *testing.T) {
	t.Parallel()
	for name, mutes := range map[string][]status.Mute{"no mute": nil, "a mute": {{Path: "payments", Reason: "maintenance", Until: time.Now().Add(time.Hour)}}} {
		source := newScripted()
		source.change(func(s *status.Status) { s.Suppressed, s.Mutes = nil, mutes })
		body := serve(t, source, "127.0.0.1:0", "").do(http.MethodGet, "/").body
		testkit.Equal(t, strings.Contains(body, "Nothing is suppressed."), len(mutes) == 0, "with %s: nothing is suppressed", name)
	}
}

// Suppressions without one next slot say so: a limit without slots, and a limit of each key.
func TestSuppressedWithoutANextSlot(t *testing.T) {
	t.Parallel()
	source := newScripted()
	source.change(func(s *status.Status) {
		s.Suppressed = []status.Suppressed{{Category: "debug", Level: "debug", Count: 1, Since: s.At, Never: true}, {Category: "disks", Level: "disks@key", Count: 2, Since: s.At}}
	})
	body := serve(t, source, "127.0.0.1:0", "").do(http.MethodGet, "/").body
	testkit.Contains(t, "page", body, ">no slots, since ", ">each key has a next slot of its own, since ")
}

// A consumer that somebody paused is named, with the command that ends the pause.
func TestPausedConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newScripted()
		handler := bubble(t, source)
		source.change(func(s *status.Status) {
			s.Backlog.Paused = []stream.Pause{{Stream: "EVENTS", Consumer: "notifier", Until: s.At.Add(time.Hour)}}
		})
		testkit.Contains(t, "page", get(t.Context(), handler, "/").Body.String(), "consumer notifier is paused", "nats consumer resume EVENTS notifier")
	})
}

// TestLinksOfPaths follows every link of a path. Patterns are texts, since only categories can be looked up.
func TestLinksOfPaths(t *testing.T) {
	t.Parallel()
	source := newScripted()
	source.change(func(s *status.Status) {
		s.Mutes = []status.Mute{{Path: ">", Every: "daily 01:00-02:00 UTC"}, {Path: "db.*", Until: time.Now().Add(time.Hour)}, {Path: "vacuum", Until: time.Now().Add(time.Hour)}}
		for _, path := range []string{"global", "infra.*", "*@key", "billing"} {
			s.Changes = append(s.Changes, status.Change{Path: path, Limit: "1/1h"})
		}
	})
	s := serve(t, source, "127.0.0.1:0", "")
	body := s.do(http.MethodGet, "/").body
	var linked []string
	for _, link := range regexp.MustCompile(`href="(why\?category=([^"]*))"`).FindAllStringSubmatch(body, -1) {
		linked = append(linked, link[2])
		testkit.Equal(t, s.do(http.MethodGet, "/"+html.UnescapeString(link[1])).code, http.StatusOK, "status of the link %s", link[1])
	}
	slices.Sort(linked)
	testkit.EqualSlices(t, slices.Compact(linked), []string{"billing", "debug", "payments", "payments.refunds", "search", "vacuum"}, "linked categories")
	for _, pattern := range []string{"&gt;", "db.*", "infra.*", "*@key"} {
		testkit.Contains(t, "a pattern", body, `<span class="path">`+pattern+"</span>")
	}
	testkit.Lacks(t, "the global limit", body, `data-path="global"`)
}

// The link to a search of the last hour names the time at which that hour began, and the form of its answer keeps this time.
func TestLinkToASearch(t *testing.T) {
	t.Parallel()
	s := start(t)
	link := func(path string) string {
		t.Helper()
		found := regexp.MustCompile(`<a id="link" href="([^"]+)">`).FindStringSubmatch(s.do(http.MethodGet, path).body)
		testkit.Require(t, found != nil, "got no link on %s", path)
		return "/" + html.UnescapeString(found[1])
	}
	first := link("/why?q=evt-1&category=payments&since=1h")
	begin := s.source.questions[0].Since
	testkit.Equal(t, first, "/why?"+url.Values{"q": {"evt-1"}, "category": {"payments"}, "since": {begin.Format(time.RFC3339)}}.Encode(), "the link")
	testkit.Equal(t, link(first), first, "the link of the linked page")
	testkit.Equal(t, s.source.questions[1].Since.Equal(begin), true, "the beginning of the linked search")
	body := s.do(http.MethodGet, "/why?q=evt-1&since=2026-03-01T12:30:00Z", "Cookie", zoneCookie+"=Asia/Tokyo").body
	testkit.Contains(t, "the form", body, `<option value="2026-03-01T12:30:00Z" selected>1 Mar 21:30:00</option>`, `<option value="1h">1h ago</option>`)
	for _, since := range []string{"1 hour", "0s", "-1h", "yesterday", "2026-03-01"} {
		got := s.do(http.MethodGet, "/why?"+url.Values{"q": {"evt-1"}, "since": {since}}.Encode())
		testkit.Equal(t, got.code, http.StatusBadRequest, "status of a search since %q", since)
		testkit.Contains(t, "the answer", got.body, fmt.Sprintf("since is %q; expected a time span such as 1h", since))
	}
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	const arn = "arn:aws:lambda:eu-central-1:123456789012:function:payments-refunds-prod:42"
	s := start(t)
	s.source.answers["evt-4711"] = why.Answer{Events: []why.Event{{ID: "evt-4711", Category: "payments.refunds", Sentences: []string{"sent at 09:14:02.119"}}}}
	s.source.answers["payments.refund"] = why.Answer{Missing: "the journal begins at 08:00:00.000", Nearest: "payments.refunds"}
	for _, test := range []struct{ text, shows string }{
		{"evt-4711", "sent at 09:14:02.119"},
		{"#47", "Not known"},
		{"payments.refund", `The nearest category is <a href="why?category=payments.refunds">`},
		{" outer  blanks\tand\n", "Not known"},
		{arn, "Not known"},
		{strings.Repeat("é", maxID/2), "Not known"},
	} {
		text := test.text
		s.source.questions = nil
		body := s.do(http.MethodGet, "/why?"+url.Values{"since": {"1h"}, "q": {text}}.Encode()).body
		testkit.Contains(t, text, body, test.shows)
		testkit.Require(t, len(s.source.questions) == 1 && s.source.questions[0].text == text,
			"%q: got the questions %v, want one about the text as it is", text, s.source.questions)
		testkit.Between(t, time.Since(s.source.questions[0].Since), 59*time.Minute, 61*time.Minute, "%q: time since the begin of the search", text)
	}
	s.source.answers["payments"] = why.Answer{
		Found: 21, Events: []why.Event{{ID: "evt-1", Category: "payments.refunds", Sentences: []string{"sent at 09:14:02.119"}}},
	}
	body := s.do(http.MethodGet, "/why?category=Payments").body
	testkit.Contains(t, "a category", body, "The newest 1 of 21 events", `href="why?q=evt-1&amp;category=payments.refunds"`, `href="why?category=payments"`)
	asked := s.source.questions[len(s.source.questions)-1]
	testkit.Equal(t, asked.text+" of "+asked.Category, " of payments", "question about a category")
	testkit.Equal(t, s.do(http.MethodGet, "/why?category=%3E").code, http.StatusBadRequest, "status of no category")
	testkit.Contains(t, "without a text", s.do(http.MethodGet, "/why?q=").body, "Give the ID")
	invalid := s.do(http.MethodGet, "/why?q=%ff").body
	testkit.Equal(t, utf8.ValidString(invalid), true, "valid UTF-8 for an invalid text in %q", invalid)
	tooLong := s.do(http.MethodGet, "/why?q="+strings.Repeat("a", maxID+1))
	testkit.Equal(t, tooLong.code, http.StatusRequestURITooLong, "status of a text that is too long")
	testkit.Contains(t, "a text that is too long", tooLong.body, "the text has 4097 bytes; at most 4096 are looked up")
}
