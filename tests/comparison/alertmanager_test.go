//go:build comparison

package comparison

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var alertmanager = program{
	module: "github.com/prometheus/alertmanager", version: "v0.34.2", command: "./cmd/alertmanager", missing: "ui/app/dist/index.html",
}

// slack takes posts as an incoming webhook does, and notes when each came.
type slack struct {
	mu      sync.Mutex
	posts   map[string][]time.Time // by path
	refused map[string]bool        // paths whose first post is answered with status 429 and Retry-After: 1
}

func (s *slack) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts[r.URL.Path] = append(s.posts[r.URL.Path], time.Now())
	if len(s.posts[r.URL.Path]) == 1 && s.refused[r.URL.Path] {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	_, _ = w.Write([]byte("ok"))
}

// times returns when the posts to a path came.
func (s *slack) times(path string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.posts[path]...)
}

const groupInterval = 5 * time.Second

const alertmanagerConfig = `
route:
  receiver: none
  group_wait: 1s
  group_interval: %[2]s
  routes:
  - {matchers: ['case = "apart"'], receiver: apart, group_by: [path]}
  - {matchers: ['case = "together"'], receiver: together, group_by: [case]}
  - {matchers: ['case = "refused"'], receiver: refused, group_by: [case]}
receivers:
- {name: none}
- {name: apart, slack_configs: [{api_url: '%[1]s/apart', channel: '#alerts'}]}
- {name: together, slack_configs: [{api_url: '%[1]s/together', channel: '#alerts'}]}
- {name: refused, slack_configs: [{api_url: '%[1]s/refused', channel: '#alerts'}]}
`

// Alertmanager posts one message for each group, without a bound over all groups. It does not heed Retry-After: the group's next
// interval posts again.
func TestAlertmanager(t *testing.T) {
	t.Parallel()
	const alerts = 300
	server := &slack{posts: map[string][]time.Time{}, refused: map[string]bool{"/refused": true}}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	folder, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", servertest.ReservePort(t))
	config := filepath.Join(folder, "alertmanager.yml")
	testkit.NoError(t, os.WriteFile(config, fmt.Appendf(nil, alertmanagerConfig, web.URL, groupInterval), 0o600))
	start(t, exec.Command(alertmanager.build(t), "--config.file="+config, "--storage.path="+folder, "--web.listen-address="+address,
		"--cluster.listen-address="), "http://"+address+"/-/ready")

	type alert struct {
		Labels map[string]string `json:"labels"`
	}
	sent := []alert{{Labels: map[string]string{"alertname": "Refused", "case": "refused"}}}
	for number := range alerts {
		for _, name := range []string{"apart", "together"} {
			sent = append(sent, alert{Labels: map[string]string{"alertname": "Many", "case": name, "path": fmt.Sprintf("path-%d", number)}})
		}
	}
	began := time.Now()
	response, err := http.Post("http://"+address+"/api/v2/alerts", "application/json", strings.NewReader(string(testkit.Must(json.Marshal(sent))(t))))
	testkit.NoError(t, err)
	_ = response.Body.Close()
	testkit.Equal(t, response.StatusCode, http.StatusOK, "status of the alerts")

	testkit.Eventually(t, "the refused post comes again", func() bool { return len(server.times("/refused")) == 2 })
	apart, together, refused := server.times("/apart"), server.times("/together"), server.times("/refused")
	testkit.Equal(t, len(apart), alerts, "messages of %d alerts, each in a group of its own", alerts)
	testkit.Equal(t, len(together), 1, "messages of %d alerts in one group", alerts)
	pause := refused[1].Sub(refused[0])
	testkit.AtMost(t, groupInterval-time.Second, pause, "pause after a status 429 with Retry-After: 1")
	t.Logf("%d alerts: %d messages within %.1f s where each is a group of its own, %d where they are one group", alerts, len(apart),
		apart[len(apart)-1].Sub(began).Seconds(), len(together))
	t.Logf("a post that Slack refuses with Retry-After: 1 comes again after %.1f s, where group_interval is %s", pause.Seconds(), groupInterval)
}
