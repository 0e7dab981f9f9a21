package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/why"
)

func TestNumbers(t *testing.T) {
	t.Parallel()
	b := openLive(t, start(t))
	for selector, want := range map[string]string{
		"#state": "degraded: Redis is unavailable, policy local; 1 of 2 workers cannot write the journal; 1 of 2 workers not ready; 1 limit full; 1 channel paused",
		"#full":  "1", "#dropped": "1,234", "#waiting": "5,526", "#letters": "3", "#paused": "1", "#idle": "1", "[data-key=idle]": "of 2",
		"#undelivered": "4,321", "#unacked": "17", "#room": "1,200 for channel, 5 for slot",
		"#minute-sent": "12", "#minute-dropped": "1,234", "#minute-delayed": "0", ".plot .y": "2,000 1,000 0", ".plot .x": "60 min ago 45 30 15 now",
		"[data-path='']":                                    "all events 60 of 100 100/30m global",
		"[data-path=payments]":                              "payments full, 10 of 10 10/30m category, 1,180 denied a minute, next slot",
		"[data-key='payments.refunds']":                     "payments.refunds 2 of 5 5/30m payments.*",
		"[data-path=debug]":                                 "debug set to 0/1h by alice",
		"[data-part=suppressed] [data-category=payments]":   "payments 1,204 by category next slot",
		"[data-part=channels] [data-key='#payments']":       "31 0 58 1/s none",
		"[data-part=channels] [data-key='#search']":         "#search at its pace 0 8 0 1/s none",
		"[data-part=channels] [data-key='#infra']":          "#infra at its pace until",
		"[data-part=channels] [data-key='#idle']":           "#idle open 0 0 0 no rate none",
		"[data-part=channels] tbody tr:nth-child(2)":        "#search",
		"[data-part=waiting] [data-key='budget workspace']": "4 of 5/1s used, 12 channels wait, paused until",
		"[data-part=letters] [data-key=malformed]":          "3 malformed",
		"[data-part=workers] [data-key=a]":                  "host-a ready 4 12 1,234 0 0 1:7 v1.2.3",
		"[data-part=workers] [data-key=b]":                  "host-b not ready: redis is unavailable, degraded: local, cannot write the journal since",
		"[data-part=workers] .facts":                        "primary 7.2.4, replicas: 1, memory 5 MiB, slowest call of the last minute 3ms",
		"[data-part=findings]":                              "Workers differ in NOTIFIER_GLOBAL_LIMIT: 100/30m on host-a 90/30m on host-b",
		"[data-part=limits] li:nth-child(2)":                "payments",
	} {
		testkit.Contains(t, selector, b.text(selector), want)
	}
	testkit.Equal(t, b.evaluate(`[...document.querySelectorAll(".tiles a")].filter((a) => !document.querySelector(a.hash)).length`), "0", "counters without details")
	tops := `new Set([...document.querySelectorAll(".plot .x span")].map((label) => label.getBoundingClientRect().top)).size`
	testkit.Equal(t, b.number(tops), 1, "lines of labels below the chart")
	left := b.number(`document.querySelector("[data-path=payments] time").innerText.match(/in (\d+) (s|min)/)[1]`)
	testkit.Between(t, left, 1, 90, "seconds until the next slot")
	b.source.change(func(s *status.Status) {
		s.Backlog.Waiting = 7
		s.Workers = s.Workers[:1]
		s.Limits[1].Used, s.Limits[1].Next = 9, nil
		s.Limits[3].Used = 10
		s.Suppressed, s.Mismatches = nil, nil
	})
	b.awaitText("#undelivered", "7")
	for selector, want := range map[string]string{
		"#state": "1 limit full; 1 channel paused", "#idle": "0", "#waiting": "1,212", "[data-path=payments]": "9 of 10",
		"[data-path=search]": "full, 10 of 10 10/30m category, next slot not known", "[data-part=limits] li:nth-child(2)": "search",
		"[data-part=suppressed]": "Nothing is suppressed.",
	} {
		testkit.Contains(t, selector+" after the change", b.text(selector), want)
	}
}

