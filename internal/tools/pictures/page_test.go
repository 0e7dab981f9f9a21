package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// exampleForm matches an example of the page: settings, and a table of their effect.
var (
	exampleForm = regexp.MustCompile("```env\n((?:NOTIFIER_.*\n)+)```\n\n" + `\| time \| events \|.*\n\|[-|]+\n((?:\|.*\n)+)`)
	eventsForm  = regexp.MustCompile("^([0-9]+) `([a-z.]+)(?:@([a-z0-9-]+))?`$")
)

func TestExamplesAreWhatTheLimiterDoes(t *testing.T) {
	examples := exampleForm.FindAllStringSubmatch(testkit.Text(t, filepath.Join(docs, "limits.md")), -1)
	testkit.Require(t, len(examples) == 4, "found %d examples, want 4", len(examples))
	for _, example := range examples {
		settings, rows := example[1], strings.TrimSpace(example[2])
		var now time.Time
		shared := store.NewMemory(store.Settings{
			Tree: treeOf(t, settings), Lease: time.Minute, Retention: 24 * time.Hour,
		}, func() time.Time { return now }, nil)
		for number, row := range strings.Split(rows, "\n") {
			cells := strings.Split(row, "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			now = clockTime(t, cells[1])
			admitted, level, next := evaluate(t, shared, number, cells[2], now)
			got := []string{strconv.Itoa(admitted), level, next}
			if wanted := cells[3:6]; strings.Join(got, "|") != strings.Join(wanted, "|") {
				t.Errorf("%s %s: the limiter says %q, the page %q", cells[1], cells[2], got, wanted)
			}
		}
	}
}

func clockTime(t *testing.T, text string) time.Time {
	t.Helper()
	at := testkit.Must(time.Parse("15:04", text))(t)
	return time.Date(2026, time.January, 1, at.Hour(), at.Minute(), 0, 0, time.UTC)
}

// evaluate returns the number of admitted events. Of the first denied event it returns the level and the time of the next slot.
func evaluate(
	t *testing.T, shared *store.Memory, row int, events string, now time.Time,
) (admitted int, level, next string) {
	t.Helper()
	form := eventsForm.FindStringSubmatch(events)
	testkit.Require(t, form != nil, "%q is not a number and a category, perhaps with a key", events)
	count := testkit.Must(strconv.Atoi(form[1]))(t)
	var requests []store.Request
	for i := range count {
		id := fmt.Sprintf("%d-%d", row, i)
		requests = append(requests, store.Request{
			ID: id, Message: store.Message{Stored: now}, Category: form[2], Key: form[3], Cost: 1,
		})
	}
	for _, decision := range shared.DecideOnce("", requests).Decisions {
		switch {
		case decision.Verdict == store.Admitted:
			admitted++
		case level == "":
			level, next = "`"+decision.Node.Level+"`", now.Add(decision.Wait).Format("15:04")
		}
	}
	return admitted, level, next
}

func treeOf(t *testing.T, settings string) *limits.Tree {
	t.Helper()
	set := make(map[string]string)
	for line := range strings.Lines(settings) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		set[strings.TrimPrefix(name, "NOTIFIER_")] = value
	}
	testkit.SetSettings(t, set)
	loaded, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	testkit.NoError(t, err)
	return testkit.Must(limits.NewTree(loaded.Limits.Plan()))(t)
}
