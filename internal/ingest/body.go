package ingest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
)

const (
	firstBuffer = 4 << 10
	// maxHeld bounds the bodies of all requests together, beside the first buffer of each.
	maxHeld = 64 << 20
)

// bodies reads the bodies of requests. A buffer grows with what has come, not with what the client announces.
type bodies struct {
	most int // bytes of one body
	pool sync.Pool
	held atomic.Int64
}

// body is the body of one request.
type body struct {
	data  []byte
	owner *bodies
	held  int64
}

func (b *bodies) read(r *http.Request) (*body, *problem) {
	if r.ContentLength > int64(b.most) {
		return nil, b.tooLarge()
	}
	read, pooled := b.pool.Get().(*body)
	if !pooled {
		read = &body{data: make([]byte, 0, firstBuffer), owner: b}
	}
	for {
		if len(read.data) == cap(read.data) {
			if problem := read.grow(); problem != nil {
				read.drop()
				return nil, problem
			}
		}
		n, err := r.Body.Read(read.data[len(read.data):cap(read.data)])
		read.data = read.data[:len(read.data)+n]
		switch {
		case len(read.data) > b.most:
			read.drop()
			return nil, b.tooLarge()
		case errors.Is(err, io.EOF):
			return read, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			read.drop()
			return nil, newProblem(http.StatusRequestTimeout, fmt.Sprintf("the body did not come within %v", readTimeout))
		case err != nil:
			read.drop()
			return nil, newProblem(http.StatusBadRequest, "the body ends too early, or its encoding is broken")
		}
	}
}

func (b *bodies) tooLarge() *problem {
	p := newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is too large; at most %d bytes are allowed", b.most))
	p.Reason = "too_large"
	return p
}

// grow doubles the buffer, within what all bodies may take together.
func (b *body) grow() *problem {
	more := int64(cap(b.data))
	if b.owner.held.Add(more) > maxHeld {
		b.owner.held.Add(-more)
		return newProblem(http.StatusServiceUnavailable, "too many large requests are under way").later(busyPause)
	}
	b.held += more
	b.data = append(make([]byte, 0, 2*cap(b.data)), b.data...)
	return nil
}

// release gives the buffer back. Nothing may use the data any more.
func (b *body) release() {
	b.drop()
	if cap(b.data) == firstBuffer {
		b.data = b.data[:0]
		b.owner.pool.Put(b)
	}
}

// drop leaves the buffer to the garbage collector, for data that something may still use.
func (b *body) drop() {
	b.owner.held.Add(-b.held)
	b.held = 0
}
