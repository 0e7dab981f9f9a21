package page

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// tab is an open page in the browser. The test fails on a violation of the content security policy, an exception or a warning.
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
	ctx, closeTab := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext()) // cookies are of a host, whatever its port
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
			testkit.Check(t, violation == "", "got the violation %s, want none", violation)
		}
		closeTab()
		cancel()
		listening.Wait()
		for _, complaint := range b.complaints {
			t.Errorf("got the complaint %s of the browser, want none", complaint)
		}
	})
	testkit.Must(chromedp.Call(ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: `
		window.violations = [];
		document.addEventListener("securitypolicyviolation", (e) => window.violations.push(e.violatedDirective + " " + e.blockedURI));`}))(t)
	b.visit(path)
	return b
}

// openLive opens the page of the deployment, and waits until it shows the present state.
func openLive(t *testing.T, s *served) *tab {
	t.Helper()
	b := open(t, s, "/")
	b.awaitLive()
	return b
}

func (b *tab) visit(path string) {
	b.t.Helper()
	testkit.NoError(b.t, chromedp.Do(b.ctx, chromedp.Navigate(b.url+path)))
}

// complain keeps errors and warnings of the browser, except those of the network.
func (b *tab) complain(message chromedp.ConsoleMessage) {
	if !message.IsException() && message.Type != "error" && message.Type != "warning" || message.Source == "network" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, message.String())
}

// forgive drops all complaints and violations, and returns the violations.
func (b *tab) forgive() string {
	violations := b.evaluate(`window.violations.splice(0).join("\n")`)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = nil
	return violations
}

// answerWithin is how long the browser may take to evaluate an expression. Once, an answer never came although the page worked.
const answerWithin = 20 * time.Second

// evaluate runs an expression. It tries again if the tab was loading another page, and if no answer comes.
func (b *tab) evaluate(expression string) string {
	b.t.Helper()
	for {
		ctx, cancel := context.WithTimeout(b.ctx, answerWithin)
		value, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+expression+")"))
		cancel()
		isLost := errors.Is(err, context.DeadlineExceeded) && b.ctx.Err() == nil
		if err == nil || !isLost && !strings.Contains(err.Error(), "target navigated") {
			return testkit.Must(value, err)(b.t)
		}
	}
}

func (b *tab) text(selector string) string {
	b.t.Helper()
	return strings.Join(strings.Fields(b.evaluate(fmt.Sprintf(`document.querySelector(%q)?.innerText`, selector))), " ")
}

// awaitText waits until an element contains a text.
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

// number evaluates an expression to a number.
func (b *tab) number(expression string) int {
	b.t.Helper()
	return testkit.Must(strconv.Atoi(b.evaluate(expression)))(b.t)
}

func (b *tab) press(keys string) {
	b.t.Helper()
	testkit.NoError(b.t, chromedp.Do(b.ctx, chromedp.KeyEvent(keys)))
}

// focused returns the ID of the focused element, or its text.
func (b *tab) focused() string {
	b.t.Helper()
	return b.evaluate(`document.activeElement.id || document.activeElement.innerText`)
}
