package ingest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

const (
	problemType     = "application/problem+json"
	headersTooLarge = "the method, the path and the headers are longer than 16384 bytes"
)

// Answered returns the statuses of all answers of this package.
func Answered() []int {
	return []int{
		http.StatusOK, http.StatusAccepted, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
		http.StatusExpectationFailed, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge,
		http.StatusNotImplemented, http.StatusServiceUnavailable, http.StatusHTTPVersionNotSupported,
	}
}

// problem is an answer other than success, in the form of RFC 9457.
type problem struct {
	Type   string `json:"type"` // about:blank: the status describes the problem
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Reason is the class of an event's fault, as in dead letters.
	Reason string `json:"reason,omitempty"`
	// Events has the result of each event of a batch if only some of them are stored.
	Events []receipt `json:"events,omitempty"`

	retryAfter time.Duration // 0: the client need not wait
	limited    bool          // the client is above its rate, or bodies take all the memory
	allow      string        // methods of the path
}

func newProblem(status int, detail string) *problem {
	return &problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// isFinal reports whether a repetition of the request would fail too.
func (p *problem) isFinal() bool {
	return p.Status < http.StatusInternalServerError && p.retryAfter == 0
}

// later asks the client to repeat the request after a time.
func (p *problem) later(after time.Duration) *problem {
	p.retryAfter = after
	return p
}

// tooMuch asks the client to send less.
func (p *problem) tooMuch() *problem {
	p.limited = true
	return p
}

func (p *problem) write(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", problemType)
	header.Set("X-Content-Type-Options", "nosniff")
	switch {
	case p.Status == http.StatusUnauthorized:
		header.Set("WWW-Authenticate", "Bearer")
	case p.allow != "":
		header.Set("Allow", p.allow)
	}
	if p.retryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(max(1, int((p.retryAfter+time.Second-1)/time.Second))))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(p.encoded()) //nolint:gosec // JSON, and of a type of it; the client may have left
}

func (p *problem) encoded() []byte {
	body, _ := json.Marshal(p) // cannot fail: texts and numbers
	return body
}
