package event

import (
	"fmt"
	"slices"
	"strings"
)

// below is the last token of a Scope for all categories below the preceding tokens.
const below = ">"

// Scope is a set of categories: the categories of a Pattern, such as "payments.*", or everything below them without themselves, such as
// "payments.>". ">" is every category. Scopes are comparable with ==. The zero Scope is empty.
type Scope struct {
	pattern Pattern
	below   bool
}

// ParseScope reads a scope: a pattern, a pattern with ".>" after it or ">".
func ParseScope(text string) (Scope, error) {
	if text == below {
		return Scope{below: true}, nil
	}
	above, isBelow := strings.CutSuffix(text, "."+below)
	if err := validateTokens(above, validateWildcard); err != nil {
		return Scope{}, fmt.Errorf("scope %s %w", excerpt(text), err)
	}
	if isBelow && depth(above) == MaxTokens {
		return Scope{}, fmt.Errorf("scope %s is empty: no category has more than %d levels", excerpt(text), MaxTokens)
	}
	return Scope{Pattern{above}, isBelow}, nil
}

// String returns the text of the scope.
func (s Scope) String() string {
	switch {
	case !s.below:
		return s.pattern.text
	case s.pattern.text == "":
		return below
	default:
		return s.pattern.text + "." + below
	}
}

// ScopeEntry is a scope and its value in a Scopes.
type ScopeEntry[T any] struct {
	Scope Scope
	Value T
}

// Scopes finds the most specific scope of a category. It never changes, so any number of goroutines may use it at once. The zero Scopes is
// empty.
type Scopes[T any] struct {
	entries []ScopeEntry[T]
	alone   Table[T]
	below   Table[T]
	every   *T // of the scope ">"
}

// NewScopes builds a Scopes. A duplicate scope is an error, and so is the zero Scope; all such errors are joined.
func NewScopes[T any](entries []ScopeEntry[T]) (Scopes[T], error) {
	texts := make([]string, len(entries))
	for i, entry := range entries {
		texts[i] = entry.Scope.String()
	}
	if err := checkOnce("scope", texts); err != nil {
		return Scopes[T]{}, err
	}
	s := Scopes[T]{entries: slices.Clone(entries)}
	var alone, beneath []Entry[T]
	for i, entry := range s.entries {
		switch table := (Entry[T]{entry.Scope.pattern, entry.Value}); {
		case entry.Scope.String() == below:
			s.every = &s.entries[i].Value
		case entry.Scope.below:
			beneath = append(beneath, table)
		default:
			alone = append(alone, table)
		}
	}
	s.alone, _ = NewTable(alone) // the scopes have been checked
	s.below, _ = NewTable(beneath)
	return s, nil
}

// Lookup returns the value of the most specific scope of category: a scope that matches the whole category or the deepest scope above it,
// each in the order of Pattern.Compare.
func (s Scopes[T]) Lookup(category string) (value T, ok bool) {
	if entry, ok := s.alone.Lookup(category); ok {
		return entry.Value, true
	}
	if dot := strings.LastIndexByte(category, '.'); dot >= 0 {
		if entry, ok := s.below.Nearest(category[:dot]); ok {
			return entry.Value, true
		}
	}
	if s.every != nil {
		return *s.every, true
	}
	return value, false
}

// Entries returns a copy of the entries in the order given.
func (s Scopes[T]) Entries() []ScopeEntry[T] { return slices.Clone(s.entries) }
