package ingest

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

const (
	tokenPrefix = "notifier_" // lets scanners for leaked secrets find tokens
	tokenBytes  = 32
	hashPrefix  = "sha256:"
	maxTokens   = 1000 // each request is compared with all of them
)

// NewToken returns a token and its line for the token file. The token is 256 random bits, which nobody can guess, so its hash needs neither
// a salt nor a slow function, which protect passwords. The error describes the fault of the name or of the pattern.
func NewToken(name, pattern string) (token, line string, err error) {
	if err := checkName(name); err != nil {
		return "", "", err
	}
	if _, err := event.ParseScope(pattern); err != nil {
		return "", "", err
	}
	random := make([]byte, tokenBytes)
	_, _ = rand.Read(random) // never fails
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(random)
	sum := sha256.Sum256([]byte(token))
	return token, fmt.Sprintf("%s %s%s %s", name, hashPrefix, hex.EncodeToString(sum[:]), pattern), nil
}

// token allows a client to write to categories.
type token struct {
	hash   [sha256.Size]byte
	client *client
	scopes event.Scopes[struct{}]
}

// tokens are the tokens in force. They never change.
type tokens []token

// find returns the token of a client, nil if there is none. Its duration does not depend on the secrets: it compares the complete hashes of
// all tokens.
func (all tokens) find(secret string) *token {
	sum := sha256.Sum256([]byte(secret))
	found := -1
	for i := range all {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], all[i].hash[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return &all[found]
}

func (t *token) mayWrite(category string) bool {
	_, may := t.scopes.Lookup(category)
	return may
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func checkName(name string) error {
	if !nameForm.MatchString(name) {
		return errors.New("the name is invalid; expected up to 64 letters, digits, '_', '.' and '-'")
	}
	return nil
}

// parseLine reads `name token-hash path-pattern`. Its errors quote no hash, because a user who confuses the columns writes a secret there.
func parseLine(text string) (name string, hash [sha256.Size]byte, scope event.Scope, err error) {
	columns := strings.Fields(text)
	if len(columns) != 3 {
		return name, hash, scope, fmt.Errorf("expected three columns, a name, a hash and a pattern; found %d", len(columns))
	}
	if err := checkName(columns[0]); err != nil {
		return name, hash, scope, err
	}
	digits, isHash := strings.CutPrefix(columns[1], hashPrefix)
	sum, err := hex.DecodeString(digits)
	if !isHash || err != nil || len(sum) != sha256.Size {
		return name, hash, scope, fmt.Errorf("the second column is not a hash; expected %s and 64 hexadecimal digits, as 'notifier ingest token' prints them", hashPrefix)
	}
	scope, err = event.ParseScope(columns[2])
	return columns[0], [sha256.Size]byte(sum), scope, err
}

// parseTokens reads a token file. Lines with one name are one client, lines with one hash one token. The error joins all faults, each with
// its line.
func parseTokens(text []byte, clientOf func(name string) *client) (tokens, error) {
	if len(text) == 0 {
		return nil, errors.New("the file is empty; a file without any token has a comment")
	}
	type grant struct {
		name   string
		scopes []event.ScopeEntry[struct{}]
	}
	grants := make(map[[sha256.Size]byte]*grant)
	var order [][sha256.Size]byte
	var faults []error
	number := 0
	for row := range bytes.Lines(text) {
		number++
		trimmed := strings.TrimSpace(string(row))
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		name, hash, scope, err := parseLine(trimmed)
		known := grants[hash]
		if err == nil && known != nil && known.name != name {
			err = errors.New("the hash is that of another name")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("line %d: %w", number, err))
			continue
		}
		if known == nil {
			known = &grant{name: name}
			grants[hash], order = known, append(order, hash)
		}
		known.scopes = append(known.scopes, event.ScopeEntry[struct{}]{Scope: scope})
	}
	if len(order) > maxTokens {
		faults = append(faults, fmt.Errorf("%d tokens; at most %d are allowed", len(order), maxTokens))
	}
	all := make(tokens, 0, len(order))
	for _, hash := range order {
		of := grants[hash]
		scopes, err := event.NewScopes(of.scopes)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", of.name, err))
		}
		all = append(all, token{hash, clientOf(of.name), scopes})
	}
	return all, errors.Join(faults...)
}
