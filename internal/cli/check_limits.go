package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/status"
)

type checkedLimits struct {
	tree *limits.Tree
	from string
}

// checkReport is what check prints as JSON.
type checkReport struct {
	OK         bool         `json:"ok"` // no finding is marked FAIL
	Findings   []finding    `json:"findings"`
	LimitsFrom string       `json:"limits_from"`
	Limits     []shownLevel `json:"limits"` // without their use
}

type finding struct {
	Mark    string `json:"mark"` // ok, warn or FAIL
	Subject string `json:"subject"`
	Detail  string `json:"detail,omitempty"`
}

// workers finds settings that differ between the running workers, and between them and the settings here. Limits that are not set here are
// not compared. If a worker answers, check prints the limits of the workers.
func (c *check) workers(ctx context.Context, connection *stream.Connection) {
	const subject = "settings of the workers"
	theirs, err := inspect.Workers(ctx, connection, c.settings)
	if err != nil {
		c.warn(subject, err.Error())
		return
	}
	if theirs.Failed != nil {
		c.warn(subject, theirs.Failed.Error())
	}
	if len(theirs.Reports) == 0 { // no worker runs yet
		c.shown.from += ": no worker answers"
		return
	}
	mismatches := inspect.Mismatches(theirs.Reports, status.Worker{Settings: c.compared(), Name: "here"})
	if differences := inspect.DescribeMismatches(mismatches); differences != "" {
		c.warn(subject, differences)
	} else {
		c.ok(subject, fmt.Sprintf("%s the settings here", screen.Numbered(len(theirs.Reports), "worker has", "workers have")))
	}
	plan, err := theirs.Plan(connection)
	if err != nil {
		c.warn("limits of the workers", err.Error())
		return
	}
	tree, err := limits.NewTree(plan)
	if err != nil {
		c.warn("limits of the workers", err.Error())
		return
	}
	c.shown = checkedLimits{tree, theirs.String()}
}

// compared returns the settings that a worker started here would share, without limits if none is set here: check prints those of the workers.
func (c *check) compared() map[string]string {
	shared := c.settings.Shared
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
		levels := limitsView{rules: limits.Ruleset{Tree: c.shown.tree}}.levels(nil).Levels
		return screen.PrintJSON(c.out, checkReport{OK: c.failures == 0, Findings: c.findings, LimitsFrom: c.shown.from, Limits: levels})
	}
	text := strings.TrimSuffix(c.shown.tree.String(), "\n")
	_, err := fmt.Fprintf(c.out, "\nlimits: from %s\n  %s\n", c.shown.from, strings.ReplaceAll(text, "\n", "\n  "))
	return err
}
