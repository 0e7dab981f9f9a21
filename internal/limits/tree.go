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
	Key    string // of the node of a key: the hash of the key, see HashOfKey; "" for the node of a path
	Level  string // the rule that sets the limits: global, category or the configured pattern, with "@key" for a rule of each key
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

// Origin is where a rule's limits come from.
type Origin string

// The origins.
const (
	FromDefault     Origin = "default"
	FromEnvironment Origin = "environment"
	FromLive        Origin = "live"
)

// Guarantee is slots of each global window that belong to one path.
type Guarantee = algorithm.Guarantee

// Tree knows which limits apply to a category. It is immutable and safe for concurrent use.
type Tree struct {
	global     Limits
	category   Limits
	rules      event.Table[Limits]
	keyRules   event.Table[Limits] // the rules that limit each key
	guarantees []Guarantee
	origins    map[string]Origin
}

// NewTree builds the tree. The error names a duplicate rule or the impossible guarantees.
func NewTree(p Plan) (*Tree, error) {
	var ofPaths, ofKeys []event.Entry[Limits]
	for _, rule := range p.Rules {
		entry := event.Entry[Limits]{Pattern: rule.Pattern, Value: rule.Limits}
		if rule.EachKey {
			ofKeys = append(ofKeys, entry)
		} else {
			ofPaths = append(ofPaths, entry)
		}
	}
	rules, err := event.NewTable(ofPaths)
	if err != nil {
		return nil, fmt.Errorf("limit rules: %w", err)
	}
	keyRules, err := event.NewTable(ofKeys)
	if err != nil {
		return nil, fmt.Errorf("limit rules of each key: %w", err)
	}
	if err := CheckGuarantees(p.Global, p.Guarantees); err != nil {
		return nil, err
	}
	return &Tree{
		global: p.Global, category: p.Category, rules: rules, keyRules: keyRules,
		guarantees: p.Guarantees, origins: p.Origins,
	}, nil
}

// Origin returns where the limits of a level come from; "" if the plan did not say.
func (t *Tree) Origin(level string) Origin { return t.origins[level] }

// Guarantees lists the guarantees as configured.
func (t *Tree) Guarantees() []Guarantee { return slices.Clone(t.guarantees) }

// GuaranteeOf returns the most specific guaranteed path at or above a category; "" if there is none. The slots of its guarantee belong to
// the category's events.
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
func (t *Tree) Path(category string) []Node { return t.PathOfKey(category, "") }

// PathOfKey is Path for the events of a key, given by its hash. If a rule limits each key of a path, the node of the key follows the node
// of the path.
func (t *Tree) PathOfKey(category, hash string) []Node {
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
		if hash == "" {
			continue
		}
		if ofKey, found := t.KeyRule(node.Path); found {
			ofKey.Key = hash
			path = append(path, ofKey)
		}
	}
	return path
}

// Considered is a rule that matches a category or a path above it.
type Considered struct {
	Path   string // that the rule matches; "" for the root
	Level  string
	OfKey  bool   // it limits each key of the path
	Limits Limits // empty: the rule sets no limit
	Wins   bool   // its limits apply to the path, or to each key of it: it is the most specific rule
}

// Considered lists the rules for each path of a category, from the root down.
func (t *Tree) Considered(category string) []Considered {
	considered := []Considered{{Level: LevelGlobal, Limits: t.global, Wins: true}}
	for prefix := range event.Prefixes(category) {
		if _, found := t.rules.Lookup(prefix); !strings.Contains(prefix, ".") {
			considered = append(considered, Considered{Path: prefix, Level: LevelCategory, Limits: t.category, Wins: !found})
		}
		consider := func(rules event.Table[Limits], suffix string) {
			winner, _ := rules.Lookup(prefix)
			for _, entry := range rules.Entries() {
				if entry.Pattern.Matches(prefix) {
					considered = append(considered, Considered{
						Path: prefix, Level: entry.Pattern.String() + suffix, OfKey: suffix != "", Limits: entry.Value,
						Wins: entry.Pattern == winner.Pattern,
					})
				}
			}
		}
		consider(t.rules, "")
		consider(t.keyRules, eachKey)
	}
	return considered
}

// Levels lists every rule that can deny, in configuration order. A nil tree has none.
func (t *Tree) Levels() []Node {
	return slices.DeleteFunc(t.AllLevels(), func(n Node) bool { return len(n.Limits) == 0 })
}

// AllLevels lists every rule, including rules without a limit: global, category, the patterns, then the rules of each key. The paths are
// empty.
func (t *Tree) AllLevels() []Node {
	if t == nil {
		return nil
	}
	levels := []Node{{Level: LevelGlobal, Limits: t.global}, {Level: LevelCategory, Limits: t.category}}
	for _, entry := range t.rules.Entries() {
		levels = append(levels, Node{Level: entry.Pattern.String(), Limits: entry.Value})
	}
	for _, entry := range t.keyRules.Entries() {
		levels = append(levels, Node{Level: entry.Pattern.String() + eachKey, Limits: entry.Value})
	}
	return levels
}

// LongestWindow returns the longest window of any rule; 0 if there is no limit.
func (t *Tree) LongestWindow() time.Duration {
	var longest time.Duration
	for _, node := range t.Levels() {
		for _, limit := range node.Limits {
			longest = max(longest, limit.Window)
		}
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
	for _, entry := range t.keyRules.Entries() {
		indent := strings.Repeat("  ", entry.Pattern.Depth())
		fmt.Fprintf(&text, "%s%s%s  %s (each key)\n", indent, entry.Pattern, eachKey, entry.Value)
	}
	return text.String()
}
