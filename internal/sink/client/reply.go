package client

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/sink"
)

const (
	// minRetryAfter is used if the server names no usable time. Slack takes about one message a second for each channel.
	minRetryAfter = time.Second
	// maxRetryAfter keeps a broken or hostile answer from silencing a channel for good.
	maxRetryAfter = time.Hour
)

// Judge classifies an answer outside 200 to 299 by its status. Other answers are Unknown, and so are failures of the server, which may
// have done what it was asked to do before it failed.
func (r Reply) Judge() Verdict {
	v := Verdict{Class: sink.Unknown, Code: r.Words()}
	switch {
	case r.Status == http.StatusTooManyRequests:
		v.Class, v.RetryAfter = sink.RateLimited, r.RetryAfter()
	case r.Status == http.StatusRequestTimeout:
	case r.Status == http.StatusUnauthorized, r.Status == http.StatusForbidden,
		r.Status == http.StatusNotFound, r.Status == http.StatusGone:
		v.Class = sink.Misconfigured // the URL or the credentials are wrong
	case r.Status >= 300 && r.Status < 400:
		v.Class, v.Detail = sink.Misconfigured, "redirects are not followed"
	case r.Status >= 400 && r.Status < 500:
		v.Class = sink.Rejected
	}
	return v
}

// Successful reports whether the status is 200 to 299.
func (r Reply) Successful() bool { return r.Status >= 200 && r.Status < 300 }

// Words returns the status as "503 Service Unavailable".
func (r Reply) Words() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.Status, http.StatusText(r.Status)))
}

// RetryAfter returns the header of that name, which holds whole seconds or a date, bounded by 1s and 1h.
func (r Reply) RetryAfter() time.Duration {
	text := strings.TrimSpace(r.Header.Get("Retry-After"))
	seconds, err := strconv.ParseUint(text, 10, 32)
	pause := time.Duration(seconds) * time.Second
	if errors.Is(err, strconv.ErrRange) {
		return maxRetryAfter
	}
	if date, dateErr := http.ParseTime(text); dateErr == nil {
		pause = date.Sub(r.now())
	}
	return min(max(pause, minRetryAfter), maxRetryAfter)
}

// now returns the time by the server's clock, if the answer has it.
func (r Reply) now() time.Time {
	if date, err := http.ParseTime(r.Header.Get("Date")); err == nil {
		return date
	}
	return time.Now()
}
