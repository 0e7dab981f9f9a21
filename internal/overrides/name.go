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

// NATS allows neither "*" nor "@" in keys, so keys have "=" instead.
const (
	wildcard    = "*"
	keyWildcard = "="
	eachKey     = "@key"
	keyEachKey  = "=key"
	keyShadow   = "shadow/"
)

// keyAdopted is the key of the history's notes about adoptions. No limit has this key.
const keyAdopted = "state/adopted"

var patternForm = regexp.MustCompile(`^([a-z0-9_-]+|\*)(\.([a-z0-9_-]+|\*))*(@key)?$`)

// Kind is what an override changes.
type Kind string

// The kinds.
const (
	Limit     Kind = ""      // a limit
	Mute      Kind = "mute"  // a mute that is in force
	Recurring Kind = "every" // the schedule of a mute; each window of the schedule becomes a Mute
)

// Name identifies an override.
type Name struct {
	Pattern string // global, category or a path; levels of [a-z0-9_-] or "*", joined with dots, then "@key" for a limit of each key
	Shadow  bool   // a shadow limit; these are a separate set
	Kind    Kind
	Rule    string // of a recurring mute and of the mutes that it begins: a name of its schedule
}

// String returns the pattern, with "shadow " before it for a shadow limit.
func (n Name) String() string {
	switch {
	case n.Shadow:
		return "shadow " + n.Pattern
	case n.Kind == Recurring:
		return "recurring mute of " + n.MutedPath()
	case n.Kind == Mute:
		return "mute of " + n.MutedPath()
	}
	return n.Pattern
}

// Compare orders names: enforced limits, shadow limits and mutes, each by pattern.
func (n Name) Compare(m Name) int {
	return cmp.Or(cmp.Compare(n.Kind, m.Kind), cmp.Compare(n.shadowKey(), m.shadowKey()), cmp.Compare(n.Pattern, m.Pattern), cmp.Compare(n.Rule, m.Rule))
}

func (n Name) shadowKey() string {
	if n.Shadow {
		return keyShadow
	}
	return ""
}

// Key returns the bucket's key of the override: payments.= for payments.*, payments.==key for payments.*@key, shadow/payments.= for a shadow
// limit, and mute/payments.= for a mute. It returns [ErrName] for an invalid name.
func (n Name) Key() (string, error) {
	if !patternForm.MatchString(n.Pattern) {
		return "", fmt.Errorf("%w: %.100q (expected levels of a-z, 0-9, '_' and '-', or '*', joined with dots, perhaps with @key behind)", ErrName, n.Pattern)
	}
	pattern, ofKey := strings.CutSuffix(n.Pattern, eachKey)
	key := strings.ReplaceAll(pattern, wildcard, keyWildcard)
	if ofKey {
		key += keyEachKey
	}
	key = n.shadowKey() + key
	if n.Kind != Limit {
		key = string(n.Kind) + "/" + key
	}
	if n.Rule != "" {
		key += "/" + n.Rule
	}
	return key, nil
}

// ParseKey reverses [Name.Key]. It returns [ErrName] if the key names no override.
func ParseKey(key string) (Name, error) {
	var name Name
	form, shadow := strings.CutPrefix(key, keyShadow)
	if !shadow {
		if kind, rest, found := strings.Cut(key, "/"); found && (Kind(kind) == Mute || Kind(kind) == Recurring) {
			form, name.Rule, _ = strings.Cut(rest, "/")
			name.Kind = Kind(kind)
		}
	}
	form, ofKey := strings.CutSuffix(form, keyEachKey)
	name.Pattern, name.Shadow = strings.ReplaceAll(form, keyWildcard, wildcard), shadow
	if ofKey {
		name.Pattern += eachKey
	}
	if strings.ContainsAny(form, wildcard+"@") || !patternForm.MatchString(name.Pattern) || name.Kind == Recurring && name.Rule == "" ||
		ofKey && name.Kind != Limit {
		return Name{}, fmt.Errorf("%w: key %.100q", ErrName, key)
	}
	return name, nil
}
