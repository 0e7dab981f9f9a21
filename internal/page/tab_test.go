package page

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// tab is one page that is open in the browser. What breaks the content security policy fails the test, and so do exceptions and
// everything else that the browser complains about.
type tab struct {
	*served
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// open opens a page in a tab of its own.
func open(t *testing.T, s *served, path string) *tab {
	t.Helper()
	chromiumUsed.Store(true)
	started := chromium()
	testkit.NoError(t, started.err)
	ctx, cancel := context.WithTimeout(started.browser, testkit.Patience)
	ctx, closeTab := chromedp.NewContext(ctx)
	b := &tab{served: s, ctx: ctx}
	messages := chromedp.Console(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		for message, err := range messages {
			if err != nil {
				return
			}
			b.complain(message)
		}
	})
	t.Cleanup(func() {
		for violation := range strings.SplitSeq(b.evaluate(`window.violations.join("\n")`), "\n") {
			if violation != "" {
				t.Errorf("against the policy: %s", violation)
			}
		}
		closeTab()
		cancel()
		listening.Wait()
		for _, complaint := range b.complaints {
			t.Errorf("the browser complains: %s", complaint)
		}
	})
	testkit.Must(chromedp.Call(ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: `
		window.violations = [];
		document.addEventListener("securitypolicyviolation", (e) => window.violations.push(e.violatedDirective + " " + e.blockedURI));`}))(t)
	testkit.NoError(t, chromedp.Do(ctx, chromedp.Navigate(s.url+path)))
	return b
}

// complain keeps what the browser says of errors. A server that is gone is no fault of the page.
func (b *tab) complain(message chromedp.ConsoleMessage) {
	if !message.IsException() && message.Type != "error" && message.Type != "warning" || message.Source == "network" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, message.String())
}

// forgive forgets the complaints so far and the violations, and returns the latter.
func (b *tab) forgive() string {
	violations := b.evaluate(`window.violations.splice(0).join("\n")`)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = nil
	return violations
}

// evaluate runs an expression whose value is a text or a number. It asks again if the tab was loading another page.
func (b *tab) evaluate(expression string) string {
	b.t.Helper()
	for {
		value, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+expression+")"))
		if err == nil || !strings.Contains(err.Error(), "target navigated") {
			return testkit.Must(value, err)(b.t)
		}
	}
}

// text is what an element shows.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return strings.Join(strings.Fields(b.evaluate(fmt.Sprintf(`document.querySelector(%q)?.innerText`, selector))), " ")
}

// awaitText waits until an element shows a text, among others.
func (b *tab) awaitText(selector, want string) {
	b.t.Helper()
	testkit.Await(b.t, selector, func() error {
		if got := b.text(selector); !strings.Contains(got, want) {
			return fmt.Errorf("shows %q; want %q", got, want)
		}
		return nil
	})
}

// await waits until an expression is true.
func (b *tab) await(what, expression string) {
	b.t.Helper()
	testkit.Eventually(b.t, what, func() bool { return b.evaluate(expression) == "true" })
}

func (b *tab) awaitLive() {
	b.t.Helper()
	b.awaitText("#connection", "Live")
}

// number is a number that an expression has.
func (b *tab) number(expression string) int {
	b.t.Helper()
	return testkit.Must(strconv.Atoi(b.evaluate(expression)))(b.t)
}

// press presses keys.
func (b *tab) press(keys string) {
	b.t.Helper()
	testkit.NoError(b.t, chromedp.Do(b.ctx, chromedp.KeyEvent(keys)))
}

// focused is the ID of the element that has the focus, or its text.
func (b *tab) focused() string {
	b.t.Helper()
	return b.evaluate(`document.activeElement.id || document.activeElement.innerText`)
}
