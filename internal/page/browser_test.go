package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/why"
)

func TestNumbers(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), "/")
	b.awaitLive()
	for selector, want := range map[string]string{
		"#workers": "2", "#state": "degraded policy local", "#waiting": "4,321", "#unacked": "17",
		"#room": "1,200 for channel, 5 for slot", "#revision": "1:7",
		"#minute-sent": "59", "#minute-dropped": "590", "#minute-waiting": "2",
		"[data-path='']":                                     "all events global 100/30m 60 of 100 used",
		"[data-path=payments]":                               "payments category 10/30m 10 of 10 used, full 1,180 denied a minute, next slot",
		"[data-key='payments.refunds'] .branch":              "payments.refunds payments.* 5/30m 2 of 5 used",
		"[data-path=debug]":                                  "debug set to 0/1h by alice",
		"[data-part=suppressed] [data-category=payments]":    "payments 1,204 by category since",
		"[data-part=channels] [data-key='#payments']":        "31 58 1 a second none",
		"[data-part=letters] [data-key=malformed]":           "3 malformed",
		"[data-part=workers] [data-key=a]":                   "host-a ready 4 12 1,234 0 1:7 v1.2.3",
		"[data-part=workers] [data-key=b]":                   "host-b not ready: redis is unavailable, degraded: local",
		"[data-part=workers] .servers":                       "primary, version 7.2.4, 1 replica, 5 MiB, slowest call of the last minute 3ms",
		"[data-part=findings]":                               "Workers differ in NOTIFIER_GLOBAL_LIMIT: 100/30m on host-a 90/30m on host-b",
		"[data-part=limits] > ul > li > ul > li:first-child": "payments",
	} {
		testkit.Contains(t, selector, b.text(selector), want)
	}
	left := b.number(`document.querySelector("[data-path=payments] time").innerText.match(/in (\d+) (s|min)/)[1]`)
	if left < 1 || left > 90 {
		t.Errorf("got a next slot in %d s, want 1 to 90", left)
	}
	b.source.change(func(s *status.Status) {
		s.Backlog.Waiting, s.Revision = 7, "1:8"
		s.Workers = s.Workers[:1]
		s.Limits[1].Used, s.Limits[1].Next = 9, nil
		s.Limits[3].Used = 10
		s.Suppressed, s.Mismatches = nil, nil
	})
	b.awaitText("#revision", "1:8")
	for selector, want := range map[string]string{
		"#workers": "1", "#state": "normal", "#waiting": "7", "[data-path=payments]": "9 of 10 used 1,180",
		"[data-part=limits] > ul > li > ul > li:first-child": "search", "[data-part=suppressed]": "Nothing is suppressed.",
	} {
		testkit.Contains(t, selector+" after the change", b.text(selector), want)
	}
}

func TestBurst(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), "/")
	b.awaitLive()
	const batches, each = 40, 500
	for i := range batches {
		b.source.followed <- dropped(i*each, each)
		b.source.change(func(s *status.Status) { s.Backlog.Waiting = int64(i) })
	}
	newest := fmt.Sprintf("card %d declined", batches*each-1)
	b.awaitText("#decisions li:first-child", newest)
	b.awaitText("#waiting", fmt.Sprint(batches-1))
	shown := b.number(`document.querySelectorAll("#decisions li").length`)
	testkit.Equal(t, shown, maxDecisions, "decisions that are shown")
	b.awaitText("#decisions li:first-child", "dropped payments.refunds "+newest+" by category 10/30m, 10 of 10 used")

	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS("#stop"))))
	b.source.followed <- dropped(1_000_000, 3)
	b.awaitText("#held", "Stopped. 3 decisions since then.")
	b.awaitText("#decisions li:first-child", newest)
	testkit.Equal(t, b.evaluate(`document.getElementById("stop").getAttribute("aria-pressed")`), "true", "whether Stop is pressed")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS("#stop"))))
	b.awaitText("#decisions li:first-child", "card 1000002 declined")
	testkit.Equal(t, b.text("#decisions li:nth-child(4) .title"), newest, "what came before Stop")
}