// crowd is a deployment in which all limits of 30 categories are full, each with drops of its own and a channel of its own.
func crowd(s *status.Status) {
	next := s.At.Add(20 * time.Minute)
	s.Limits, s.Suppressed, s.Channels, s.Workers = s.Limits[:1], nil, nil, nil
	for i := range 30 {
		path := fmt.Sprintf("payments.refunds-%02d", i)
		s.Limits = append(s.Limits, status.Limit{Use: limits.Use{Level: "payments.*", Path: path, Limit: "10/30m", Used: 10, Size: 10, Next: &next}, PerMinute: int64(1000 - i)})
		s.Suppressed = append(s.Suppressed, status.Suppressed{
			Category: path, Level: "payments.*", Count: int64(10_000 - i), Since: s.At.Add(-time.Hour), Until: next,
			Titles: []string{"card declined by the bank of the customer, and then declined once more by the other", "3-D Secure timed out", "refund is overdue"},
		})
		s.Channels = append(s.Channels, status.Channel{Name: "#" + path, Queue: new(int64(i)), PerMinute: 58, Rate: 1, LastDigest: s.At.Add(-time.Minute)})
	}
	for i := range 12 {
		s.Workers = append(s.Workers, status.Worker{
			Instance: fmt.Sprint(i), Name: fmt.Sprintf("notifier-7f9c5d8b6-%05d", i), Version: "v1.2.3", Ready: true, Started: s.At.Add(-48 * time.Hour), Revision: "1:7",
		})
	}
}

// With 30 categories, and with a thousand, the page has at most three screens on a desktop and five on a phone.
func TestPageIsShort(t *testing.T) {
	t.Parallel()
	source := newScripted()
	source.change(crowd)
	b := openLive(t, serve(t, source, "127.0.0.1:0", ""))
	source.followed <- dropped(1, 100)
	b.await("decisions", `document.querySelectorAll("#decisions li").length === 20`)
	for _, screen := range []struct {
		name          string
		width, height int64
		most          int
	}{{"desktop", 1280, 800, 3}, {"phone", 390, 844, 5}} {
		testkit.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(screen.width, screen.height)))
		height := b.number("document.documentElement.scrollHeight")
		testkit.AtMost(t, height, screen.most*int(screen.height), "height of the page on a %s", screen.name)
		testkit.AtMost(t, b.number("document.documentElement.scrollWidth"), int(screen.width), "width of the page on a %s", screen.name)
	}
	testkit.Equal(t, b.text("[data-part=limits] summary"), "22 more paths", "what is folded away")
	testkit.Equal(t, b.evaluate(`[...document.querySelectorAll("table")].map((table) => (table.tHead?.rows[0].cells.length ?? 0) - table.tBodies[0].rows[0].cells.length).join()`),
		"0,0,0,0", "columns with a heading, less those of a row, in the tables of channels and workers that are shown and folded away")

	// What the reader unfolds stays unfolded while the page is updated.
	b.evaluate(`document.querySelector("[data-part=limits] details").open = true`)
	source.change(func(s *status.Status) { s.Backlog.Waiting, s.Limits[30].PerMinute = 99, 7 })
	b.awaitText("[data-path='payments.refunds-29']", "7 denied a minute")
	testkit.Equal(t, b.evaluate(`document.querySelector("[data-part=limits] details").open`), "true", "whether the limits are unfolded")
	testkit.Equal(t, b.evaluate(`document.querySelector("[data-part=channels] details").open`), "false", "whether the channels are unfolded")
}

