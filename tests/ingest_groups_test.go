package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// podAlert is a firing alert with the labels of Kubernetes, and with so many bytes more.
func podAlert(number, padding int) string {
	return fmt.Sprintf(`{"status":"firing","labels":{"alertname":"KubePodCrashLooping","severity":"warning","namespace":"payments","pod":"api-%d"},`+
		`"annotations":{"summary":"Pod api-%d crashes","description":"%s","runbook_url":"https://runbooks.example.com/crash"},`+
		`"startsAt":"2026-01-02T03:04:05Z","endsAt":"0001-01-01T00:00:00Z","generatorURL":"https://prometheus.example.com/graph?g0.expr=up","fingerprint":"f%d"}`,
		number, number, strings.Repeat("a", padding), number)
}

// podGroup is a webhook body of Alertmanager with so many alerts.
func podGroup(count, padding int) string {
	alerts := make([]string, count)
	for i := range alerts {
		alerts[i] = podAlert(i, padding)
	}
	return `{"receiver":"team","status":"firing","alerts":[` + strings.Join(alerts, ",") + `],"externalURL":"https://alertmanager.example.com"}`
}

// TestGroupOf300Alerts sends a group whose body is larger than an event may be, as Alertmanager repeats and changes it. Each alert is posted
// once, with its links.
func TestGroupOf300Alerts(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.startReady("worker", unlimited()...)
	front, url := d.startIngest()
	url = strings.Replace(url, "/v1/events/", "/v1/alertmanager/", 1)
	body := podGroup(300, 600)
	if len(body) < 262144 {
		t.Fatalf("the body has %d bytes, want more than NOTIFIER_EVENT_MAX_BYTES", len(body))
	}
	for range 2 {
		status, _ := post(url+"payments.pods", "", "", body)
		testkit.Equal(t, status, http.StatusAccepted, "status")
	}
	status, _ := post(url+"payments.pods", "", "", podGroup(301, 600))
	testkit.Equal(t, status, http.StatusAccepted, "status of the group with one more alert")
	d.awaitPosts(301)
	d.awaitEmpty()
	posts := d.slack.Accepted()
	testkit.Equal(t, len(posts), 301, "posts")
	testkit.Contains(t, "shown", text(posts[0].Message), "<https://runbooks.example.com/crash|Runbook>", "<https://prometheus.example.com/graph?g0.expr=up|Source>",
		"source https://alertmanager.example.com")
	refused, _ := post(url+"payments.pods", "", "", strings.Repeat(" ", 16<<20+1))
	testkit.Equal(t, refused, http.StatusRequestEntityTooLarge, "status of a body above NOTIFIER_INGEST_MAX_BYTES")
	testkit.Equal(t, front.logLines("refused requests of a client"), 1, "lines about the refused body")
	testkit.Equal(t, front.scrape().sum("notifier_ingest_refused_total"), 1, "refused requests")
}

