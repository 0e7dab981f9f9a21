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
		{"", time.Second},
		{"1", time.Second},
		{" 30 ", 30 * time.Second},
		{"3600", time.Hour},
		{"3601", time.Hour},
		{"99999999999999999999999", time.Hour},
		{"-5", time.Second},
		{"1.5", time.Second},
		{"soon", time.Second},
		{"Wed, 21 Oct 2065 07:28:00 GMT", time.Second},
	}
	for _, test := range tests {
		header := http.Header{}
		if test.header != "" {
			header.Set("Retry-After", test.header)
		}
		testkit.Equal(t, Reply{Header: header}.RetryAfter(), test.want, "%q", test.header)
	}
}
