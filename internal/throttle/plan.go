package throttle

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Ruleset is the limits in force at one moment.
type Ruleset struct {
	Tree   *Tree
	Shadow *Tree // judged beside, without any effect; nil: none

	// Where live overrides are used: which state of them this is. Generation is when their place was made, Revision
	// counts the changes in it. A newer state has a higher generation or, in the same one, a higher revision.
	Generation int64
	Revision   uint64
}

// algorithms names those that the limits use, of which the scripts are composed.
func (r *Ruleset) algorithms() []string {
	used := make([]bool, len(algorithms))
	for _, tree := range []*Tree{r.Tree, r.Shadow} {
		if tree == nil {
			continue
		}
		for _, level := range tree.Levels() {
			for _, limit := range level.Limits {
				used[limit.Algorithm] = true
			}
		}
	}
	var names []string
	for i, a := range algorithms {
		if used[i] {
			names = append(names, a.name)
		}
	}
	return names
}

// shadowKept is how long, in microseconds, an event counts as admitted by the shadow: as long as it can take slots there.
func (r *Ruleset) shadowKept() int64 { return max(1, r.Shadow.LongestWindow().Microseconds()) }

// Override gives one level of a plan other limits.
type Override struct {
	Level  string // LevelGlobal, LevelCategory, or a pattern
	Limits Limits
}

// ParseOverride reads the limits of a level.
func ParseOverride(level, limits string) (Override, error) {
	if level != LevelGlobal && level != LevelCategory {
		if level == "*" {
			return Override{}, fmt.Errorf("%q is reserved, use %s", level, LevelCategory)
		}
		if _, err := event.ParsePattern(level); err != nil {
			return Override{}, err
		}
	}
	parsed, err := ParseLimits(limits)
	if err != nil {
		return Override{}, err
	}
	return Override{Level: level, Limits: parsed}, nil
}

// ParseOverrides reads "level=limit,…", where a level is "global", "category" or a pattern. It returns every fault, each
// naming its entry.
func ParseOverrides(text string) ([]Override, []error) {
	var (
		overrides []Override
		faults    []error
	)
	given := make(map[string]bool)
	for entry := range strings.SplitSeq(text, ",") {
		level, limits, found := strings.Cut(strings.TrimSpace(entry), "=")
		if !found {
			faults = append(faults, fmt.Errorf("entry %q is not level=limit", entry))
			continue
		}
		override, err := ParseOverride(strings.TrimSpace(level), limits)
		if err == nil && given[override.Level] {
			err = errors.New("given twice")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("entry %q: %w", strings.TrimSpace(entry), err))
			continue
		}
		given[override.Level] = true
		overrides = append(overrides, override)
	}
	return overrides, faults
}

// With is the plan with some levels overridden.
func (p Plan) With(overrides []Override, origin Origin) Plan {
	p.Rules, p.Origins = slices.Clone(p.Rules), maps.Clone(p.Origins)
	if p.Origins == nil {
		p.Origins = make(map[string]Origin)
	}
	for _, o := range overrides {
		p.Origins[o.Level] = origin
		switch o.Level {
		case LevelGlobal:
			p.Global = o.Limits
		case LevelCategory:
			p.Category = o.Limits
		default:
			at := slices.IndexFunc(p.Rules, func(r Rule) bool { return r.Pattern.String() == o.Level })
			if at >= 0 {
				p.Rules[at].Limits = o.Limits
				continue
			}
			if pattern, err := event.ParsePattern(o.Level); err == nil { // ParseOverride has seen that it is one
				p.Rules = append(p.Rules, Rule{Pattern: pattern, Limits: o.Limits})
			}
		}
	}
	return p
}

// ParseGuarantees reads "path=slots,…". It returns every fault, each naming its entry.
func ParseGuarantees(text string) ([]Guarantee, []error) {
	var (
		guarantees []Guarantee
		faults     []error
	)
	for entry := range strings.SplitSeq(text, ",") {
		guarantee, err := parseGuarantee(strings.TrimSpace(entry))
		given := func(other Guarantee) bool { return other.Path == guarantee.Path }
		if err == nil && slices.ContainsFunc(guarantees, given) {
			err = fmt.Errorf("guarantee for %q is given twice", guarantee.Path)
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		guarantees = append(guarantees, guarantee)
	}
	return guarantees, faults
}

func parseGuarantee(entry string) (Guarantee, error) {
	path, slots, found := strings.Cut(entry, "=")
	if !found {
		return Guarantee{}, fmt.Errorf("entry %q is not path=slots, such as security=20", entry)
	}
	path = strings.TrimSpace(path)
	if err := event.ValidatePath(path); err != nil {
		return Guarantee{}, fmt.Errorf("entry %q: %w", entry, err)
	}
	n, err := parseCount(strings.TrimSpace(slots))
	if err == nil && n == 0 {
		err = errors.New("a guarantee of no slots")
	}
	if err != nil {
		return Guarantee{}, fmt.Errorf("entry %q: %w", entry, err)
	}
	return Guarantee{Path: path, Slots: n}, nil
}

// CheckGuarantees tells whether guarantees can be kept: they need a global limit that is a log, which alone knows whose
// slots come free, and each global limit has to have as many slots as they are together.
func CheckGuarantees(global Limits, guarantees []Guarantee) error {
	if len(guarantees) == 0 {
		return nil
	}
	total := int64(0)
	for _, guarantee := range guarantees {
		total += guarantee.Slots
	}
	hasLog := false
	for _, limit := range global {
		if limit.Algorithm != SlidingLog {
			continue
		}
		hasLog = true
		if total > limit.Count {
			return fmt.Errorf("guarantees of %s slots together are more than the global limit %s has",
				strconv.FormatInt(total, 10), limit)
		}
	}
	if !hasLog {
		return fmt.Errorf("guarantees need a global limit that is a sliding log, such as 100/30m; it is %s", global)
	}
	return nil
}
