package limits

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Names of the two rules that every tree has. They are levels of a denial, never paths.
const (
	LevelGlobal   = "global"
	LevelCategory = "category"
)

// Node is one place on an event's path that has limits.
type Node struct {
	Path   string // "" for the root
	Level  string // the rule that gives the limits: global, category, or the pattern as configured
	Limits Limits // never empty
}

// Plan is what a tree is built from.
type Plan struct {
	Global     Limits
	Category   Limits // of each first-level category that no rule matches
	Rules      []Rule
	Guarantees []Guarantee
	Origins    map[string]Origin // of the rules, by level; for people
}

// Origin tells where a rule's limits come from.
type Origin string

// The origins.
const (
	FromDefault     Origin = "default"
	FromEnvironment Origin = "environment"
	FromLive        Origin = "live"
)

// Guarantee is slots of each global window that belong to a path and what is below it: nobody else takes them. An event
// belongs to the most specific guarantee on its path.
type Guarantee struct {
	Path  string
	Slots int64
}

// Tree tells which limits apply to a category. It is immutable and safe for concurrent use.
type Tree struct {
	global     Limits
	category   Limits
	rules      event.Table[Limits]
	guarantees []Guarantee
	origins    map[string]Origin
}

// NewTree builds the tree. The error names a rule that is given twice, or guarantees that cannot be kept.
func NewTree(p Plan) (*Tree, error) {
	entries := make([]event.Entry[Limits], len(p.Rules))
	for i, rule := range p.Rules {
		entries[i] = event.Entry[Limits]{Pattern: rule.Pattern, Value: rule.Limits}
	}
	table, err := event.NewTable(entries)
	if err != nil {
		return nil, fmt.Errorf("limit rules: %w", err)
	}
	if err := CheckGuarantees(p.Global, p.Guarantees); err != nil {
		return nil, err
	}
	return &Tree{global: p.Global, category: p.Category, rules: table, guarantees: p.Guarantees, origins: p.Origins}, nil
}

// Origin tells where the limits of a level come from, "" if the plan did not say.
func (t *Tree) Origin(level string) Origin { return t.origins[level] }

// Guarantees lists the guarantees as configured.
func (t *Tree) Guarantees() []Guarantee { return slices.Clone(t.guarantees) }

// GuaranteeOf is the most specific path above or at a category that a guarantee names, "" if there is none. The slots of
// that guarantee belong to the category's events.
func (t *Tree) GuaranteeOf(category string) string {
	found := ""
	if category == "" {
		return found
	}
	for prefix := range event.Prefixes(category) {
		for _, guarantee := range t.guarantees {
			if guarantee.Path == prefix {
				found = guarantee.Path
			}
		}
	}
	return found
}

// Path lists the nodes with limits on a category's path, the root first; of "", the root alone. Each call makes the list
// anew, and the list holds no reference to the category.
func (t *Tree) Path(category string) []Node {
	var path []Node
	if len(t.global) > 0 {
		path = append(path, Node{Level: LevelGlobal, Limits: t.global})
	}
	if category == "" {
		return path
	}
	first := true
	for prefix := range event.Prefixes(category) {
		level, limits := "", Limits(nil)
		if entry, found := t.rules.Lookup(prefix); found {
			level, limits = entry.Pattern.String(), entry.Value
		} else if first {
			level, limits = LevelCategory, t.category
		}
		if len(limits) > 0 {
			path = append(path, Node{Path: strings.Clone(prefix), Level: level, Limits: limits})
		}
		first = false
	}
	return path
}

// Levels lists every rule that can deny, in the order in which they are configured.
func (t *Tree) Levels() []Node {
	return slices.DeleteFunc(t.AllLevels(), func(n Node) bool { return len(n.Limits) == 0 })
}

// AllLevels lists every rule, those that set no limit too: global, category, and then the others. The paths are empty.
func (t *Tree) AllLevels() []Node {
	levels := []Node{{Level: LevelGlobal, Limits: t.global}, {Level: LevelCategory, Limits: t.category}}
	for _, entry := range t.rules.Entries() {
		levels = append(levels, Node{Level: entry.Pattern.String(), Limits: entry.Value})
	}
	return levels
}

// Patterns lists the patterns of the rules in the order of AllLevels, without the two rules that every tree has.
func (t *Tree) Patterns() []event.Pattern {
	entries := t.rules.Entries()
	patterns := make([]event.Pattern, len(entries))
	for i, entry := range entries {
		patterns[i] = entry.Pattern
	}
	return patterns
}

// LongestWindow is the longest window of any rule, 0 if there is no limit.
func (t *Tree) LongestWindow() time.Duration {
	var longest time.Duration
	for _, node := range t.Levels() {
		longest = max(longest, node.Limits.LongestWindow())
	}
	return longest
}

// LongestWindow is the longest window of the limits, 0 if there is none.
func (l Limits) LongestWindow() time.Duration {
	var longest time.Duration
	for _, limit := range l {
		longest = max(longest, limit.Window)
	}
	return longest
}

// String draws the tree's rules, one line each, as `notifier check` prints it.
func (t *Tree) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "global    %s\ncategory  %s (each first-level category without a rule of its own)\n", t.global, t.category)
	for _, entry := range t.rules.Entries() {
		indent := strings.Repeat("  ", entry.Pattern.Depth())
		fmt.Fprintf(&text, "%s%s  %s\n", indent, entry.Pattern, entry.Value)
	}
	return text.String()
}
