package limits

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// eachKey ends the level of a rule that limits each key.
const eachKey = "@key"

// Levels of drops that no limit makes.
const (
	LevelMute     = "mute"     // a mute denied the event
	LevelClosed   = "closed"   // the closed failure policy denied the event
	LevelUnpaired = "unpaired" // a resolved event without an open pair
	LevelFolded   = "folded"   // the event is counted in a message that cannot be updated
	LevelRoom     = "room"     // the event would have to wait, and too many of its first-level category wait already
	LevelOperator = "operator" // an operator dropped the event while it waited
)

// otherLevels are these levels. A rule of that name would make its drops look like these.
var otherLevels = []string{LevelMute, LevelClosed, LevelUnpaired, LevelFolded, LevelRoom, LevelOperator}

// IsOfLimit reports whether a level is of a limit. Otherwise no slot helps the events that it drops.
func IsOfLimit(level string) bool { return !slices.Contains(otherLevels, level) }

// keyHashBytes is the length of a key's hash. Nobody can find two keys with equal hashes of this length.
const keyHashBytes = 16

// HashOfKey returns the form of an event's key in the Redis keys of its limits. "" stands for no key.
func HashOfKey(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.EncodeToString(sum[:keyHashBytes])
}

// SplitKey splits "payments@db-1" into a path and a key. Without an "@" the key is "". A key may contain further "@".
func SplitKey(text string) (path, key string) {
	path, key, _ = strings.Cut(text, "@")
	return path, key
}

// parseLevel reads the pattern of a rule, with "@key" behind it for a rule that limits each key. The rule has no limits.
func parseLevel(level string) (Rule, error) {
	path, ofKey := strings.CutSuffix(level, eachKey)
	if ofKey && (path == "" || path == LevelGlobal || path == LevelCategory) {
		return Rule{}, fmt.Errorf("%q is reserved, use %q for the keys of each first-level category", level, "*"+eachKey)
	}
	if !IsOfLimit(level) {
		return Rule{}, fmt.Errorf("%q is reserved for drops that no limit makes; a category of that name has the limit %s", level, LevelCategory)
	}
	pattern, err := event.ParsePattern(path)
	if err == nil {
		return Rule{Pattern: pattern, EachKey: ofKey}, nil
	}
	if parent, key := SplitKey(path); key != "" && !ofKey {
		return Rule{}, fmt.Errorf("%q names one key; %q limits each key by itself", level, parent+eachKey)
	}
	if parent, below := strings.CutSuffix(path, "."+event.Everything); below && !ofKey {
		return Rule{}, fmt.Errorf("%q is no path; the limit of %q covers all paths below it, and %q limits each of them", level, parent, parent+".*")
	}
	return Rule{}, err
}

// Level returns the name of the rule: its pattern, with "@key" behind it if it limits each key.
func (r Rule) Level() string {
	if r.EachKey {
		return r.Pattern.String() + eachKey
	}
	return r.Pattern.String()
}

// Place names the node: its path, with "@" and the hash of the key for the node of a key.
func (n Node) Place() string {
	if n.Key == "" {
		return n.Path
	}
	return n.Path + "@" + n.Key
}

// OfKeys reports whether the limits are of each key: the node is a key's node or, in the list of all levels, the rule of each key.
func (n Node) OfKeys() bool { return strings.HasSuffix(n.Level, eachKey) }

// KeyRule returns the level and the limits of each key of a path, at most one rule. Without limits there is none.
func (t *Tree) KeyRule(path string) (rule Node, found bool) {
	if entry, found := t.keyRules.Lookup(path); found && len(entry.Value) > 0 {
		return Node{Path: strings.Clone(path), Level: entry.Pattern.String() + eachKey, Limits: entry.Value}, true
	}
	return Node{}, false
}
