package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAskHealth(t *testing.T) {
	t.Parallel()
	listen := func(code int) string {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	healthy, unhealthy := listen(http.StatusOK), listen(http.StatusServiceUnavailable)
	port := healthy[strings.LastIndex(healthy, ":"):]
	for address, want := range map[string]string{
		healthy: "", port: "", "0.0.0.0" + port: "", "[::]" + port: "", "localhost" + port: "",
		unhealthy: "503", unused(t): "connection refused", "nowhere": "missing port", "127.0.0.1:x y": "invalid",
	} {
		if err := askHealth(t.Context(), address); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}
