// Package browser is a headless Chromium, for tests and for the pictures of the page.
package browser

import (
	"context"
	"fmt"
	"slices"

	"github.com/chromedp/chromedp"
)

// Start starts Chromium with a profile of its own, which stop removes. Chromium is the command "chromium", as Debian's package has it.
// [chromedp.NewContext] of the returned context opens a tab.
func Start(ctx context.Context) (browser context.Context, stop func(), err error) {
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath("chromium"),
		chromedp.NoSandbox, // tests may run as root, and open nothing but pages of theirs
		chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("hide-scrollbars", true),
	)
	allocated, free := chromedp.NewExecAllocator(ctx, options...)
	browser, end := chromedp.NewContext(allocated)
	if err := chromedp.Do(browser); err != nil {
		end()
		free()
		return nil, nil, fmt.Errorf("start chromium: %w", err)
	}
	return browser, func() {
		_ = chromedp.Cancel(browser) // waits for the end of a browser that has started
		end()
		free()
	}, nil
}