// TestIngestDrains stops ingest while clients send on connections of their own. Until NOTIFIER_DRAIN is over, every one of them is answered,
// though ingest is not ready any more. An upload that began before is answered even later.
func TestIngestDrains(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.createStream()
	front, url := d.startIngest("DRAIN", "8s")
	address := strings.Split(url, "/")[2]
	group := podGroup(300, 600)
	upload := testkit.Must(net.Dial("tcp", address))(t)
	defer func() { _ = upload.Close() }()
	testkit.Must(fmt.Fprintf(upload, "POST /v1/alertmanager/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(group), group[:len(group)/2]))(t)

	var answered, failed atomic.Int64
	enough := make(chan struct{})
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			own := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for {
				select {
				case <-enough:
					return
				default:
				}
				response, err := own.Post(url+"a", "text/plain", strings.NewReader("event"))
				if err != nil {
					failed.Add(1)
					t.Errorf("a request while ingest drains: %v", err)
					return
				}
				_ = response.Body.Close()
				if response.StatusCode != http.StatusAccepted {
					t.Errorf("a request while ingest drains: got status %d, want 202", response.StatusCode)
				}
				answered.Add(1)
			}
		})
	}
	testkit.Eventually(t, "some answers", func() bool { return answered.Load() > 20 })
	front.signal(syscall.SIGTERM)
	front.awaitUnready("stopping")
	before := answered.Load()
	testkit.Eventually(t, "answers of an ingest that is not ready", func() bool { return answered.Load() > before+20 || failed.Load() > 0 })
	close(enough)
	senders.Wait()
	testkit.Eventually(t, "the end of the listener", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	testkit.Must(io.WriteString(upload, group[len(group)/2:]))(t)
	response, err := http.ReadResponse(bufio.NewReader(upload), nil)
	testkit.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	testkit.Equal(t, response.StatusCode, http.StatusAccepted, "status of an upload that began before SIGTERM")
	testkit.Equal(t, front.wait(), 0, "status of ingest after SIGTERM")
	d.awaitLeft(streamName, int(answered.Load())+300)
}

// TestHugeGroups has many clients send groups of 16 MiB at once, and others groups that never end. Memory stays bounded, every whole group is
// stored once its client has repeated it, and a producer of single events is answered meanwhile.
func TestHugeGroups(t *testing.T) {
	t.Parallel()
	d := newDurableDeployment(t)
	d.createStream(func(c *jetstream.StreamConfig) { c.Duplicates = time.Hour })
	hostileToken, hostileLine := newToken(t, "hostile", "alerts.>")
	goodToken, goodLine := newToken(t, "good", "payments.>")
	file := filepath.Join(t.TempDir(), "tokens")
	testkit.NoError(t, os.WriteFile(file, []byte(hostileLine+goodLine), 0o600))
	front, url := d.startIngest("INGEST_TOKENS_FILE", file)
	const alerts = 160
	body := podGroup(alerts, 100<<10)
	address := strings.Split(url, "/")[2]
	whole, slow := hostile.Times(t, 4, 60), hostile.Times(t, 100, 400)

	for range slow {
		conn := testkit.Must(net.Dial("tcp", address))(t)
		defer func() { _ = conn.Close() }()
		go func() {
			_, _ = fmt.Fprintf(conn, "POST /v1/alertmanager/alerts.a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
				hostileToken, len(body), body[:1<<20]) // the server may close the connection
		}()
	}
	var senders sync.WaitGroup
	for range whole {
		senders.Go(func() {
			own := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for deadline := time.Now().Add(patience); sendGroup(own, address, hostileToken, body) != http.StatusAccepted; time.Sleep(time.Second) { // as Retry-After asks
				if time.Now().After(deadline) {
					t.Error("a group was not stored")
					return
				}
			}
		})
	}
	for i := range 100 {
		status, _ := post(url+"payments.cards", goodToken, strconv.Itoa(i), "event")
		testkit.Equal(t, status, http.StatusAccepted, "status of event %d of another producer", i)
	}
	senders.Wait()
	testkit.AtMost(t, front.peakMemory(), 200<<20, "bytes of memory at most")
	d.awaitLeft(streamName, alerts+100)
	front.wantHealthy()
}

// sendGroup sends a group, and returns the status; 0 without an answer.
func sendGroup(own *http.Client, address, token, body string) int {
	request, err := http.NewRequest(http.MethodPost, "http://"+address+"/v1/alertmanager/alerts.a", bytes.NewReader([]byte(body)))
	if err != nil {
		return 0
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := own.Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

var peakForm = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory is the most memory that the process has had so far, in bytes.
func (p *process) peakMemory() int {
	p.t.Helper()
	status := testkit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid)))(p.t)
	found := peakForm.FindSubmatch(status)
	if found == nil {
		p.t.Fatalf("no peak of memory in %s", status)
	}
	return testkit.Must(strconv.Atoi(string(found[1])))(p.t) << 10
}
