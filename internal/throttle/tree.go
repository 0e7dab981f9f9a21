package throttle

import (
	"fmt"
	"strings"
	"sync"
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

// Tree tells which limits apply to a category. It is immutable and safe for concurrent use.
type Tree struct {
	global   Limits
	category Limits
	rules    event.Table[Limits]

	mu    sync.RWMutex
	paths map[string][]Node // a cache of Path, bounded by maxCachedPaths
}

// maxCachedPaths bounds what producers of ever new categories can make a worker remember: about 1 MB.
const maxCachedPaths = 4096

// NewTree builds the tree. The error names a rule given twice.
func NewTree(global, category Limits, rules []Rule) (*Tree, error) {
	entries := make([]event.Entry[Limits], len(rules))
	for i, rule := range rules {
		entries[i] = event.Entry[Limits]{Pattern: rule.Pattern, Value: rule.Limits}
	}
	table, err := event.NewTable(entries)
	if err != nil {
		return nil, fmt.Errorf("limit rules: %w", err)
	}
	return &Tree{global: global, category: category, rules: table, paths: make(map[string][]Node)}, nil
}

// Path lists the nodes with limits on a category's path, the root first; of "", the root alone. The caller must not
// change it.
func (t *Tree) Path(category string) []Node {
	t.mu.RLock()
	path, cached := t.paths[category]
	t.mu.RUnlock()
	if cached {
		return path
	}
	path = t.path(category)
	t.mu.Lock()
	if len(t.paths) >= maxCachedPaths {
		clear(t.paths)
	}
	t.paths[strings.Clone(category)] = path
	t.mu.Unlock()
	return path
}

func (t *Tree) path(category string) []Node {
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
	levels := []Node{}
	add := func(level string, limits Limits) {
		if len(limits) > 0 {
			levels = append(levels, Node{Level: level, Limits: limits})
		}
	}
	add(LevelGlobal, t.global)
	add(LevelCategory, t.category)
	for _, entry := range t.rules.Entries() {
		add(entry.Pattern.String(), entry.Value)
	}
	return levels
}

// LongestWindow is the longest window of any rule, 0 if there is none.
func (t *Tree) LongestWindow() time.Duration {
	var longest time.Duration
	for _, node := range t.Levels() {
		longest = max(longest, node.Limits.longestWindow())
	}
	return longest
}

func (l Limits) longestWindow() time.Duration {
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
