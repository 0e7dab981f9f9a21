package cli

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// check shows the limits of the running workers. It warns of settings here that differ.
func TestCheckTheWorkersLimits(t *testing.T) {
	natsServer, _ := limitsServers(t, map[string]string{"SINK": "console"})
	settings := loadSettings(t).Shared
	settings["NOTIFIER_SINK"], settings["NOTIFIER_GLOBAL_LIMIT"] = "console", "60/30m"
	reports(t, natsServer.URL, status.Report{
		Worker:  status.Worker{Name: "pod-1", Instance: "one", Revision: "7:12", Settings: settings},
		Changes: []status.Change{{Path: "payments", Limit: "70/30m"}},
	})
	checked := func() (found checkReport, text string) {
		t.Helper()
		testkit.Eventually(t, "the worker answers in time", func() bool {
			var err error
			text, _, err = execute(t.Context(), "", "check", "--json")
			if err != nil && !errors.Is(err, errReported) {
				t.Fatal(err)
			}
			testkit.NoError(t, json.Unmarshal([]byte(text), &found))
			return found.LimitsFrom == "1 worker (revision 12)"
		})
		return found, text
	}
	found, text := checked()
	if !found.OK || len(found.Limits) != 3 || found.Limits[2] != (shownLevel{Use: limits.Use{Level: "payments", Limit: "70/30m"}, From: "live"}) {
		t.Errorf("got %+v, want three limits, the last one live", found)
	}
	testkit.Contains(t, "check", text,
		`{"mark":"ok","subject":"settings of the workers","detail":"1 answer, and have the settings here"}`,
		`{"mark":"warn","subject":"limit without effect","detail":"70/30m of payments never denies anything: global above it allows no more than 60/30m"}`,
	)
	t.Setenv("NOTIFIER_GLOBAL_LIMIT", "50/30m")
	_, text = checked()
	testkit.Contains(t, "check", text, "NOTIFIER_GLOBAL_LIMIT is 50/30m on here, 60/30m on pod-1")
}
