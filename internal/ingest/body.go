package ingest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

const (
	firstBuffer = 4 << 10
	// maxHeld is the most memory for the bodies of all requests in addition to the first buffer of each, and maxHeldByToken the most for
	// one token, so that slow uploads of one client leave memory for other clients.
	maxHeld        = 64 << 20
	maxHeldByToken = maxHeld / 4
)

// bodies reads the bodies of requests. A buffer grows with the received bytes, not with the announced length.
type bodies struct {
	most int // bytes of one body
	pool sync.Pool
	held atomic.Int64
}

// room is the part of the memory for bodies that one request holds. One goroutine uses it.
type room struct {
	of   *bodies
	from *client
	held int64
}

// take reserves n more bytes. If there are none, it returns the answer to the request: 503, which Alertmanager retries at once. After a 429 it waits
// for its next flush.
func (r *room) take(n int) *problem {
	all, own := r.of.held.Add(int64(n)), r.from.held.Add(int64(n))
	r.held += int64(n)
	if all > maxHeld || own > r.from.mostHeld {
		r.give(n)
		return newProblem(http.StatusServiceUnavailable, "too many large requests are under way").later(busyPause).tooMuch()
	}
	return nil
}

func (r *room) give(n int) {
	r.of.held.Add(-int64(n))
	r.from.held.Add(-int64(n))
	r.held -= int64(n)
}

func (r *room) leave() { r.give(int(r.held)) }

type body struct {
	data  []byte
	owner *bodies
}

func (b *bodies) read(r *http.Request, in *room) (*body, *problem) {
	if r.ContentLength > int64(b.most) {
		return nil, tooLarge(b.most)
	}
	read, pooled := b.pool.Get().(*body)
	if !pooled {
		read = &body{data: make([]byte, 0, firstBuffer), owner: b}
	}
	for {
		if len(read.data) == cap(read.data) {
			if problem := in.take(cap(read.data)); problem != nil {
				return nil, problem
			}
			read.data = append(make([]byte, 0, 2*cap(read.data)), read.data...)
		}
		n, err := r.Body.Read(read.data[len(read.data):cap(read.data)])
		read.data = read.data[:len(read.data)+n]
		switch {
		case len(read.data) > b.most:
			return nil, tooLarge(b.most)
		case errors.Is(err, io.EOF):
			return read, nil
		case err != nil:
			return nil, unread(err, readTimeout)
		}
	}
}

func tooLarge(most int) *problem {
	p := newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is too large; at most %d bytes are allowed", most))
	p.Reason = string(event.ReasonTooLarge)
	return p
}

// unread is the answer to a body that cannot be read completely.
func unread(err error, within time.Duration) *problem {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return newProblem(http.StatusRequestTimeout, fmt.Sprintf("the body did not come within %v", within))
	}
	return newProblem(http.StatusBadRequest, "the body ends too early, or its encoding is broken").later(busyPause) // most often the client has left
}

// release returns the buffer. No goroutine may use the data afterwards.
func (b *body) release() {
	if cap(b.data) == firstBuffer {
		b.data = b.data[:0]
		b.owner.pool.Put(b)
	}
}
