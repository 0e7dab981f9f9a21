package tests

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// alertsOf makes a body of several alerts with a status and fingerprints.
func alertsOf(status string, fingerprints ...string) string {
	alerts := make([]string, len(fingerprints))
	for i, fingerprint := range fingerprints {
		alerts[i] = fmt.Sprintf(`{"status": %q, "labels": {"alertname": "Disk %s"}, "fingerprint": %[2]q}`, status, fingerprint)
	}
	return `{"alerts": [` + strings.Join(alerts, ", ") + `]}`
}

// TestSimulateAsTheWorker compares the report of simulate with the outcomes of a worker for the same stream.
func TestSimulateAsTheWorker(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.createStream()
	d.publish("notify.disks", alertsOf("firing", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o")) // 10 are sent
	d.publish("notify.disks", alertsOf("resolved", "a", "b", "c", "o", "p"))                                                 // o was dropped, p never fired
	d.publish("notify.disks", alertsOf("resolved", "a"))                                                                     // again
	d.publish("notify.jobs", `{"title": "backup", "status": "firing", "key": "backup", "id": "x"}`)
	d.publish("notify.jobs", `{"title": "backup", "status": "resolved", "key": "backup"}`)
	d.publish("notify.jobs", `{"title": "backup", "id": "x"}`)  // a duplicate
	d.publish("notify.other", `{"title": "backup", "id": "x"}`) // none
	d.publish("notify.other", `{"title": "x", "status": "resolved", "key": "backup"}`)

	changes := []string{"GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "10/30m"}
	p := run(t, d.settings(changes...), "simulate", "--from-stream", "--json")
	p.want(0)
	var report struct {
		Paths []struct {
			Category              string
			Seen, Sent, Duplicate int
			Dropped               map[string]int
		}
	}
	testkit.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &report))
	testkit.Require(t, len(report.Paths) == 3, "it reports %+v, want three categories", report.Paths)
	w := d.startReady("worker", changes...)
	for _, path := range report.Paths {
		w.alone().awaitEvents(path.Sent, "outcome", "sent", "category", path.Category)
		w.alone().awaitEvents(path.Duplicate, "outcome", "duplicate", "category", path.Category)
		for _, level := range []string{"category", "unpaired"} {
			w.alone().awaitSum(path.Dropped[level], "notifier_dropped_total", "level", level, "category", path.Category)
		}
		w.alone().awaitEvents(path.Seen, "category", path.Category)
	}
	d.awaitEmpty()
	d.awaitPosts(10 + 3 + 2 + 1)
	if disks := report.Paths[0]; disks.Category != "disks" || disks.Seen != 21 || disks.Sent != 13 || disks.Dropped["category"] != 5 || disks.Dropped["unpaired"] != 3 {
		t.Errorf("simulate says of the disks %+v", disks)
	}
}