// Times are in the reader's zone, also those in the sentences of an answer. Without a script they are in UTC.
func TestReadersZone(t *testing.T) {
	t.Parallel()
	source := newScripted()
	at := time.Date(2026, 3, 1, 22, 30, 0, 0, time.UTC)
	source.change(func(s *status.Status) { s.Suppressed[0].Since = at })
	source.answers["evt-4711"] = why.Answer{Events: []why.Event{{ID: "evt-4711", Stored: at}}}
	s := serve(t, source, "127.0.0.1:0", "")
	testkit.Contains(t, "page without a script", s.do(http.MethodGet, "/").body, "1 Mar 22:30:00 UTC", `Times are in <span id="zone">UTC`)
	b := open(t, s, "/icon.svg")
	testkit.Must(chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"}))(t)
	b.visit("/why?q=evt-4711") // the first page that is opened is asked for again, since the server does not know the zone
	b.awaitText("#zone", "Asia/Tokyo")
	b.await("the answer in the reader's zone", `document.querySelector("main").dataset.zone === "Asia/Tokyo"`)
	b.awaitText("article", "stored 2 Mar 07:30:00")
	source.mu.Lock()
	testkit.Equal(t, source.zone, "Asia/Tokyo", "the zone of the last question")
	source.mu.Unlock()
	b.visit("/")
	b.awaitLive()
	b.awaitText("[data-category=payments]", "since 2 Mar 07:30:00")
	source.change(func(s *status.Status) { s.Suppressed[0].Since = at.Add(time.Minute) })
	b.awaitText("[data-category=payments]", "since 2 Mar 07:31:00")
}

// A browser that keeps no cookies has no way to send its zone. The sentences of an answer stay in UTC, and the footer says so.
func TestReadersZoneWithoutCookies(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.source.answers["evt-4711"] = why.Answer{Events: []why.Event{{ID: "evt-4711", Sentences: []string{"sent at 22:30:00.119"}}}}
	b := open(t, s, "/icon.svg")
	testkit.Must(chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"}))(t)
	testkit.Must(chromedp.Call(b.ctx, emulation.SetDocumentCookieDisabled, emulation.SetDocumentCookieDisabledParams{Disabled: true}))(t)
	b.visit("/why?q=evt-4711")
	b.awaitText("article", "sent at 22:30:00.119")
	b.awaitText("footer", "Times are in Asia/Tokyo, in sentences in UTC.")
	b.visit("/")
	b.awaitText("footer", "Times are in Asia/Tokyo.")
}

// The page of a category says how many of its events it lists, the newest first.
func TestListed(t *testing.T) {
	t.Parallel()
	source := newScripted()
	some := why.Answer{
		Events: []why.Event{{ID: "older"}, {ID: "newer"}},
		Found:  1204, Totals: []why.Total{{Result: journal.Sent, Count: 4}, {Result: journal.Waiting, Count: 9}, {Result: journal.Dropped, Level: "category", Count: 1200}},
	}
	all := some
	all.Totals, all.Found = []why.Total{{Result: journal.Sent, Count: 2}}, 2
	source.answers["payments"], source.answers["search"] = some, all
	b := open(t, serve(t, source, "127.0.0.1:0", ""), "/why?q=payments")
	b.awaitText("#listed", "The newest 2 of 1,204 events, the newest first.")
	testkit.Contains(t, "events", b.text("main"), "newer older")
	b.visit("/why?q=search")
	b.awaitText("#listed", "All 2 events, the newest first.")
	some.Asked.ID = "shared"
	testkit.Equal(t, listed(some), "2 of 1,204 events, the newest first.", "of an ID, of which the answer has some of each first level")
}

func TestBurst(t *testing.T) {
	t.Parallel()
	b := openLive(t, start(t))
	const batches, each = 40, 500
	for i := range batches {
		b.source.followed <- dropped(i*each, each)
		b.source.change(func(s *status.Status) { s.Backlog.Waiting = int64(i) })
	}
	newest := fmt.Sprintf("card %d declined", batches*each-1)
	b.awaitText("#decisions li:first-child", newest)
	b.awaitText("#undelivered", fmt.Sprint(batches-1))
	shown := b.number(`document.querySelectorAll("#decisions li").length`)
	testkit.Equal(t, shown, maxDecisions, "decisions that are shown")
	b.awaitText("#decisions li:first-child", "dropped payments.refunds "+newest+" by category 10/30m, 10 of 10 used")

	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS("#stop"))))
	b.source.followed <- dropped(1_000_000, 3)
	b.awaitText("#held", "Stopped. 3 decisions since then.")
	b.evaluate(`document.getElementById("filtering").requestSubmit()`) // connects again, and gets the decisions again
	b.source.change(func(s *status.Status) { s.Backlog.Waiting = 4711 })
	b.awaitText("#undelivered", "4,711")
	testkit.Equal(t, b.text("#held"), "Stopped. 3 decisions since then.", "decisions since Stop, after another connection")
	b.awaitText("#decisions li:first-child", newest)
	testkit.Equal(t, b.evaluate(`document.getElementById("stop").getAttribute("aria-pressed")`), "true", "whether Stop is pressed")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS("#stop"))))
	b.awaitText("#decisions li:first-child", "card 1000002 declined")
	testkit.Equal(t, b.text("#decisions li:nth-child(4) .title"), newest, "what came before Stop")
}

