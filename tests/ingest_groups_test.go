package tests

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

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
	body := groupOf(numbered(strings.Repeat("a", 50<<10), alerts)...) // the name is a fingerprint too
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
			for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) { // as Retry-After asks
				if status, _ := postBy(own, "http://"+address+"/v1/alertmanager/alerts.a", hostileToken, "", body); status == http.StatusAccepted {
					return
				}
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

var peakForm = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory is the most memory that the process has had so far, in bytes.
func (p *process) peakMemory() int {
	p.t.Helper()
	status := testkit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid)))(p.t)
	found := peakForm.FindSubmatch(status)
	testkit.Require(p.t, found != nil, "no peak of memory in %s", status)
	return testkit.Must(strconv.Atoi(string(found[1])))(p.t) << 10
}
