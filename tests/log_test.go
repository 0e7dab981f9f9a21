package tests

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// lines decodes the lines of the log with a message.
func (p *process) lines(message string) (found []map[string]any) {
	p.t.Helper()
	for line := range strings.Lines(p.stderr.String()) {
		var decoded map[string]any
		testkit.NoError(p.t, json.Unmarshal([]byte(line), &decoded))
		if decoded["msg"] == message {
			found = append(found, decoded)
		}
	}
	return found
}

// number adds up an attribute of lines.
func number(lines []map[string]any, attribute string) (sum int) {
	for _, line := range lines {
		value, _ := line[attribute].(float64)
		sum += int(value)
	}
	return sum
}

// TestStormLogsLittle drops thousands of events. The log names each full limit, says when it has slots again, counts the dead letters, and
// stays short.
func TestStormLogsLittle(t *testing.T) {
	t.Parallel()
	const storm, broken = 3000, 40
	d := newDeployment(t)
	w := d.startReady("worker", "CATEGORY_LIMIT", "5/3s", "GLOBAL_LIMIT", "none", "LIMITS", "payments=3/3s")
	w.wantLogLines(1, `"limits":["global=none","category=5/3s","payments=3/3s"]`)

	d.publishEvents([]string{"basket", "search", "payments"}, storm/3)
	for i := range broken {
		d.publish("notify.deploys", "{broken "+strconv.Itoa(i))
	}
	w.alone().awaitEvents(storm + broken)
	dropped := w.scrape().sum("notifier_dropped_total")
	for _, message := range []string{"limit is full", "limit has slots again"} {
		testkit.Eventually(t, message, func() bool { return len(w.lines(message)) >= 2 })
		levels := make(map[any]int)
		for _, line := range w.lines(message) {
			levels[line["limit_level"]]++
		}
		testkit.EqualMaps(t, levels, map[any]int{"category": 1, "payments": 1}, "lines of %q by level", message)
	}
	opened := w.lines("limit has slots again")
	testkit.Between(t, number(opened, "denied"), 1, dropped, "denials that the log reports")
	w.stop()
	letters := w.lines("events ended as dead letters")
	testkit.Equal(t, number(letters, "count"), broken, "dead letters that the log reports")
	testkit.AtMost(t, len(letters), 2, "lines about dead letters")
	testkit.AtMost(t, strings.Count(w.stderr.String(), "\n"), 20, "lines of the log")
}
