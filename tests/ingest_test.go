package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// newToken makes a token and its line of the tokens file with the program.
func newToken(t testing.TB, name, pattern string) (token, line string) {
	t.Helper()
	p := run(t, settings{}, "ingest", "token", name, pattern)
	testkit.Equal(t, p.wait(), 0, "status of making a token")
	return strings.TrimSpace(p.stderr.String()), p.stdout.String()
}

// startIngest starts `notifier ingest`, and returns the process and the URL to which a category is appended.
func (d *deployment) startIngest(changes ...string) (served *worker, url string) {
	d.t.Helper()
	address := freeAddress(d.t)
	own := settings{"NATS_URL": d.nats.URL, "HTTP_ADDR": freeAddress(d.t), "INGEST_ADDR": address, "INGEST_RATE": "none", "DRAIN": "0"}.with(changes...)
	served = &worker{start(d.t, "ingest", own, "ingest"), own["HTTP_ADDR"]}
	served.awaitReady()
	return served, "http://" + address + "/v1/events/"
}

// answered is the answer to an event over HTTP.
type answered struct {
	ID        string
	Duplicate bool
}

// post sends an event over HTTP. The status is 0 without an answer.
func post(url, token, id, body string) (status int, answer answered) {
	return postBy(client, url, token, id, body)
}

// postBy is post for a client of its own.
func postBy(client *http.Client, url, token, id, body string) (status int, answer answered) {
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, answer
	}
	request.Header.Set("Authorization", "Bearer "+token)
	if id != "" {
		request.Header.Set("Idempotency-Key", id)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, answer
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || json.Unmarshal(text, &answer) != nil {
		return 0, answer
	}
	return response.StatusCode, answer
}

// TestIngest kills NATS while clients send events over HTTP. Every event with the answer 202 is posted once, under the ID of the answer.
func TestIngest(t *testing.T) {
	t.Parallel()
	const clients, events = 4, 60
	d := newDurableDeployment(t)
	w := d.startReady("worker", unlimited()...)
	front, url := d.startIngest()
	var mu sync.Mutex
	accepted := make(map[string]int)
	var answered, refused atomic.Int64
	var sending sync.WaitGroup
	for number := range clients {
		sending.Go(func() {
			for i := range events {
				key, again := fmt.Sprintf("%d-%d", number, i), false
				testkit.Soon(func() bool {
					status, answer := post(url+"payments", "", key, `{"title":"over HTTP"}`)
					if status != http.StatusAccepted {
						refused.Add(1)
						again = true
						return false
					}
					if answer.Duplicate && !again {
						t.Errorf("%s is a duplicate at once", key)
					}
					mu.Lock()
					accepted[answer.ID]++
					mu.Unlock()
					answered.Add(1)
					return true
				})
			}
		})
	}
	testkit.Eventually(t, "some answers", func() bool { return answered.Load() > clients*events/4 })
	d.nats.Kill()
	front.awaitUnready("nats is not connected")
	testkit.Eventually(t, "a refusal", func() bool { return refused.Load() > 0 })
	d.nats.Restart()
	front.awaitReady()
	sending.Wait()
	testkit.Equal(t, len(accepted), clients*events, "IDs were answered")
	d.awaitPosts(clients * events)
	d.awaitEmpty()
	wantPosts(t, d.slack.Accepted(), accepted)
	testkit.Contains(t, "why, of an event that was sent", run(t, d.settings(), "why", "payments/0-0").all(), "sent at")
	for metric, want := range map[string]int{"notifier_ingest_events_total": int(answered.Load()), "notifier_ingest_requests_total": int(answered.Load() + refused.Load())} {
		testkit.AtLeast(t, front.scrape().sum(metric), want, "%s", metric)
	}
	w.wantHealthy()
	front.stop()
	testkit.AtMost(t, front.logLines("cannot store events"), 1, "lines about the outage")
}

