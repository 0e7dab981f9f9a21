package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

// shownHistory is what limits history prints as JSON.
type shownHistory struct {
	Bucket  string        `json:"bucket"`
	Changes []shownChange `json:"changes"` // the oldest first
}

type shownChange struct {
	Revision uint64    `json:"revision"`
	At       time.Time `json:"at"`
	By       string    `json:"by,omitempty"`    // of an end: the author of the ended override
	Level    string    `json:"level,omitempty"` // absent: the change is an adoption
	Shadow   bool      `json:"shadow,omitempty"`
	Old      *string   `json:"old"` // "": the override was not set; null: what was set is no longer stored
	New      string    `json:"new"` // "": the override is not set
	Until    time.Time `json:"until,omitzero"`
	Every    string    `json:"every,omitempty"`          // of a mute: its schedule
	Except   string    `json:"except,omitempty"`         // of a mute: the severity that it does not mute
	Ended    uint64    `json:"ended_revision,omitempty"` // revision of the override that ended by itself with this change
	Adopted  string    `json:"adopted_in_place_of,omitempty"`
}

func (l *limitsCommand) history(ctx context.Context, _ []string) (err error) {
	var changes []overrides.PastChange
	bucket, absent := l.limits.Bucket()
	if absent == nil {
		if changes, err = bucket.History(ctx); err != nil {
			return err
		}
	}
	if l.asJSON {
		shown := shownHistory{Bucket: l.settings.Limits.Bucket, Changes: []shownChange{}}
		for _, change := range changes {
			shown.Changes = append(shown.Changes, inHistory(change))
		}
		return screen.PrintJSON(l.out, shown)
	}
	if absent != nil {
		_, err := fmt.Fprintln(l.out, absentBucket(l.settings))
		return err
	}
	rows := [][]string{{"REVISION", "WHEN", "BY", "LEVEL", "OLD", "NEW"}}
	for _, change := range changes {
		level, before, after := change.Name.String(), valueOf(change.Old), valueOf(change.Value)
		switch {
		case change.Adopted():
			level, before, after = "(adopted)", "", "replacing "+plain.Line(change.Value)
		case !change.OldKnown:
			before = "(not known)"
		}
		if every := plain.Line(change.Muting.Every); every != "" {
			after += ", every " + every
		}
		if spare := plain.Line(change.Muting.Spare); spare != "" {
			after += ", except " + spare
		}
		if !change.Until.IsZero() {
			after += " for " + setup.Length(change.Change) + ", until " + screen.Local(change.Until)
		}
		if change.Ended != 0 {
			after += fmt.Sprintf(", as revision %d has ended", change.Ended)
		}
		rows = append(rows, []string{fmt.Sprint(change.Revision), screen.Local(change.Changed), author(change.By), level, before, after})
	}
	return screen.PrintTable(l.out, rows)
}

func inHistory(change overrides.PastChange) shownChange {
	shown := shownChange{
		Revision: change.Revision, At: change.Changed.UTC(), By: change.By, Level: change.Name.Pattern, Shadow: change.Name.Shadow,
		New: change.Value, Until: change.Until, Every: change.Muting.Every, Except: change.Muting.Spare, Ended: change.Ended,
	}
	if change.OldKnown {
		shown.Old = &change.Old
	}
	if change.Name.Kind != overrides.Limit {
		shown.Level = change.Name.String()
	}
	if change.Adopted() {
		shown.Level, shown.Old, shown.New, shown.Adopted = "", nil, "", change.Value
	}
	return shown
}

func valueOf(value string) string { return cmp.Or(plain.Line(value), "(unset)") }

// author returns the author of a change. A change by another program has none.
func author(by string) string { return cmp.Or(by, "-") }
