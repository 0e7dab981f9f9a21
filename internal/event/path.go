package event

import (
	"errors"
	"fmt"
	"iter"
	"strings"
)

// Default is the category of an event without a category in its subject and body.
const Default = "default"

// Bounds of a category path. They limit the length of keys, labels and log lines, and a decision to MaxTokens limits below the global
// limit.
const (
	MaxTokens    = 8
	MaxPathBytes = 128
)

// wildcard is the token of a Pattern for any one token. It sorts before every byte of a category, which Pattern.Compare relies on.
const wildcard = "*"

// ValidatePath returns nil if path is a category: one to MaxTokens tokens of [a-z0-9_-], separated by dots, at most MaxPathBytes bytes in
// all. The error describes the fault, with at most a short excerpt of path.
func ValidatePath(path string) error {
	if err := validateTokens(path, validateToken); err != nil {
		return fmt.Errorf("category %s %w", excerpt(path), err)
	}
	return nil
}

// Prefixes yields the paths from the first level down to path itself: "payments", "payments.refunds" and "payments.refunds.failed" for
// "payments.refunds.failed". Each is a slice of path; path must be a category.
func Prefixes(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range len(path) {
			if path[i] == '.' && !yield(path[:i]) {
				return
			}
		}
		yield(path)
	}
}

// NoLevel is the first level of an unknown category.
const NoLevel = "_"

// IsBelow reports whether a category is the path or lies below it. Every category lies below the empty path.
func IsBelow(category, path string) bool {
	rest, isPrefix := strings.CutPrefix(category, path)
	return isPrefix && (path == "" || rest == "" || rest[0] == '.')
}

// FirstLevel returns the first level of a category, NoLevel for "".
func FirstLevel(category string) string {
	if category == "" {
		return NoLevel
	}
	first, _, _ := strings.Cut(category, ".")
	return first
}

// FirstLevelOf returns the first level of the subject's category, even if the levels below are invalid: the permissions of a producer bind
// the first level. It returns NoLevel for the bare prefix.
func (d Decoder) FirstLevelOf(subject string) string {
	rest, below := strings.CutPrefix(subject, d.Prefix+".")
	first, _, _ := strings.Cut(rest, ".")
	if first = lowerASCII(first); !below || ValidatePath(first) != nil {
		return NoLevel
	}
	return first
}

// validateTokens checks a category path or a pattern, whose tokens are checked by validate. The error is a predicate that completes a
// sentence about text.
func validateTokens(text string, validate func(token string) error) error {
	if text == "" {
		return errors.New("is empty")
	}
	if len(text) > MaxPathBytes {
		return fmt.Errorf("is %d bytes long; at most %d are allowed", len(text), MaxPathBytes)
	}
	if levels := strings.Count(text, ".") + 1; levels > MaxTokens {
		return fmt.Errorf("has %d levels; at most %d are allowed", levels, MaxTokens)
	}
	for token := range strings.SplitSeq(text, ".") {
		if token == "" {
			return errors.New("has an empty level")
		}
		if err := validate(token); err != nil {
			return err
		}
	}
	return nil
}

// validateWildcard checks a token of a pattern.
func validateWildcard(token string) error {
	if token != wildcard && strings.Contains(token, wildcard) {
		return errors.New("holds a '*' beside other characters; it stands for a whole level only")
	}
	return validateToken(strings.TrimPrefix(token, wildcard))
}

func validateToken(token string) error {
	for i := range len(token) {
		switch c := token[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '-':
		case 'A' <= c && c <= 'Z':
			return errors.New("holds an upper-case letter; write it in lower case")
		default:
			return errors.New("may hold only a-z, 0-9, '_' and '-' in each level")
		}
	}
	return nil
}

// lowerASCII converts only A-Z to lower case: Unicode folding would turn some characters outside ASCII, such as the Kelvin sign, into valid
// ones. It allocates only if a character changes.
func lowerASCII(s string) string {
	if !strings.ContainsFunc(s, isUpperASCII) {
		return s
	}
	lower := []byte(s)
	for i, c := range lower {
		if isUpperASCII(rune(c)) {
			lower[i] += 'a' - 'A'
		}
	}
	return string(lower)
}

func isUpperASCII(r rune) bool { return 'A' <= r && r <= 'Z' }
