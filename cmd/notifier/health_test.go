package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAskHealth(t *testing.T) {
	t.Parallel()
	status := func(code int) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" || r.Method != http.MethodGet {
				t.Errorf("it asks %s %s", r.Method, r.URL)
			}
			w.WriteHeader(code)
		}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	healthy, unhealthy := status(http.StatusOK), status(http.StatusServiceUnavailable)
	port := healthy[strings.LastIndex(healthy, ":"):]
	for name, test := range map[string]struct{ address, err string }{
		"alive":                      {healthy, ""},
		"on every address":           {port, ""},
		"on every address, in IPv4":  {"0.0.0.0" + port, ""},
		"on every address, in IPv6":  {"[::]" + port, ""},
		"by name":                    {"localhost" + port, ""},
		"turned off":                 {"", ""},
		"not alive":                  {unhealthy, "503"},
		"nobody there":               {unused(t), "connection refused"},
		"not an address":             {"nowhere", "missing port"},
		"not a port that can be had": {"127.0.0.1:x y", "asking 127.0.0.1:x y"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := askHealth(t.Context(), test.address)
			switch {
			case test.err == "" && err != nil:
				t.Error(err)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("the error is %v, want one that says %q", err, test.err)
			}
		})
	}
}
