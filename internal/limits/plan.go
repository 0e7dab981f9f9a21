package limits

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Override gives one level of a plan other limits.
type Override struct {
	Level  string // LevelGlobal, LevelCategory, or a pattern
	Limits Limits
}

// ParseOverride reads the limits of a level: LevelGlobal, LevelCategory or a pattern. The error names what is wrong, of the
// level or of its limits.
func ParseOverride(level, limits string) (Override, error) {
	if level != LevelGlobal && level != LevelCategory {
		if level == "*" {
			return Override{}, fmt.Errorf("%q is reserved, use %s", level, LevelCategory)
		}
		if _, err := event.ParsePattern(level); err != nil {
			return Override{}, err
		}
	}
	parsed, err := Parse(limits)
	if err != nil {
		return Override{}, err
	}
	return Override{Level: level, Limits: parsed}, nil
}

// ParseOverrides reads "level=limit,…", where a level is "global", "category" or a pattern. It returns the good overrides
// and every fault, each naming its entry.
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

// With returns the plan with some levels overridden, and origin as theirs. The plan itself stays as it is.
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

// ParseGuarantees reads "path=slots,…". It returns the good guarantees and every fault, each naming its entry.
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
