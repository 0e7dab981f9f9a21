package page

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/browser"
)

// chromium is one browser for all tests. The first test that needs it starts it.
var chromium = sync.OnceValue(func() (started struct {
	browser context.Context
	stop    func()
	err     error
}) {
	started.browser, started.stop, started.err = browser.Start(context.Background())
	return started
})

// chromiumUsed reports whether a test has started the browser.
var chromiumUsed atomic.Bool

func TestMain(m *testing.M) {
	code := m.Run()
	if chromiumUsed.Load() && chromium().err == nil {
		chromium().stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
