package ingest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestMemoryOfBodies bounds the memory of all bodies together, and that of each token. A refused body leaves nothing behind.
func TestMemoryOfBodies(t *testing.T) {
	t.Parallel()
	b := bodies{most: maxHeld}
	var rooms []*room
	read := func(from *client, size int) (*body, *problem) {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("a", size)))
		r.ContentLength = -1
		in := &room{of: &b, from: from}
		got, refusal := b.read(r, in)
		if refusal != nil {
			in.leave()
		}
		rooms = append(rooms, in)
		return got, refusal
	}
	wantBusy := func(what string, refusal *problem) {
		t.Helper()
		testkit.Check(t, refusal != nil && refusal.Status == http.StatusServiceUnavailable && refusal.retryAfter != 0 && refusal.limited,
			"%s: got %v, want a limited request and status 503 with Retry-After", what, refusal)
	}
	var clients []*client
	for range maxHeld / maxHeldByToken {
		from := newClient("client", 0, 0)
		if _, refusal := read(from, maxHeldByToken/2-1); refusal != nil {
			t.Fatal(refusal)
		}
		_, refusal := read(from, maxHeldByToken*3/4)
		wantBusy("a second body of the same token", refusal)
		if _, refusal := read(from, maxHeldByToken/2-1); refusal != nil {
			t.Fatal(refusal)
		}
		clients = append(clients, from)
	}
	_, refusal := read(newClient("another", 0, 0), 1<<20)
	wantBusy("a body beyond the bound of all", refusal)
	small, refusal := read(clients[0], firstBuffer-1)
	if refusal != nil {
		t.Fatal(refusal)
	}
	testkit.Equal(t, cap(small.data), firstBuffer, "buffer of a small body")
	small.release()
	for _, room := range rooms {
		room.leave()
	}
	testkit.Equal(t, b.held.Load(), 0, "held bytes at the end")
	testkit.Equal(t, clients[0].held.Load(), 0, "held bytes of a token at the end")
}
