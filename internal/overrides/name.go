package overrides

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// ErrName is the class of errors about a name that no limit can have, or a key that stands for none.
var ErrName = errors.New("not the name of a limit")

// A key cannot hold "*", which NATS keeps for itself, so "=" stands for it.
const (
	wildcard    = "*"
	keyWildcard = "="
	keyShadow   = "shadow/"
)

// keyAdopted is the key under which the history tells that a state was adopted. No limit has it.
const keyAdopted = "state/adopted"

// Name says which limit an override is for.
type Name struct {
	Pattern string // global, category, or tokens of [a-z0-9_-] joined with dots, where a whole token may be *
	Shadow  bool   // one of the shadow limits, which are a set of their own
}

// String returns the pattern, with "shadow " before it for a shadow limit.
func (n Name) String() string {
	if n.Shadow {
		return "shadow " + n.Pattern
	}
	return n.Pattern
}

// Compare orders names: those in force before the shadow ones, each by pattern.
func (n Name) Compare(m Name) int {
	if n.Shadow != m.Shadow {
		if m.Shadow {
			return -1
		}
		return 1
	}
	return cmp.Compare(n.Pattern, m.Pattern)
}

// Key returns the key of the bucket under which the limit is stored: payments.= for payments.*, and shadow/payments.=
// for its shadow. The error is an [ErrName].
func (n Name) Key() (string, error) {
	tokens := strings.Split(n.Pattern, ".")
	for i, token := range tokens {
		switch {
		case token == wildcard:
			tokens[i] = keyWildcard
		case !validToken(token):
			return "", fmt.Errorf("%w: %.100q (expected levels of a-z, 0-9, '_' and '-', or '*', joined with dots)",
				ErrName, n.Pattern)
		}
	}
	key := strings.Join(tokens, ".")
	if n.Shadow {
		key = keyShadow + key
	}
	return key, nil
}

// ParseKey is the way back from [Name.Key]. The error is an [ErrName].
func ParseKey(key string) (Name, error) {
	pattern, shadow := strings.CutPrefix(key, keyShadow)
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		switch {
		case token == keyWildcard:
			tokens[i] = wildcard
		case !validToken(token):
			return Name{}, fmt.Errorf("%w: key %.100q", ErrName, key)
		}
	}
	return Name{Pattern: strings.Join(tokens, "."), Shadow: shadow}, nil
}

func validToken(token string) bool {
	for i := range len(token) {
		switch c := token[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return token != ""
}
