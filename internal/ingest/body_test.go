package ingest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestMemoryOfBodies bounds the memory of all bodies together. A refused body leaves nothing behind.
func TestMemoryOfBodies(t *testing.T) {
	t.Parallel()
	b := bodies{most: maxHeld}
	request := func(size int) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("a", size)))
		r.ContentLength = -1
		return r
	}
	first, refusal := b.read(request(maxHeld / 2))
	if refusal != nil {
		t.Fatal(refusal)
	}
	if _, refusal := b.read(request(maxHeld * 3 / 4)); refusal == nil || refusal.Status != http.StatusServiceUnavailable || refusal.retryAfter == 0 {
		t.Errorf("refusal beyond the bound: got %v, want status 503 with Retry-After", refusal)
	}
	small, refusal := b.read(request(firstBuffer - 1))
	if refusal != nil {
		t.Fatal(refusal)
	}
	testkit.Equal(t, cap(small.data), firstBuffer, "buffer of a small body")
	small.release()
	first.release()
	testkit.Equal(t, b.held.Load(), 0, "held bytes at the end")
}
