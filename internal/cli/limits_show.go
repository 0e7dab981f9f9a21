package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// shownLimits is what the command prints, and its form in JSON.
type shownLimits struct {
	Workers    int           `json:"workers"` // that have these limits; 0: these are the limits of the settings here
	Generation int64         `json:"generation"`
	Revision   uint64        `json:"revision"`
	Levels     []shownLevel  `json:"levels"`
	Path       []shownOnPath `json:"path,omitempty"`    // set for limits PATH
	Unknown    []string      `json:"unknown,omitempty"` // sentences: why the use is not known; the numbers of used slots are then 0 without meaning
}

// shownLevel is a rule and the use of its fullest path, in JSON.
type shownLevel struct {
	limits.Use
	From   string    `json:"from"`
	Until  time.Time `json:"until,omitzero"` // when the live limit ends by itself
	Shadow bool      `json:"shadow,omitempty"`
	Paths  int       `json:"paths_in_use"`
	Keys   int       `json:"keys_in_use,omitempty"` // of a rule of each key: how many keys Redis counts
}

func (l *limitsCommand) show(ctx context.Context, arguments []string) error {
	s, rules, err := l.limits.InForce(ctx)
	if err != nil {
		return err
	}
	view := limitsView{rules: rules, workers: len(l.theirs.Reports), ends: endsOf(s)}
	if len(arguments) > 0 {
		return l.showPath(ctx, view, arguments[0])
	}
	uses, inForce, problem := l.usage(ctx, rules.Tree)
	shown := view.levels(uses)
	unseen := unseenLevels(uses)
	if unseen != "" {
		shown.Unknown = []string{unseen}
	}
	if l.asJSON {
		return shown.printJSON(l.out, notKnown(problem, l.settings.Redis))
	}
	words := wordsOf(uses)
	for _, level := range shown.Levels {
		if problem != nil && level.Limit != "none" {
			words[level.Level] = notKnownText
		}
	}
	if err := screen.PrintTable(l.out, shown.rows(words)); err != nil {
		return err
	}
	if unseen != "" {
		_, _ = fmt.Fprintln(l.out, unseen)
	}
	for _, mute := range rules.Mutes {
		_, _ = fmt.Fprintln(l.out, mutedText(mute))
	}
	for _, guarantee := range rules.Tree.Guarantees() {
		_, _ = fmt.Fprintf(l.out, "%d slots of each global window belong to %s\n", guarantee.Slots, guarantee.Path)
	}
	if err := l.limits.Live.Unreadable(); err != nil {
		_, _ = fmt.Fprintf(l.out, "a worker that starts takes no events: %v\n", err)
	}
	for _, entry := range s.Entries {
		if entry.Lost {
			continue
		}
		if _, err := l.limits.Live.Check(setup.LiveEntry(entry)); err != nil {
			_, _ = fmt.Fprintf(l.out, "workers ignore what %s is set to in revision %d, and keep its last good limit: %v\n",
				entry.Name, entry.Revision, err)
		}
	}
	if err := l.printBucket(ctx, s, inForce); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(l.out, view.source())
	return notKnown(problem, l.settings.Redis)
}

// printBucket prints the revision of the bucket, and whether newer limits are in force.
func (l *limitsCommand) printBucket(ctx context.Context, s overrides.Snapshot, inForce limits.Position) error {
	bucket, absent := l.limits.Bucket()
	// After a restore of NATS, Redis may have newer limits in force than the bucket. A bucket that a worker creates is newer.
	outdated := !l.settings.NATS.Provision && setup.Position(s).Before(inForce)
	if absent != nil {
		_, _ = fmt.Fprintln(l.out, absentBucket(l.settings))
	} else {
		_, _ = fmt.Fprintf(l.out, "revision %d of the bucket %s\n", s.Revision, l.settings.Limits.Bucket)
		var err error
		if outdated, err = isOutdated(ctx, bucket, s, inForce); err != nil {
			return err
		}
	}
	if outdated {
		_, _ = fmt.Fprintf(l.out, "workers that read this take no events, since newer limits are in force: %s; see limits adopt\n", inForce)
	}
	return nil
}

// printJSON prints the limits as a line of JSON. It returns the reason why the use is not known, if there is one.
func (s shownLimits) printJSON(out io.Writer, unknown error) error {
	if unknown != nil {
		s.Unknown = []string{unknown.Error()}
	}
	if err := screen.PrintJSON(out, s); err != nil {
		return err
	}
	return unknown
}