// openUntilItStops opens a page whose server then stops. Another server can start at the address.
func openUntilItStops(t *testing.T) (b *tab, address string) {
	t.Helper()
	address = fmt.Sprint("127.0.0.1:", servertest.ReservePort(t))
	s := serve(t, newScripted(), address, "")
	b = openLive(t, s)
	b.evaluate("window.loadedOnce = 1")
	s.stop()
	return b, address
}

// An open page connects to a restarted server without a reload.
func TestReconnect(t *testing.T) {
	t.Parallel()
	b, address := openUntilItStops(t)
	b.await("the time since when the page is old", `/^Disconnected since \d\d:\d\d:\d\d; retrying$/.test(document.getElementById("connection").innerText)`)
	b.awaitText("#news", "Disconnected since")
	b.await("a moment without its distance", `!document.querySelector("[data-path=payments] time").innerText.includes("(")`)
	const isInSight = `(() => {
		const line = document.getElementById("connection").getBoundingClientRect();
		return line.top >= 0 && line.bottom <= document.documentElement.clientHeight && line.height > 0;
	})()`
	for _, place := range []string{"0", "document.documentElement.scrollHeight"} {
		b.evaluate("scrollTo(0, " + place + ")")
		testkit.Equal(t, b.evaluate(isInSight), "true", "whether the line is in sight at the height %s", place)
	}

	restarted := newScripted()
	restarted.change(func(s *status.Status) { s.Backlog.Waiting = 77 })
	serve(t, restarted, address, "")
	b.awaitLive()
	b.awaitText("#undelivered", "77")
	b.awaitText("#news", "2 workers: degraded")
	b.awaitText("[data-path=payments] time", "(in ")
	restarted.followed <- dropped(1, 1)
	b.awaitText("#decisions", "card 1 declined")
	testkit.Equal(t, b.evaluate("window.loadedOnce"), "1", "the page that was loaded first")
}

// A server that accepts the connection of an open page and never answers gets another one.
func TestReconnectThatHangs(t *testing.T) {
	t.Parallel()
	b, address := openUntilItStops(t)
	hangs, asked := make(chan bool, 1), make(chan bool)
	hangs <- true
	serveBehind(t, newScripted(), address, "", func(page http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-hangs:
				close(asked)
				<-r.Context().Done() // until the page gives up
			default:
				page.ServeHTTP(w, r)
			}
		})
	})
	<-asked
	b.awaitText("#connection", "Disconnected since")
	b.evaluate(`(() => { const now = Date.now; Date.now = () => now() + 11_000; })()`) // the script's patience is 10 s
	b.awaitLive()
}

