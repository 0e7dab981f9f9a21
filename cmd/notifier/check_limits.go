package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// checkedLimits are the limits that a check shows, and where they come from.
type checkedLimits struct {
	tree *limits.Tree
	from string
}

// checkReport is what check prints as JSON.
type checkReport struct {
	OK         bool         `json:"ok"` // nothing has failed
	Findings   []finding    `json:"findings"`
	LimitsFrom string       `json:"limits_from"`
	Limits     []shownLevel `json:"limits"` // without what is used
}

// finding is a line of check.
type finding struct {
	Mark    string `json:"mark"` // ok, warn or FAIL
	Subject string `json:"subject"`
	Detail  string `json:"detail,omitempty"`
}

// workers finds settings that differ between the workers that run, or between them and a worker with the settings here. Limits
// that are not set here are not compared. The limits that the check shows are those of the workers, where one answers.
func (c *check) workers(ctx context.Context, connection *consume.Connection) {
	const subject = "settings of the workers"
	theirs, err := askWorkersLimits(ctx, connection, c.settings)
	if err != nil {
		c.warn(subject, err.Error())
		return
	}
	if len(theirs.reports) == 0 { // nothing runs yet
		c.shown.from += ": no worker answers"
		return
	}
	workers := append(workersOf(theirs.reports), status.Worker{Settings: c.compared(), Name: "here"})
	if mismatches := status.Mismatches(workers); len(mismatches) > 0 {
		c.warn(subject, describeMismatches(mismatches))
	} else {
		c.ok(subject, fmt.Sprintf("%d answer, and have the settings here", len(theirs.reports)))
	}
	tree, err := limits.NewTree(theirs.plan(connection, c.settings))
	if err != nil {
		c.warn("limits of the workers", err.Error())
		return
	}
	c.shown = checkedLimits{tree, theirs.String()}
}

// compared are the settings that a worker here would share with the others. If no limit is set here, the limits are left out: the
// check takes those of the workers.
func (c *check) compared() map[string]string {
	shared := c.settings.Shared()
	if !c.settings.Limits.Set {
		for _, variable := range []string{"GLOBAL_LIMIT", "CATEGORY_LIMIT", "LIMITS", "GUARANTEES"} {
			delete(shared, "NOTIFIER_"+variable)
		}
	}
	return shared
}

// limitTree finds limits that never deny anything, and prints all limits.
func (c *check) limitTree() error {
	for _, pointless := range c.shown.tree.Pointless() {
		c.warn("limit without effect", pointless.String())
	}
	if c.asJSON {
		levels := (&limitsCommand{}).shown(limits.Ruleset{Tree: c.shown.tree}, nil).Levels
		return writeJSON(c.out, checkReport{OK: c.failures == 0, Findings: c.findings, LimitsFrom: c.shown.from, Limits: levels})
	}
	text := strings.TrimSuffix(c.shown.tree.String(), "\n")
	_, err := fmt.Fprintf(c.out, "\nlimits: from %s\n  %s\n", c.shown.from, strings.ReplaceAll(text, "\n", "\n  "))
	return err
}