// An open page connects to a restarted server without a reload.
func TestReconnect(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	first := serve(t, newScripted(), address, "")
	b := open(t, first, "/")
	b.awaitLive()
	b.evaluate("window.loadedOnce = 1")
	first.stop()
	b.awaitText("#connection", "Connection lost")
	b.awaitText("#news", "Connection lost")

	restarted := newScripted()
	restarted.change(func(s *status.Status) { s.Revision = "2:1" })
	serve(t, restarted, address, "")
	b.awaitLive()
	b.awaitText("#revision", "2:1")
	b.awaitText("#news", "2 workers, 1 limit full.")
	restarted.followed <- dropped(1, 1)
	b.awaitText("#decisions", "card 1 declined")
	testkit.Equal(t, b.evaluate("window.loadedOnce"), "1", "the page that was loaded first")
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
			s.Limits = append(s.Limits, status.Limit{Level: text, Path: text, Limit: text, Used: 1, Size: 1})
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
	b := open(t, s, "/")
	b.awaitLive()
	source.followed <- entries
	b.awaitText("#decisions", "<script>window.pwned = 1</script>")
	check := func(scripts string) {
		t.Helper()
		testkit.Equal(t, b.evaluate(`window.pwned`), "undefined", "what a title ran")
		testkit.Equal(t, b.evaluate(`document.querySelectorAll("script").length`), scripts, "scripts")
		testkit.Equal(t, b.evaluate(`document.querySelectorAll("img, svg[onload], [onfocus], [autofocus], main b b, main a[href^='javascript:']").length`), "0", "elements out of titles")
		for _, width := range []int64{1200, 390} {
			testkit.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 800)))
			if wide := b.number("document.documentElement.scrollWidth"); wide > int(width) {
				t.Errorf("got a page of %d pixels, want %d at most", wide, width)
			}
		}
	}
	check("1")
	testkit.NoError(t, chromedp.Do(b.ctx, chromedp.SendKeys(chromedp.CSS("#search"), hostileTexts[0]+kb.Enter)))
	b.awaitText("h2", "<script>window.pwned = 1</script>")
	check("0")
}

// The content security policy stops scripts and images in the page.
func TestPolicyIsInForce(t *testing.T) {
	t.Parallel()
	b := open(t, start(t), "/")
	b.awaitLive()
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
	b := open(t, start(t), "/")
	b.awaitLive()
	var order []string
	for range 12 {
		b.press(kb.Tab)
		order = append(order, b.focused())
		if b.focused() == "stop" {
			break
		}
	}
	testkit.EqualSlices(t, order, []string{
		"Skip to the content", "search", "Look up", "filter", "payments", "payments.refunds", "search", "debug", "payments", "stop",
	}, "the order of the tab key")
	b.press(" ")
	b.awaitText("#stop", "Go on")
	b.press(kb.Enter)
	b.awaitText("#stop", "Stop")

	b.evaluate(`document.querySelector("[data-path=search] a").focus()`)
	b.source.change(func(s *status.Status) { s.Limits[3].Used, s.Limits[1].Used, s.Revision = 10, 1, "1:9" })
	b.awaitText("#revision", "1:9")
	b.awaitText("[data-part=limits] > ul > li > ul > li:first-child", "search")
	testkit.Equal(t, b.evaluate(`document.activeElement.closest("[data-path]").dataset.path`), "search", "what has the focus after its row has moved")

	b.evaluate(`document.getElementById("filter").focus()`)
	b.press("refunds")
	b.await("the filter", `document.querySelectorAll("[data-path]").length === 3`)
	testkit.Equal(t, b.focused(), "filter", "what has the focus")
	testkit.Equal(t, b.evaluate("location.search"), "?filter=refunds", "the address")
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
	b := open(t, start(t), "/")
	b.awaitLive()
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