// A tab that was hidden shows the decisions that it had, once each, and the new ones.
func TestHiddenTab(t *testing.T) {
	t.Parallel()
	b := openLive(t, start(t))
	hide := func(isHidden bool) {
		b.evaluate(fmt.Sprintf(`(Object.defineProperty(document, "hidden", { value: %t, configurable: true }), document.dispatchEvent(new Event("visibilitychange")))`, isHidden))
	}
	ids := `[...document.querySelectorAll("#decisions .title")].map((title) => title.innerText.match(/\d+/)[0]).join(" ")`
	b.source.followed <- dropped(1, 3)
	b.await("decisions", ids+` === "3 2 1"`)
	for range 2 {
		hide(true)
		b.awaitText("#connection", "Not renewed while nobody looks.")
		testkit.Eventually(t, "the page to read no decisions", func() bool { _, following := b.source.counts(); return following == 0 })
		hide(false)
		b.awaitLive()
	}
	testkit.Equal(t, b.evaluate(ids), "3 2 1", "decisions after the tab was hidden")
	b.source.followed <- dropped(4, 2)
	b.await("new decisions", ids+` === "5 4 3 2 1"`)
}

// hostileTexts are texts of a hostile producer.
var hostileTexts = []string{
	`<script>window.pwned = 1</script>`, `<img src=x onerror="window.pwned = 1">`, `"><svg onload=window.pwned=1>`, `' onfocus='window.pwned=1' autofocus='`,
	`javascript:window.pwned=1`, `{{.Status}} ${window.pwned=1}`, `</title></template><script src=//127.0.0.1/x.js></script>`,
	"\u202eturned around\u2066", "مرحبا بالعالم שלום", strings.Repeat("W", 10_000), strings.Repeat("<b>", 3_000),
}

func TestHostileTitles(t *testing.T) {
	t.Parallel()
	source := newScripted()
	var entries []journal.Entry
	source.change(func(s *status.Status) {
		for _, text := range hostileTexts {
			s.Suppressed = append(s.Suppressed, status.Suppressed{Category: text, Level: text, Count: 1, Titles: []string{text}, Since: time.Now()})
			s.Channels = append(s.Channels, status.Channel{Name: text})
			s.Limits = append(s.Limits, status.Limit{Use: limits.Use{Level: text, Path: text, Limit: text, Used: 1, Size: 1}})
			s.Changes = append(s.Changes, status.Change{Path: text, Limit: text, By: text})
			s.DeadLetters = append(s.DeadLetters, status.DeadLetter{Reason: text, Count: 1})
			s.Unknown = append(s.Unknown, text)
			entries = append(entries, journal.Entry{ID: text, Category: text, Title: text, Result: journal.Sent, Channel: text, Level: text, Decided: time.Now()})
		}
	})
	answer := why.Answer{Now: hostileTexts, Unknown: hostileTexts, Counted: hostileTexts}
	for _, text := range hostileTexts {
		answer.Events = append(answer.Events, why.Event{ID: text, Category: text, Title: text, Sentences: []string{text}})
		source.answers[plain.Short(text, maxText)] = answer
	}
	s := serve(t, source, "127.0.0.1:0", "")
	b := openLive(t, s)
	source.followed <- entries
	b.awaitText("#decisions", "<script>window.pwned = 1</script>")
	check := func(scripts string) {
		t.Helper()
		testkit.Equal(t, b.evaluate(`window.pwned`), "undefined", "what a title ran")
		testkit.Equal(t, b.evaluate(`document.querySelectorAll("script").length`), scripts, "scripts")
		testkit.Equal(t, b.evaluate(`document.querySelectorAll("img, svg[onload], [onfocus], [autofocus], main b b, main a[href^='javascript:']").length`), "0", "elements out of titles")
		for _, width := range []int64{1200, 390} {
			testkit.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 800)))
			testkit.AtMost(t, b.number("document.documentElement.scrollWidth"), int(width), "width of the page")
		}
	}
	check("2")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(1200, 800)))
	testkit.Equal(t, b.evaluate(`(() => {
		const list = document.querySelector("[data-part=channels]").getBoundingClientRect();
		return [...document.querySelectorAll("[data-part=channels] th + td")].every((state) => state.getBoundingClientRect().left < list.left + 0.6 * list.width);
	})()`), "true", "whether the states of channels with long names are in sight")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.SendKeys(chromedp.CSS("#search"), hostileTexts[0]+kb.Enter)))
	b.awaitText("h2", "<script>window.pwned = 1</script>")
	b.await("the styles", `document.readyState === "complete"`)
	check("1")
	testkit.Equal(t, b.evaluate(`getComputedStyle(document.querySelector(".event h3")).overflow`), "clip", "whether stacked marks of a title are drawn over other events")
}

