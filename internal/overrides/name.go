package overrides

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrName is the class of errors about a name that no limit can have, or a key that stands for no limit.
var ErrName = errors.New("not the name of a limit")

// A key cannot hold "*", which NATS reserves, so "=" stands for it.
const (
	wildcard    = "*"
	keyWildcard = "="
	keyShadow   = "shadow/"
)

// keyAdopted is the key of the history's notes about adoptions. No limit has this key.
const keyAdopted = "state/adopted"

var patternForm = regexp.MustCompile(`^([a-z0-9_-]+|\*)(\.([a-z0-9_-]+|\*))*$`)

// Name says which limit an override is for.
type Name struct {
	Pattern string // global, category, or levels of [a-z0-9_-] joined with dots, where a whole level may be *
	Shadow  bool   // one of the shadow limits, which are a set of their own
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

// Key returns the bucket's key of the limit: payments.= for payments.*, and shadow/payments.= for its shadow. The error is
// an [ErrName].
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

// ParseKey reverses [Name.Key]. The error is an [ErrName].
func ParseKey(key string) (Name, error) {
	form, shadow := strings.CutPrefix(key, keyShadow)
	pattern := strings.ReplaceAll(form, keyWildcard, wildcard)
	if strings.Contains(form, wildcard) || !patternForm.MatchString(pattern) {
		return Name{}, fmt.Errorf("%w: key %.100q", ErrName, key)
	}
	return Name{Pattern: pattern, Shadow: shadow}, nil
}
