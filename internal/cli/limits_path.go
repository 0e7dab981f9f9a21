package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// shownOnPath is a rule that matches a path or one above it, in JSON.
type shownOnPath struct {
	limits.Use
	From    string    `json:"from"`
	Until   time.Time `json:"until,omitzero"`        // when the live limit ends by itself
	InForce bool      `json:"in_force"`              // of the rules for one path the most specific one
	OfKey   bool      `json:"of_key,omitempty"`      // the rule limits each key of the path
	Instead string    `json:"replaced_by,omitempty"` // the level of the rule that is in force for the path instead
}

// showPath prints every rule that matches a path, which rule is in force, and its use. With "@" and a key behind the path, it prints the use
// of the key too.
func (l *limitsCommand) showPath(ctx context.Context, view limitsView, argument string) error {
	rules := view.rules
	path, key := limits.SplitKey(argument)
	var known store.Explanation
	problem := l.withStore(rules.Tree, func(shared *store.Redis) (err error) {
		known, err = shared.Readings.Explain(ctx, store.Request{ID: path + " ", Category: path, Key: event.KeyNamed(key), Cost: 1})
		return err
	})
	in := rules.Position
	shown := shownLimits{Workers: len(l.theirs.Reports), Generation: in.Generation, Revision: in.Revision, Path: view.onPath(path, key, known)}
	if l.asJSON {
		return shown.printJSON(l.out, notKnown(problem, l.settings.Redis))
	}
	rows := [][]string{{"PATH", "LEVEL", "LIMIT", "FROM", "USED", "NEXT SLOT"}}
	for _, rule := range shown.Path {
		used, next := "replaced by the rule of "+rule.Instead, ""
		switch {
		case rule.InForce && rule.Size == 0 && rule.Limit == "none":
			used = ""
		case rule.InForce && rule.OfKey && key == "":
			used = "counted for each key"
		case rule.InForce && problem == nil:
			used, next = fmt.Sprintf("%d of %d", rule.Used, rule.Size), nextSlot(rule.Use, known.At)
		case rule.InForce:
			used = notKnownText
		}
		rows = append(rows, []string{cmp.Or(rule.Path, "(all)"), rule.Level, rule.Limit, origin(rule.From, rule.Until), used, next})
	}
	if err := screen.PrintTable(l.out, rows); err != nil {
		return err
	}
	muted := slices.IndexFunc(rules.Mutes, func(m *limits.Mute) bool { return m.Covers(path) })
	if muted >= 0 {
		_, _ = fmt.Fprintln(l.out, mutedText(rules.Mutes[muted]))
	}
	if problem == nil && muted < 0 {
		what := path
		if key != "" {
			what = fmt.Sprintf("%s with the key %q", path, key)
		}
		verdict := "sent now" + known.Unless()
		if denial := known.Denial; denial != nil {
			verdict = "denied now by " + denial.Level + " " + denial.Limit
			if l.settings.Limits.Shadow {
				verdict += "; " + inspect.SentAnyway
			}
		}
		_, _ = fmt.Fprintf(l.out, "an event of %s would be %s\n", what, verdict)
	}
	_, _ = fmt.Fprintln(l.out, view.source())
	return notKnown(problem, l.settings.Redis)
}

// onPath lists the rules, with a row for each limit of a rule in force. A rule of each key has the use of the key, "" for none.
func (v limitsView) onPath(path, key string, known store.Explanation) []shownOnPath {
	tree := v.rules.Tree
	var shown []shownOnPath
	considered := tree.Considered(path)
	type place struct {
		path  string
		ofKey bool
	}
	winners := make(map[place]string)
	for _, rule := range considered {
		if rule.Wins {
			winners[place{rule.Path, rule.OfKey}] = rule.Level
		}
	}
	for _, rule := range considered {
		row := shownOnPath{
			Use:  limits.Use{Path: rule.Path, Level: rule.Level, Limit: rule.Limits.String()},
			From: string(tree.Origin(rule.Level)), InForce: rule.Wins, OfKey: rule.OfKey, Until: v.ends[overrides.Name{Pattern: rule.Level}],
		}
		if !rule.Wins {
			row.Instead = winners[place{rule.Path, rule.OfKey}]
		}
		before := len(shown)
		for _, limit := range known.Limits {
			if !rule.Wins || limit.Path != rule.Path || limit.Level != rule.Level {
				continue
			}
			each := row
			each.Use = limit
			shown = append(shown, each)
		}
		if len(shown) == before {
			shown = append(shown, row)
		}
		for i := range shown[before:] {
			if rule.OfKey && key != "" {
				shown[before+i].Path += "@" + key
			}
		}
	}
	return shown
}