// The content security policy stops scripts and images in the page.
func TestPolicyIsInForce(t *testing.T) {
	t.Parallel()
	b := openLive(t, start(t))
	b.evaluate(`(() => {
		const script = document.createElement("script");
		script.textContent = "window.pwned = 1";
		document.body.append(script);
		const image = document.createElement("img");
		image.src = "http://127.0.0.2:1/x.png";
		document.body.append(image);
	})()`)
	b.await("violations", "window.violations.length >= 2")
	testkit.Equal(t, b.evaluate("window.pwned"), "undefined", "what a script in the page ran")
	testkit.Contains(t, "violations", b.forgive(), "script-src-elem inline", "img-src http://127.0.0.2:1/x.png")
	testkit.Eventually(t, "complaints", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.complaints) == 0
	})
}

// The keyboard reaches every control. The focus stays while the page is updated.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	b := openLive(t, start(t))
	var order []string
	for range 20 {
		b.press(kb.Tab)
		focused, _, _ := strings.Cut(b.focused(), "\n") // a counter has its number below
		order = append(order, focused)
		if b.focused() == "stop" {
			break
		}
	}
	testkit.EqualSlices(t, order, []string{
		"Skip to the content", "search", "Look up", "Full limits", "Dropped a minute", "Waiting", "Dead letters", "Paused channels", "Workers not ready",
		"filter", "payments", "search", "payments.refunds", "debug", "payments", "stop",
	}, "the order of the tab key")
	b.press(" ")
	b.awaitText("#stop", "Go on")
	b.press(kb.Enter)
	b.awaitText("#stop", "Stop")

	b.evaluate(`document.querySelector("[data-path=search] a").focus()`)
	b.source.change(func(s *status.Status) { s.Limits[3].Used, s.Limits[1].Used, s.Limits[1].Next = 10, 1, nil })
	b.awaitText("[data-part=limits] li:nth-child(2)", "search")
	testkit.Equal(t, b.evaluate(`document.activeElement.closest("[data-path]").dataset.path`), "search", "what has the focus after its row has moved")

	b.evaluate(`document.getElementById("filter").focus()`)
	b.press("refunds")
	b.await("the address", `location.search === "?filter=refunds"`)
	b.await("the filter", `document.querySelectorAll("[data-path]").length === 3`)
	testkit.Equal(t, b.focused(), "filter", "what has the focus")
}

