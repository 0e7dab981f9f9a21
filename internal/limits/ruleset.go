package limits

import (
	"cmp"
	"fmt"
	"time"
)

// Ruleset is the limits in force at one moment.
type Ruleset struct {
	Tree     *Tree
	Shadow   *Tree // evaluated beside, without any effect; nil: none
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

// Before tells whether the state is older than another one.
func (p Position) Before(q Position) bool {
	return cmp.Or(cmp.Compare(p.Generation, q.Generation), cmp.Compare(p.Revision, q.Revision)) < 0
}

// String is for people: revision, generation, and when that began.
func (p Position) String() string {
	if p == (Position{}) {
		return "none"
	}
	made := time.UnixMilli(p.Generation).UTC().Format(time.RFC3339)
	return fmt.Sprintf("revision %d of generation %d (%s)", p.Revision, p.Generation, made)
}
