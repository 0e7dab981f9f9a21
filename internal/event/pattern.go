package event

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Pattern is a category path whose tokens may be "*", which matches any one token. Patterns are comparable with ==. The zero Pattern has no
// tokens and matches nothing.
type Pattern struct{ text string }

// Everything stands for all categories, where a path with everything below it is expected.
const Everything = ">"

// ParsePattern reads a pattern such as "payments.*.failed". An upper-case letter is a fault, because no category could match it.
func ParsePattern(text string) (Pattern, error) {
	if err := validateTokens(text, validateWildcard); err != nil {
		return Pattern{}, fmt.Errorf("pattern %s %w", excerpt(text), err)
	}
	return Pattern{text}, nil
}

// String returns the text of the pattern.
func (p Pattern) String() string { return p.text }

// Depth returns the number of tokens, 0 for the zero Pattern.
func (p Pattern) Depth() int { return depth(p.text) }

// Matches reports whether path has the number of tokens of the pattern and all literal tokens of the pattern in their places. path must be
// a category.
func (p Pattern) Matches(path string) bool {
	if p.text == "" {
		return false
	}
	pattern, more := p.text, true
	for more {
		var token, want string
		var moreTokens bool
		want, pattern, more = strings.Cut(pattern, ".")
		token, path, moreTokens = strings.Cut(path, ".")
		if more != moreTokens || want != wildcard && want != token {
			return false
		}
	}
	return true
}

// Compare orders patterns of one depth by specificity: more literal tokens first; then a first literal token further left; then by text.
// Patterns of different depths never match one path; fewer tokens come first. The result is 0 only for equal patterns.
func (p Pattern) Compare(q Pattern) int {
	return cmp.Or(
		cmp.Compare(p.Depth(), q.Depth()),
		cmp.Compare(p.wildcards(), q.wildcards()),
		cmp.Compare(p.firstLiteral(), q.firstLiteral()),
		cmp.Compare(p.text, q.text),
	)
}

// wildcards counts the wildcard tokens; a valid pattern has no other '*'.
func (p Pattern) wildcards() int { return strings.Count(p.text, wildcard) }

// firstLiteral returns the place of the first literal token, counted from 0. Each wildcard before it is two bytes long, with its dot.
func (p Pattern) firstLiteral() int {
	literal := strings.TrimLeft(p.text, "*.")
	return (len(p.text) - len(literal)) / 2
}

func depth(path string) int {
	if path == "" {
		return 0
	}
	return strings.Count(path, ".") + 1
}

// Entry is a pattern and its value in a Table.
type Entry[T any] struct {
	Pattern Pattern
	Value   T
}

// Table finds the most specific pattern for a category path. It never changes, so any number of goroutines may use it at once. The zero
// Table is empty.
type Table[T any] struct {
	entries []Entry[T]
	exact   map[string]int       // path -> place in entries
	wild    [MaxTokens + 1][]int // depth -> places in entries, the most specific first
}

// NewTable builds a Table. A duplicate pattern is an error, and so is the zero Pattern; all such errors are joined.
func NewTable[T any](entries []Entry[T]) (Table[T], error) {
	texts := make([]string, len(entries))
	for i, entry := range entries {
		texts[i] = entry.Pattern.text
	}
	if err := checkOnce("pattern", texts); err != nil {
		return Table[T]{}, err
	}
	t := Table[T]{entries: slices.Clone(entries), exact: make(map[string]int, len(entries))}
	for i, entry := range t.entries {
		if p := entry.Pattern; p.wildcards() == 0 {
			t.exact[p.text] = i
		} else {
			t.wild[p.Depth()] = append(t.wild[p.Depth()], i)
		}
	}
	for _, places := range t.wild {
		slices.SortFunc(places, func(a, b int) int {
			return t.entries[a].Pattern.Compare(t.entries[b].Pattern)
		})
	}
	return t, nil
}

// checkOnce returns an error for each empty and each duplicate text.
func checkOnce(kind string, texts []string) error {
	count := make(map[string]int, len(texts))
	var faults []error
	for _, text := range texts {
		count[text]++
		switch {
		case text == "":
			faults = append(faults, fmt.Errorf("a %s is empty", kind))
		case count[text] == 2:
			faults = append(faults, fmt.Errorf("%s %s is given twice", kind, excerpt(text)))
		}
	}
	return errors.Join(faults...)
}

// Lookup returns the entry of the most specific pattern that matches path as a whole: the path itself or the first match in the order of
// Pattern.Compare. Its time grows with the number of wildcard patterns of that depth.
func (t Table[T]) Lookup(path string) (Entry[T], bool) {
	if i, ok := t.exact[path]; ok {
		return t.entries[i], true
	}
	if d := depth(path); d <= MaxTokens {
		for _, i := range t.wild[d] {
			if t.entries[i].Pattern.Matches(path) {
				return t.entries[i], true
			}
		}
	}
	return Entry[T]{}, false
}

// Nearest returns the result of Lookup for path or for its longest prefix with a result.
func (t Table[T]) Nearest(path string) (Entry[T], bool) {
	for {
		if entry, ok := t.Lookup(path); ok {
			return entry, true
		}
		dot := strings.LastIndexByte(path, '.')
		if dot < 0 {
			return Entry[T]{}, false
		}
		path = path[:dot]
	}
}

// Entries returns a copy of the entries in the order given.
func (t Table[T]) Entries() []Entry[T] { return slices.Clone(t.entries) }