// The answer of a look-up has a link.
func TestLookUp(t *testing.T) {
	t.Parallel()
	s := serve(t, newScripted(), "127.0.0.1:0", "pa55")
	s.source.answers["evt-4711"] = why.Answer{
		Events: []why.Event{{ID: "evt-4711", Category: "payments.refunds", Title: "card declined", Sequence: 4711, Sentences: []string{"dropped at 09:14:02.119 by category 10/30m"}}},
		Now:    []string{"an event of this category would be sent now: 4 of 10 used"},
	}
	b := open(t, s, "/?token=pa55")
	b.awaitLive()
	testkit.Equal(t, b.evaluate("location.search"), "", "the address")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.SendKeys(chromedp.CSS("#search"), "evt-4711"+kb.Enter)))
	b.awaitText("article", "evt-4711 payments.refunds card declined")
	b.awaitText("article", "dropped at 09:14:02.119 by category 10/30m")
	b.awaitText("main", "would be sent now: 4 of 10 used")
	link := b.evaluate(`document.getElementById("link").href`)
	testkit.Equal(t, link, s.url+"/why?q=evt-4711", "the link")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Navigate(link)))
	b.awaitText("article", "dropped at 09:14:02.119")
	source := s.source
	source.mu.Lock()
	defer source.mu.Unlock()
	testkit.EqualSlices(t, source.questions, []question{{text: "evt-4711"}, {text: "evt-4711"}}, "questions")
}

// A link on another site leads to a search by one more click, which the browser does not take for that site's.
func TestLinkFromAnotherSite(t *testing.T) {
	t.Parallel()
	s := start(t)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `<!DOCTYPE html><link rel="icon" href="data:,"><a href="%s/why?q=evt-1">answer</a>`, s.url)
	}))
	t.Cleanup(other.Close)
	b := open(t, s, "/icon.svg")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Navigate(other.URL)))
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS("a"))))
	b.awaitText("h1", "A link from another site led here")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS("a"))))
	b.awaitText("#unknown", "Not known.")
}

// contrasts lists the texts below a contrast of 4.5, the level AA of WCAG.
const contrasts = `(() => {
	const parts = (color) => color.match(/[\d.]+/g).map(Number);
	const light = (color) => parts(color).slice(0, 3).map((c) => c / 255)
		.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (element) => {
		for (; element; element = element.parentElement) {
			const color = getComputedStyle(element).backgroundColor;
			if (parts(color)[3] !== 0) return color;
		}
		return "rgb(255, 255, 255)";
	};
	const low = [];
	for (const element of document.querySelectorAll("body *")) {
		if (![...element.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim())) continue;
		const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
		if ((a + 0.05) / (b + 0.05) < 4.5) low.push(element.outerHTML.slice(0, 80));
	}
	return low.join("\n");
})()`

// Each text has enough contrast in both colour schemes. Each field has a label.
func TestReadable(t *testing.T) {
	t.Parallel()
	b := openLive(t, start(t))
	b.source.followed <- []journal.Entry{
		{Result: journal.Sent, Category: "a", Title: "x"}, {Result: journal.Dropped, Category: "a"}, {Result: journal.Waiting, Category: "a"}, {Result: journal.Dead, Category: "a"},
	}
	b.await("decisions", `document.querySelectorAll("#decisions li").length === 4`)
	backgrounds := make(map[string]bool)
	for _, scheme := range []string{"light", "dark"} {
		testkit.Must(chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		}))(t)
		testkit.Equal(t, b.evaluate(contrasts), "", "texts of too little contrast, %s", scheme)
		backgrounds[b.evaluate("getComputedStyle(document.body).backgroundColor")] = true
	}
	testkit.Equal(t, len(backgrounds), 2, "backgrounds")
	testkit.Equal(t, b.evaluate(`[...document.querySelectorAll("input, select")].filter((e) => e.labels.length !== 1).length`), "0", "fields without a label")
	testkit.Equal(t, b.evaluate(`[...document.querySelectorAll("section, [role=region], [role=log]")].filter((e) =>
		!document.getElementById(e.getAttribute("aria-labelledby"))).length`), "0", "regions without a label")
	testkit.Equal(t, b.evaluate(`[...document.querySelectorAll("svg")].filter((e) => !e.ariaLabel && e.ariaHidden !== "true").length`), "0", "pictures without a text")
	testkit.Equal(t, b.evaluate(`document.querySelector("[role=status]").ariaLive`), "polite", "the live region")
}
