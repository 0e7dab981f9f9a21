package client

import (
	"net/http"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	tests := []struct {
		header string
		want   time.Duration
	}{
		{"Wed, 21 Oct 2015 07:29:30 GMT", 90 * time.Second}, // by the server's clock
		{"Wednesday, 21-Oct-15 07:29:30 GMT", 90 * time.Second},
		{"Wed, 21 Oct 2015 07:27:00 GMT", time.Second},
		{"Wed, 21 Oct 2065 07:28:00 GMT", time.Hour},
		{"", time.Second},
		{"1", time.Second},
		{" 30 ", 30 * time.Second},
		{"3600", time.Hour},
		{"3601", time.Hour},
		{"99999999999999999999999", time.Hour},
		{"-5", time.Second},
		{"1.5", time.Second},
		{"soon", time.Second},
	}
	for _, test := range tests {
		header := http.Header{"Date": {"Wed, 21 Oct 2015 07:28:00 GMT"}}
		if test.header != "" {
			header.Set("Retry-After", test.header)
		}
		testkit.Equal(t, Reply{Header: header}.RetryAfter(), test.want, "%q", test.header)
	}
	for date, want := range map[time.Duration]time.Duration{-48 * time.Hour: time.Second, 48 * time.Hour: time.Hour} { // by the local clock
		header := http.Header{"Retry-After": {time.Now().Add(date).UTC().Format(http.TimeFormat)}}
		testkit.Equal(t, Reply{Header: header}.RetryAfter(), want, "a date in %v", date)
	}
}
