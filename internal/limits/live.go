package limits

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// LiveEntry is an override as somebody has set it while the workers run.
type LiveEntry struct {
	LiveLevel
	Limits   string
	Lost     bool // the limits are unknown: somebody has overwritten them and their history
	Revision uint64
}

// errLost is the fault of a lost entry.
var errLost = errors.New("its history holds only messages that neither a worker nor an operator wrote: set or unset it")

// ErrEarlier means that a ruleset has a bad override, and that the earlier values of the override cannot be read at present.
var ErrEarlier = errors.New("cannot read the earlier values of a bad live limit")

// Live makes rulesets of a plan and the overrides of the moment. It logs a bad override once, and keeps the last good one of that level in
// force. It is not safe for concurrent use.
type Live struct {
	plan    Plan
	shadow  []Override // of the shadow limits, from the settings
	earlier Earlier
	logger  *slog.Logger

	begun      bool                   // there was a state without unreadable levels
	good       map[LiveLevel]Override // of the last state
	reported   map[LiveLevel]uint64   // revision of the bad override that was logged
	unreadable []string               // for each unreadable level of the last state, why it is unreadable
}

// LiveLevel names what an override limits.
type LiveLevel struct {
	Level  string // LevelGlobal, LevelCategory or the level of a Rule
	Shadow bool   // of the shadow limits
}

// Earlier returns the values of an override before the present value, the newest first, back to the time when it was not set. With them, an
// instance that starts after a bad value was set uses the same limits as older instances.
type Earlier func(LiveLevel) ([]string, error)

// NewLive starts with the overrides of the shadow limits only.
func NewLive(plan Plan, shadow []Override, earlier Earlier, logger *slog.Logger) *Live {
	return &Live{
		plan: plan, shadow: shadow, earlier: earlier, logger: logger,
		good: make(map[LiveLevel]Override), reported: make(map[LiveLevel]uint64),
	}
}

// Ruleset returns the limits with exactly these overrides. Its errors are [ErrEarlier], after which a later call may succeed, and the errors
// of [NewRuleset].
func (l *Live) Ruleset(generation int64, revision uint64, entries []LiveEntry) (Ruleset, error) {
	live, liveShadow, err := l.overrides(entries)
	if err != nil {
		return Ruleset{}, err
	}
	rules, err := NewRuleset(l.plan, live, l.shadow, liveShadow)
	rules.Position = Position{generation, revision}
	return rules, err
}

// Unreadable returns an error if an instance cannot start with the last state: an override has no good value, and the instance has no
// earlier good value. A running instance keeps the override that it had in force for that level.
func (l *Live) Unreadable() error {
	if len(l.unreadable) == 0 {
		return nil
	}
	return errors.New(strings.Join(l.unreadable, "; "))
}

// Plan returns the plan with exactly these overrides, without the shadow limits. Its error is [ErrEarlier].
func (l *Live) Plan(entries []LiveEntry) (Plan, error) {
	live, _, err := l.overrides(entries)
	return l.plan.With(live, FromLive), err
}

// overrides returns the overrides that entries put in force. Its error is [ErrEarlier].
func (l *Live) overrides(entries []LiveEntry) (live, liveShadow []Override, err error) {
	good := make(map[LiveLevel]Override, len(entries))
	var unreadable []string
	for _, entry := range entries {
		key := entry.LiveLevel
		override, bad := l.Check(entry)
		isGood := bad == nil
		if bad != nil {
			override, isGood, err = l.replacement(key, entry, bad)
		}
		switch {
		case err != nil:
			return nil, nil, err
		case !isGood:
			if !l.begun && mayLimit(entry.Level) {
				unreadable = append(unreadable, fmt.Sprintf("the live limit of %s is not readable, and no earlier value is known: %v", key, bad))
			}
			continue
		case entry.Shadow:
			liveShadow = append(liveShadow, override)
		default:
			live = append(live, override)
		}
		good[key] = override
	}
	l.good, l.unreadable = good, unreadable
	l.begun = l.begun || len(unreadable) == 0
	return live, liveShadow, nil
}

