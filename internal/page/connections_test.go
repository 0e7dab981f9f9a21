package page

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/httpserver"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestIdleConnections opens more connections than the server keeps. A reader is still served.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	s := start(t)
	testkit.IdleConnections(t, strings.TrimPrefix(s.url, "http://"), httpserver.MaxConnections, func() {
		testkit.Equal(t, s.do(http.MethodGet, "/icon.svg").code, http.StatusOK, "code of a reader among idle connections")
	})
}