func endsOf(s overrides.Snapshot) map[overrides.Name]time.Time {
	ends := make(map[overrides.Name]time.Time)
	for _, entry := range s.Entries {
		if !entry.Until.IsZero() {
			ends[entry.Name] = entry.Until
		}
	}
	return ends
}

type limitsView struct {
	rules   limits.Ruleset
	workers int                          // that have these limits; 0: they are the limits of the settings here
	ends    map[overrides.Name]time.Time // of the live limits that end by themselves
}

func origin(from string, until time.Time) string {
	if until.IsZero() {
		return from
	}
	return from + " until " + screen.Local(until)
}

func (v limitsView) source() string {
	switch v.workers {
	case 0:
		return "no worker answers: these are the limits of the settings here"
	case 1:
		return "these are the limits of the running worker"
	default:
		return fmt.Sprintf("these are the limits of %d running workers", v.workers)
	}
}

// notKnown is the failure of a command that could not ask Redis for the use.
func notKnown(problem error, settings config.Redis) error {
	if problem == nil {
		return nil
	}
	return fmt.Errorf("what is used is not known: redis: %s", setup.ExplainRedis(problem, settings))
}

func (v limitsView) levels(uses []store.LevelUse) shownLimits {
	rules := v.rules
	shown := shownLimits{Workers: v.workers, Generation: rules.Position.Generation, Revision: rules.Position.Revision}
	add := func(tree *limits.Tree, uses []store.LevelUse) {
		isShadow := tree == rules.Shadow
		for _, level := range tree.AllLevels() {
			row := shownLevel{
				Use: limits.Use{Level: level.Level, Limit: level.Limits.String()}, From: string(tree.Origin(level.Level)), Shadow: isShadow,
				Until: v.ends[overrides.Name{Pattern: level.Level, Shadow: isShadow}],
			}
			for _, use := range uses {
				if use.Level == level.Level {
					row.Path, row.Used, row.Size, row.Paths, row.Keys = use.Path, use.Used, use.Size, use.Paths, use.Keys
				}
			}
			shown.Levels = append(shown.Levels, row)
		}
	}
	add(rules.Tree, uses)
	if rules.Shadow != nil {
		add(rules.Shadow, nil)
	}
	return shown
}

// rows lists the levels in force, and the shadow limits that differ from them.
func (s shownLimits) rows(used map[string]string) [][]string {
	rows := [][]string{{"LEVEL", "LIMIT", "FROM", "USED"}}
	for _, level := range s.Levels {
		name := level.Level
		if level.Shadow {
			name = "shadow " + name
			if slices.ContainsFunc(s.Levels, func(other shownLevel) bool {
				return !other.Shadow && other.Level == level.Level && other.Limit == level.Limit
			}) {
				continue
			}
		}
		rows = append(rows, []string{name, level.Limit, origin(level.From, level.Until), used[name]})
	}
	return rows
}

// usage returns the use of each level, and the position of the limits that Redis has in force.
func (l *limitsCommand) usage(ctx context.Context, tree *limits.Tree) (levels []store.LevelUse, inForce limits.Position, err error) {
	err = l.withStore(tree, func(shared *store.Redis) (err error) {
		var reported []string
		if l.theirs.reportUse() {
			reported = l.theirs.categories()
		}
		if levels, err = shared.Readings.LevelUsage(ctx, reported); err == nil {
			inForce, _, err = shared.Positions.InForce(ctx)
		}
		return err
	})
	return levels, inForce, err
}

// unseenLevels names the levels whose use is not known, since the user may not look for their paths or keys; "" if there is none.
func unseenLevels(uses []store.LevelUse) string {
	var unseen []string
	for _, use := range uses {
		if use.Unknown {
			unseen = append(unseen, use.Level)
		}
	}
	if len(unseen) == 0 {
		return ""
	}
	return "what is used of " + strings.Join(unseen, ", ") + " is not known: the Redis user may not SCAN"
}

// wordsOf returns the use in words, by level. A level of many paths shows its fullest path, a level of each key the number of keys.
func wordsOf(levels []store.LevelUse) map[string]string {
	words := make(map[string]string, len(levels))
	for _, level := range levels {
		if level.Unknown {
			words[level.Level] = notKnownText
			continue
		}
		if level.OfKeys {
			words[level.Level] = screen.Numbered(level.Keys, "key", "keys") + " in use"
			continue
		}
		text := fmt.Sprintf("%d of %d", level.Used, level.Size)
		if level.Paths > 1 || level.Path != "" && level.Path != level.Level {
			text += " (" + level.Path + ")"
		}
		if level.Paths > 1 {
			text += fmt.Sprintf(", %d paths in use", level.Paths)
		}
		words[level.Level] = text
	}
	return words
}

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
