package overrides

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrName means that a name is not valid for a limit. For a key, it means that the key names no limit.
var ErrName = errors.New("not the name of a limit")

// NATS reserves "*", so keys have "=" instead.
const (
	wildcard    = "*"
	keyWildcard = "="
	keyShadow   = "shadow/"
)

// keyAdopted is the key of the history's notes about adoptions. No limit has this key.
const keyAdopted = "state/adopted"

var patternForm = regexp.MustCompile(`^([a-z0-9_-]+|\*)(\.([a-z0-9_-]+|\*))*$`)

// Name identifies the limit of an override.
type Name struct {
	Pattern string // global, category or a path; levels of [a-z0-9_-] or "*", joined with dots
	Shadow  bool   // a shadow limit; these are a separate set
}

// String returns the pattern, with "shadow " before it for a shadow limit.
func (n Name) String() string {
	if n.Shadow {
		return "shadow " + n.Pattern
	}
	return n.Pattern
}

// Compare orders names: enforced limits before shadow limits, each by pattern.
func (n Name) Compare(m Name) int {
	switch {
	case n.Shadow == m.Shadow:
		return cmp.Compare(n.Pattern, m.Pattern)
	case m.Shadow:
		return -1
	}
	return 1
}

// Key returns the bucket's key of the limit: payments.= for payments.*, and shadow/payments.= for its shadow. It returns [ErrName] for an
// invalid name.
func (n Name) Key() (string, error) {
	if !patternForm.MatchString(n.Pattern) {
		return "", fmt.Errorf("%w: %.100q (expected levels of a-z, 0-9, '_' and '-', or '*', joined with dots)", ErrName, n.Pattern)
	}
	key := strings.ReplaceAll(n.Pattern, wildcard, keyWildcard)
	if n.Shadow {
		key = keyShadow + key
	}
	return key, nil
}

// ParseKey reverses [Name.Key]. It returns [ErrName] if the key names no limit.
func ParseKey(key string) (Name, error) {
	form, shadow := strings.CutPrefix(key, keyShadow)
	pattern := strings.ReplaceAll(form, keyWildcard, wildcard)
	if strings.Contains(form, wildcard) || !patternForm.MatchString(pattern) {
		return Name{}, fmt.Errorf("%w: key %.100q", ErrName, key)
	}
	return Name{Pattern: pattern, Shadow: shadow}, nil
}
