//go:build comparison

package comparison

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var envoyRatelimit = program{
	module: "github.com/envoyproxy/ratelimit", version: "v1.4.1-0.20260122083618-3fb702589d36", command: "./src/service_cmd",
}

const ratelimitConfig = `
domain: notifier
descriptors:
- {key: second, rate_limit: {unit: second, requests_per_unit: 100}}
- {key: everything, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: category, rate_limit: {unit: day, requests_per_unit: 10}}
`

// ratelimit is a running server of envoy ratelimit.
type ratelimit struct {
	t   *testing.T
	url string
}

func startRatelimit(t *testing.T) ratelimit {
	t.Helper()
	root := t.TempDir()
	testkit.NoError(t, os.MkdirAll(filepath.Join(root, "limits", "config"), 0o700))
	testkit.NoError(t, os.WriteFile(filepath.Join(root, "limits", "config", "notifier.yaml"), []byte(ratelimitConfig), 0o600))
	port := servertest.ReservePort(t)
	command := exec.Command(envoyRatelimit.build(t))
	command.Env = append(os.Environ(), "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "USE_STATSD=false",
		fmt.Sprintf("PORT=%d", port), fmt.Sprintf("GRPC_PORT=%d", servertest.ReservePort(t)), fmt.Sprintf("DEBUG_PORT=%d", servertest.ReservePort(t)),
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=limits", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+servertest.StartRedis(t).Addr)
	r := ratelimit{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	start(t, command, r.url+"/healthcheck")
	return r
}

// passes asks whether one request with these keys and values may pass.
func (r ratelimit) passes(keysAndValues ...string) bool {
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type descriptor struct {
		Entries []entry `json:"entries"`
	}
	var descriptors []descriptor
	for i := 0; i < len(keysAndValues); i += 2 {
		descriptors = append(descriptors, descriptor{Entries: []entry{{Key: keysAndValues[i], Value: keysAndValues[i+1]}}})
	}
	body, err := json.Marshal(map[string]any{"domain": "notifier", "descriptors": descriptors})
	if err != nil {
		r.t.Error(err)
		return false
	}
	response, err := http.Post(r.url+"/json", "application/json", strings.NewReader(string(body)))
	if err != nil {
		r.t.Error(err)
		return false
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		r.t.Errorf("status %d of %s", response.StatusCode, body)
	}
	return response.StatusCode == http.StatusOK
}

// burst sends 100 requests at once and returns how many pass.
func (r ratelimit) burst() int {
	var passed atomic.Int64
	var sent sync.WaitGroup
	for range 100 {
		sent.Go(func() {
			if r.passes("second", "x") {
				passed.Add(1)
			}
		})
	}
	sent.Wait()
	return int(passed.Load())
}

// A request whose category is full is counted in the limit of everything all the same, and takes the place of one that could pass.
func TestRatelimitCountsRefusedRequests(t *testing.T) {
	t.Parallel()
	r := startRatelimit(t)
	passed := 0
	for range 50 {
		if r.passes("category", "flood", "everything", "x") {
			passed++
		}
	}
	testkit.Equal(t, passed, 10, "requests of a flood of 50 that pass a limit of 10")
	for other := range 20 {
		for range 10 {
			if r.passes("category", fmt.Sprintf("other-%d", other), "everything", "x") {
				passed++
			}
		}
	}
	testkit.Equal(t, passed, 60, "requests of all categories that pass a limit of 100")
	t.Logf("limits of 10 for each category and 100 for everything: %d of 100 requests pass after a flood of 50 in one category", passed)
}

// Windows are those of the clock: around the edge of two of them twice the limit passes in less than one window.
func TestRatelimitAroundTheEdge(t *testing.T) {
	t.Parallel()
	r := startRatelimit(t)
	r.burst() // opens connections
	const bursts = 2
	for {
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1900 * time.Millisecond))) // the clock's windows are what is tested
		began := time.Now()
		passed := r.burst()
		time.Sleep(time.Until(began.Truncate(time.Second).Add(time.Second)))
		passed += r.burst()
		if took := time.Since(began); took < time.Second {
			testkit.Equal(t, passed, bursts*100, "requests that pass a limit of 100 a second")
			t.Logf("a limit of 100 a second: %d requests pass within %.2f s", passed, took.Seconds())
			return
		}
	}
}