// TestIngestRights runs ingest with the rights of its sample user, and replaces the tokens file.
func TestIngestRights(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, `
		accounts { A { jetstream: enabled, users: [
			{ user: admin, password: admin }
			{ user: ingest, password: ingest, permissions: { publish: { allow: ["notify.>"] }, subscribe: { allow: ["_INBOX_ingest.>"] } } }
		] } }`)
	d := deploy(t, n, nats.UserInfo("admin", "admin"))
	d.createStream()
	token, line := newToken(t, "alertmanager", "payments.>")
	file := filepath.Join(t.TempDir(), "tokens")
	testkit.NoError(t, os.WriteFile(file, []byte(line), 0o600))
	front, url := d.startIngest("INGEST_TOKENS_FILE", file, "NATS_USER", "ingest", "NATS_PASSWORD", "ingest", "NATS_INBOX", "_INBOX_ingest")
	status := func(token, category string) int { status, _ := post(url+category, token, "", "text"); return status }
	testkit.Equal(t, status(token, "payments.cards"), http.StatusAccepted, "status with the token")
	testkit.Equal(t, status(token, "security"), http.StatusForbidden, "status of another category")
	next, line := newToken(t, "alertmanager", ">")
	testkit.NoError(t, os.WriteFile(file+".new", []byte(line), 0o600))
	testkit.NoError(t, os.Rename(file+".new", file))
	testkit.Eventually(t, "the new token", func() bool { return status(next, "security") == http.StatusAccepted })
	testkit.Equal(t, status(token, "payments.cards"), http.StatusUnauthorized, "status with the old token")
	testkit.Equal(t, front.logLines("permission is missing"), 0, "lines about permissions")
	d.awaitLeft(streamName, 2)
}

// TestIngestRefusesToStart starts ingest without tokens, without an address, and with bad tokens.
func TestIngestRefusesToStart(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "tokens")
	testkit.NoError(t, os.WriteFile(bad, []byte("name secret-token >\n"), 0o600))
	run(t, settings{}, "ingest").want(2, "NOTIFIER_INGEST_TOKENS_FILE: not set", "127.0.0.1:8082")
	run(t, settings{"INGEST_ADDR": "off"}, "ingest").want(2, "NOTIFIER_INGEST_ADDR is off")
	run(t, settings{"INGEST_TLS_CLIENT_CA_FILE": bad}, "ingest").want(2, "NOTIFIER_INGEST_TLS_CERT_FILE: not set")
	p := run(t, settings{"INGEST_ADDR": "127.0.0.1:0", "HTTP_ADDR": "off", "INGEST_TOKENS_FILE": bad}, "ingest")
	p.want(1, "line 1: the second column is not a hash")
	testkit.Lacks(t, "output", p.all(), "secret-token")
	run(t, settings{}, "ingest", "token", "name", "Upper").want(2, "upper-case")
}

// TestConnectionClosedForGood has NATS close the connections of ingest and of the page. No reconnect follows, so both end with an error, and
// ingest does not drain: it could only refuse events.
func TestConnectionClosedForGood(t *testing.T) {
	t.Parallel()
	url, violate := servertest.ClosingNATS(t)
	d := &deployment{t: t, nats: &servertest.NATS{URL: url}}
	front, _ := d.startIngest("DRAIN", "1h")
	page := start(t, "page", settings{"NATS_URL": url, "PAGE_ADDR": "127.0.0.1:0"}, "page")
	page.awaitOutput("the page: http://")
	violate()
	front.want(1, "the connection to nats is closed", "Maximum Payload Violation")
	page.want(1, "the connection to nats is closed", "Maximum Payload Violation")
}

// TestIngestDrains stops ingest. It is not ready any more, and answers clients until NOTIFIER_DRAIN is over.
func TestIngestDrains(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.createStream()
	front, url := d.startIngest("DRAIN", "3s")
	front.signal(syscall.SIGTERM)
	front.awaitUnready("stopping")
	status, _ := post(url+"a", "", "", "event")
	testkit.Equal(t, status, http.StatusAccepted, "status while ingest drains")
	front.want(0, "notifier ingest has stopped")
	d.awaitLeft(streamName, 1)
}