// mayLimit reports whether a level can have a limit at all.
func mayLimit(level string) bool {
	_, err := parseOverride(level, "1/1m")
	return err == nil
}

// String returns the name of the level as commands take it.
func (l LiveLevel) String() string {
	if l.Shadow {
		return l.Level + " (--shadow)"
	}
	return l.Level
}

// replacement returns the override that is in force instead of a bad entry. It logs each bad revision once.
func (l *Live) replacement(key LiveLevel, entry LiveEntry, bad error) (last Override, known bool, err error) {
	last, known, err = l.lastGood(key, entry.Revision)
	if err == nil && l.reported[key] != entry.Revision {
		l.reported[key] = entry.Revision
		l.logger.Error("bad live limit is ignored", "limit_level", entry.Level, "shadow", entry.Shadow, "limit", entry.Limits,
			"revision", entry.Revision, "last_good_stays", known, "error", bad)
	}
	return last, known, err
}

// lastGood returns the last good override of a level.
func (l *Live) lastGood(key LiveLevel, revision uint64) (last Override, known bool, err error) {
	if last, known := l.good[key]; known {
		return last, true, nil
	}
	if l.reported[key] == revision {
		return Override{}, false, nil // it was looked for already
	}
	earlier, err := l.earlier(key)
	if err != nil {
		return Override{}, false, fmt.Errorf("%w of %s: %w", ErrEarlier, key, err)
	}
	for _, limits := range earlier {
		if override, err := l.Check(LiveEntry{LiveLevel: key, Limits: limits}); err == nil {
			l.good[key] = override // the next look needs it if this look fails at another entry
			return override, true, nil
		}
	}
	return Override{}, false, nil
}

// Check returns the override of an entry. It returns an error if the entry alone is already invalid.
func (l *Live) Check(entry LiveEntry) (Override, error) {
	if entry.Lost {
		return Override{}, errLost
	}
	override, err := parseOverride(entry.Level, entry.Limits)
	if err == nil {
		_, err = NewTree(l.plan.With([]Override{override}, FromLive))
	}
	return override, err
}

// Ruleset is the limits in force at one moment.
type Ruleset struct {
	Tree     *Tree
	Shadow   *Tree // evaluated too, without any effect; nil: none
	Mutes    []*Mute
	Position Position
}

// NewRuleset builds the limits in force from a plan and its live overrides, with the zero [Position]. The shadow has the limits of the plan
// and its own overrides. Without shadow overrides there is no shadow. It returns the errors of [NewTree].
func NewRuleset(plan Plan, live, shadow, liveShadow []Override) (Ruleset, error) {
	plan = plan.With(live, FromLive)
	tree, err := NewTree(plan)
	if err != nil {
		return Ruleset{}, err
	}
	if len(shadow)+len(liveShadow) == 0 {
		return Ruleset{Tree: tree}, nil
	}
	shadowTree, err := NewTree(plan.With(shadow, FromEnvironment).With(liveShadow, FromLive))
	if err != nil {
		return Ruleset{}, fmt.Errorf("shadow limits: %w", err)
	}
	return Ruleset{Tree: tree, Shadow: shadowTree}, nil
}

// Position orders the states of the limits. A newer state has a higher generation or, within one generation, a higher revision. The zero
// Position is the state without overrides.
type Position struct {
	Generation int64  // when the bucket of the overrides was created, in Unix milliseconds
	Revision   uint64 // counts the changes there
}

// Before reports whether the state is older than q.
func (p Position) Before(q Position) bool {
	return cmp.Or(cmp.Compare(p.Generation, q.Generation), cmp.Compare(p.Revision, q.Revision)) < 0
}

// ID returns the position as one short word.
func (p Position) ID() string {
	return strconv.FormatInt(p.Generation, 10) + ":" + strconv.FormatUint(p.Revision, 10)
}

// String returns a text for people: revision, generation, and when the generation began.
func (p Position) String() string {
	if p == (Position{}) {
		return "none"
	}
	made := time.UnixMilli(p.Generation).UTC().Format(time.RFC3339)
	return fmt.Sprintf("revision %d of generation %d (%s)", p.Revision, p.Generation, made)
}
