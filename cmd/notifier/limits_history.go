package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

// shownHistory is what limits history prints as JSON.
type shownHistory struct {
	Bucket  string        `json:"bucket"`
	Changes []shownChange `json:"changes"` // the oldest first
}

// shownChange is one of them.
type shownChange struct {
	Revision uint64    `json:"revision"`
	At       time.Time `json:"at"`
	By       string    `json:"by,omitempty"`    // of an end, who set what ended
	Level    string    `json:"level,omitempty"` // absent: the change is an adoption
	Shadow   bool      `json:"shadow,omitempty"`
	Old      *string   `json:"old"` // "": the override was not set; null: what was set is no longer stored
	New      string    `json:"new"` // "": the override is not set
	Until    time.Time `json:"until,omitzero"`
	Ended    uint64    `json:"ended_revision,omitempty"` // revision of the override that ended by itself with this change
	Adopted  string    `json:"adopted_in_place_of,omitempty"`
}

func (l *limitsCommand) history(ctx context.Context, _ []string) (err error) {
	var changes []overrides.PastChange
	if l.bucket != nil {
		if changes, err = l.bucket.History(ctx); err != nil {
			return err
		}
	}
	if l.asJSON {
		shown := shownHistory{Bucket: l.settings.Limits.Bucket, Changes: []shownChange{}}
		for _, change := range changes {
			shown.Changes = append(shown.Changes, inHistory(change))
		}
		return writeJSON(l.out, shown)
	}
	if l.bucket == nil {
		return nil
	}
	rows := [][]string{{"REVISION", "WHEN", "BY", "LEVEL", "OLD", "NEW"}}
	for _, change := range changes {
		level, before, after := change.Name.String(), valueOf(change.Old), valueOf(change.Value)
		switch {
		case change.Adopted:
			level, before, after = "(adopted)", "", "in the place of "+plain.Line(change.Value)
		case !change.OldKnown:
			before = "(not known)"
		}
		if !change.Until.IsZero() {
			after += " for " + lengthOf(change.Change) + ", until " + zoned(change.Until)
		}
		if change.Ended != 0 {
			after += fmt.Sprintf(", as revision %d has ended", change.Ended)
		}
		rows = append(rows, []string{fmt.Sprint(change.Revision), zoned(change.Changed), author(change.By), level, before, after})
	}
	return printTable(l.out, rows)
}

func inHistory(change overrides.PastChange) shownChange {
	shown := shownChange{
		Revision: change.Revision, At: change.Changed.UTC(), By: change.By, Level: change.Name.Pattern, Shadow: change.Name.Shadow,
		New: change.Value, Until: change.Until, Ended: change.Ended,
	}
	if change.OldKnown {
		shown.Old = &change.Old
	}
	if change.Adopted {
		shown.Level, shown.Old, shown.New, shown.Adopted = "", nil, "", change.Value
	}
	return shown
}

// valueOf is an override's value for a column.
func valueOf(value string) string { return cmp.Or(plain.Line(value), "(unset)") }

// author is who made a change. A change by another program has no author.
func author(by string) string { return cmp.Or(by, "-") }

// zoned is a time on the clock here, with its zone.
func zoned(t time.Time) string { return withZone(t.Local()) }

func withZone(t time.Time) string {
	if _, offset := t.Zone(); offset == 0 {
		return t.Format(time.DateTime) + " UTC"
	}
	return t.Format(time.DateTime + " -07:00")
}

// lengthOf is for how long an override with an end was set.
func lengthOf(c overrides.Change) string {
	return model.Duration(c.Until.Sub(c.Changed).Round(time.Second)).String()
}
