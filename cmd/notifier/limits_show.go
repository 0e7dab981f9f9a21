package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// shownLimits is what the command prints, and its form in JSON.
type shownLimits struct {
	Workers    int           `json:"workers"` // whose limits these are; 0: they are those of the settings here
	Generation int64         `json:"generation"`
	Revision   uint64        `json:"revision"`
	Levels     []shownLevel  `json:"levels"`
	Path       []shownOnPath `json:"path,omitempty"` // if the limits of a path were asked for
}

type shownLevel struct {
	Level  string    `json:"level"`
	Limit  string    `json:"limit"`
	From   string    `json:"from"`
	Until  time.Time `json:"until,omitzero"` // when the live limit ends by itself
	Shadow bool      `json:"shadow,omitempty"`
	Used   int64     `json:"used"`
	Size   int64     `json:"size"`
	Paths  int       `json:"paths_in_use"`
}

func (l *limitsCommand) show(ctx context.Context, arguments []string) error {
	s, rules, err := l.inForce(ctx)
	if err != nil {
		return err
	}
	l.ends = endsOf(s)
	if len(arguments) > 0 {
		return l.showPath(ctx, rules, arguments[0])
	}
	uses, inForce, problem := l.usage(ctx, rules.Tree)
	if l.asJSON {
		if err := writeJSON(l.out, l.shown(rules, uses)); err != nil {
			return err
		}
		return notKnown(problem)
	}
	if err := printTable(l.out, l.levelRows(rules, wordsOf(uses))); err != nil {
		return err
	}
	for _, guarantee := range rules.Tree.Guarantees() {
		_, _ = fmt.Fprintf(l.out, "%d slots of each global window belong to %s\n", guarantee.Slots, guarantee.Path)
	}
	if err := l.live.Unreadable(); err != nil {
		_, _ = fmt.Fprintf(l.out, "a worker that starts takes no events: %v\n", err)
	}
	for _, entry := range s.Entries {
		if entry.Lost {
			continue
		}
		if _, err := l.live.Check(liveEntry(entry)); err != nil {
			_, _ = fmt.Fprintf(l.out, "workers ignore what %s is set to in revision %d, and keep its last good limit: %v\n",
				entry.Name, entry.Revision, err)
		}
	}
	if l.bucket == nil {
		_, _ = fmt.Fprintf(l.out, "the bucket %s is absent: nothing can be changed while workers run\n", l.settings.Limits.Bucket)
	} else {
		_, _ = fmt.Fprintf(l.out, "revision %d of the bucket %s\n", s.Revision, l.settings.Limits.Bucket)
	}
	l.warnOfNewer(s, inForce)
	_, _ = fmt.Fprintln(l.out, l.source())
	return notKnown(problem)
}

// warnOfNewer reports that Redis knows newer limits than the bucket holds, as after a restore of NATS.
func (l *limitsCommand) warnOfNewer(s overrides.Snapshot, inForce limits.Position) {
	if position(s).Before(inForce) {
		_, _ = fmt.Fprintf(l.out, "workers that read this take no events, since newer limits are in force: %s; see limits adopt\n", inForce)
	}
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

// origin says where a level's limit comes from, and when it ends.
func (l *limitsCommand) origin(tree *limits.Tree, level string, shadow bool) string {
	text := string(tree.Origin(level))
	if end, has := l.ends[overrides.Name{Pattern: level, Shadow: shadow}]; has {
		text += " until " + zoned(end)
	}
	return text
}

// source says whose limits are shown.
func (l *limitsCommand) source() string {
	switch l.workers {
	case 0:
		return "no worker answers: these are the limits of the settings here"
	case 1:
		return "these are the limits of the running worker"
	default:
		return fmt.Sprintf("these are the limits of %d running workers", l.workers)
	}
}

// notKnown is the failure of a command that could not ask what is used.
func notKnown(problem error) error {
	if problem == nil {
		return nil
	}
	return fmt.Errorf("what is used is not known: redis: %s", explainRedis(problem))
}

func (l *limitsCommand) shown(rules limits.Ruleset, uses []throttle.LevelUse) shownLimits {
	shown := shownLimits{Workers: l.workers, Generation: rules.Position.Generation, Revision: rules.Position.Revision}
	add := func(tree *limits.Tree, isShadow bool, uses []throttle.LevelUse) {
		for _, level := range tree.AllLevels() {
			told := shownLevel{
				Level: level.Level, Limit: level.Limits.String(), From: string(tree.Origin(level.Level)), Shadow: isShadow,
				Until: l.ends[overrides.Name{Pattern: level.Level, Shadow: isShadow}],
			}
			for _, use := range uses {
				if use.Level == level.Level {
					told.Used, told.Size, told.Paths = use.Used, use.Limit.Capacity(), use.Paths
				}
			}
			shown.Levels = append(shown.Levels, told)
		}
	}
	add(rules.Tree, false, uses)
	if rules.Shadow != nil {
		add(rules.Shadow, true, nil)
	}
	return shown
}

// levelRows lists the levels in force, and the shadow limits that differ from them.
func (l *limitsCommand) levelRows(rules limits.Ruleset, used map[string]string) [][]string {
	rows := [][]string{{"LEVEL", "LIMIT", "FROM", "USED"}}
	for _, level := range rules.Tree.AllLevels() {
		rows = append(rows, []string{level.Level, level.Limits.String(), l.origin(rules.Tree, level.Level, false), used[level.Level]})
	}
	if rules.Shadow == nil {
		return rows
	}
	for _, level := range rules.Shadow.Levels() {
		if !slices.ContainsFunc(rules.Tree.Levels(), func(n limits.Node) bool {
			return n.Level == level.Level && n.Limits.String() == level.Limits.String()
		}) {
			rows = append(rows, []string{"shadow " + level.Level, level.Limits.String(), l.origin(rules.Shadow, level.Level, true), ""})
		}
	}
	return rows
}

// usage tells what is used of each level, and which limits Redis knows to be in force.
func (l *limitsCommand) usage(ctx context.Context, tree *limits.Tree) (levels []throttle.LevelUse, inForce limits.Position, err error) {
	err = l.withStore(tree, func(store *throttle.Redis) (err error) {
		if levels, err = store.LevelUsage(ctx); err == nil {
			inForce, _, err = store.InForce(ctx)
		}
		return err
	})
	return levels, inForce, err
}

// wordsOf tells by level what is used. A level that covers many paths shows its fullest one.
func wordsOf(levels []throttle.LevelUse) map[string]string {
	words := make(map[string]string, len(levels))
	for _, level := range levels {
		text := fmt.Sprintf("%d of %d", level.Used, level.Limit.Capacity())
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
