package limits

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
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
	Level  string // the rule that sets the limits: global, category or the configured pattern
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

// Guarantee is slots of each global window that belong to one path.
type Guarantee = algorithm.Guarantee

// Tree tells which limits apply to a category. It is immutable and safe for concurrent use.
type Tree struct {
	global     Limits
	category   Limits
	rules      event.Table[Limits]
	guarantees []Guarantee
	origins    map[string]Origin
}

// NewTree builds the tree. The error names a duplicate rule or the impossible guarantees.
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

// GuaranteeOf is the most specific guaranteed path at or above a category, "" if there is none. The slots of its guarantee belong to the
// category's events.
func (t *Tree) GuaranteeOf(category string) string {
	found := ""
	for prefix := range event.Prefixes(category) {
		for _, guarantee := range t.guarantees {
			if guarantee.Path == prefix {
				found = guarantee.Path
			}
		}
	}
	return found
}

// Path lists the nodes with limits on a category's path, the root first; of "", the root alone. Each call makes a new list, which holds
// no reference to the category.
func (t *Tree) Path(category string) []Node {
	var path []Node
	if len(t.global) > 0 {
		path = append(path, Node{Level: LevelGlobal, Limits: t.global})
	}
	if category == "" {
		return path
	}
	for prefix := range event.Prefixes(category) {
		node := Node{Path: strings.Clone(prefix)}
		if entry, found := t.rules.Lookup(prefix); found {
			node.Level, node.Limits = entry.Pattern.String(), entry.Value
		} else if !strings.Contains(prefix, ".") {
			node.Level, node.Limits = LevelCategory, t.category
		}
		if len(node.Limits) > 0 {
			path = append(path, node)
		}
	}
	return path
}

// Considered is a rule that matches a category or a path above it.
type Considered struct {
	Path   string // that the rule matches; "" for the root
	Level  string
	Limits Limits // empty: the rule sets no limit
	Wins   bool   // it gives the path its limits; of several rules the most specific one does
}

// Considered lists the rules for each path of a category, from the root down.
func (t *Tree) Considered(category string) []Considered {
	considered := []Considered{{Level: LevelGlobal, Limits: t.global, Wins: true}}
	for prefix := range event.Prefixes(category) {
		winner, found := t.rules.Lookup(prefix)
		if !strings.Contains(prefix, ".") {
			considered = append(considered, Considered{Path: prefix, Level: LevelCategory, Limits: t.category, Wins: !found})
		}
		for _, entry := range t.rules.Entries() {
			if entry.Pattern.Matches(prefix) {
				level := entry.Pattern.String()
				considered = append(considered, Considered{
					Path: prefix, Level: level, Limits: entry.Value, Wins: level == winner.Pattern.String(),
				})
			}
		}
	}
	return considered
}

// Levels lists every rule that can deny, in configuration order. A nil tree has none.
func (t *Tree) Levels() []Node {
	return slices.DeleteFunc(t.AllLevels(), func(n Node) bool { return len(n.Limits) == 0 })
}

// AllLevels lists every rule, including rules without a limit: global, category, then the patterns. The paths are empty.
func (t *Tree) AllLevels() []Node {
	if t == nil {
		return nil
	}
	levels := []Node{{Level: LevelGlobal, Limits: t.global}, {Level: LevelCategory, Limits: t.category}}
	for _, entry := range t.rules.Entries() {
		levels = append(levels, Node{Level: entry.Pattern.String(), Limits: entry.Value})
	}
	return levels
}

// Patterns lists the patterns of the rules, in the order of AllLevels.
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
