package limits

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Override gives one level of a plan other limits.
type Override struct {
	Level  string // LevelGlobal, LevelCategory or the level of a Rule
	Limits Limits
}

// parseOverride reads the limits of a level: LevelGlobal, LevelCategory or the level of a Rule.
func parseOverride(level, limits string) (Override, error) {
	if level != LevelGlobal && level != LevelCategory {
		if level == "*" {
			return Override{}, fmt.Errorf("%q is reserved, use %s", level, LevelCategory)
		}
		if _, err := parseLevel(level); err != nil {
			return Override{}, err
		}
	}
	parsed, err := Parse(limits)
	return Override{Level: level, Limits: parsed}, err
}

// ParseOverrides reads "level=limit,…", where a level is "global", "category" or the level of a Rule. It returns the good overrides and every
// fault, each naming its entry.
func ParseOverrides(text string) ([]Override, []error) {
	return parseList(text, "level=limit, such as payments=40/30m", parseOverride)
}

// With returns the plan with some levels overridden. Overridden levels have this origin. With does not change the plan itself.
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
			at := slices.IndexFunc(p.Rules, func(r Rule) bool { return r.Level() == o.Level })
			if at >= 0 {
				p.Rules[at].Limits = o.Limits
				continue
			}
			if rule, err := parseLevel(o.Level); err == nil { // parseOverride has seen that it is one
				rule.Limits = o.Limits
				p.Rules = append(p.Rules, rule)
			}
		}
	}
	return p
}

// ParseGuarantees reads "path=slots,…". It returns the good guarantees and every fault, each naming its entry.
func ParseGuarantees(text string) ([]Guarantee, []error) {
	return parseList(text, "path=slots, such as security=20", parseGuarantee)
}

func parseGuarantee(path, slots string) (Guarantee, error) {
	if err := event.ValidatePath(path); err != nil {
		return Guarantee{}, err
	}
	n, err := parseCount(strings.TrimSpace(slots))
	if err == nil && n == 0 {
		err = errors.New("a guarantee of no slots")
	}
	return Guarantee{Path: path, Slots: n}, err
}

// CheckGuarantees returns an error if the limits cannot keep the guarantees. Guarantees need a global log limit: other algorithms do not
// know which category's slots open. Each global log limit needs at least the sum of the guarantees.
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
		if !limit.Description().PerNode {
			continue
		}
		hasLog = true
		if total > limit.Count {
			return fmt.Errorf("guarantees of %d slots together are more than the global limit %s has", total, limit)
		}
	}
	if !hasLog {
		return fmt.Errorf("guarantees need a global limit that is a sliding log, such as 100/30m; it is %s", global)
	}
	return nil
}

// Pointless is a limit that never denies an event: whenever it is full, a limit above it is full too.
type Pointless struct {
	Level string
	Limit Limit
	Above string // path of the limit above; LevelGlobal for the global limit
	Bound Limit  // that limit
}

// String is a sentence without a period.
func (p Pointless) String() string {
	return fmt.Sprintf("%s of %s never denies anything: %s above it allows no more than %s", p.Limit, p.Level, p.Above, p.Bound)
}

// Pointless lists the sliding logs that never deny an event because of a sliding log above them, in the order of the levels.
func (t *Tree) Pointless() []Pointless {
	var pointless []Pointless
	for _, level := range t.Levels() {
		for _, limit := range level.Limits {
			if p, found := t.boundAbove(level.Level, limit); found {
				pointless = append(pointless, p)
			}
		}
	}
	return pointless
}

// boundAbove finds a log above all paths of a level that admits no more events in one window of a limit than the limit does: its count,
// times the number of its windows that cover one window of the limit. The log above counts every event that the limit counts. If the limit
// is full, each of these windows is full too, including the newest.
func (t *Tree) boundAbove(level string, limit Limit) (Pointless, bool) {
	if level == LevelGlobal || !limit.Description().Exact {
		return Pointless{}, false
	}
	path, ofKey := strings.CutSuffix(level, eachKey) // the log of the path counts the events of all keys
	for _, above := range t.Path(commonPath(path)) {
		if above.Path == path && !ofKey {
			continue
		}
		for _, bound := range above.Limits {
			windows := int64((limit.Window + bound.Window - 1) / bound.Window)
			if bound.Description().Exact && bound.Count*windows <= limit.Count {
				return Pointless{Level: level, Limit: limit, Above: cmp.Or(above.Path, LevelGlobal), Bound: bound}, true
			}
		}
	}
	return Pointless{}, false
}

// commonPath returns the deepest path at or above every path of a level; "" for the root. LevelCategory has the root alone in common.
func commonPath(level string) string {
	if level == LevelCategory {
		return ""
	}
	common := ""
	for prefix := range event.Prefixes(level) {
		if strings.Contains(prefix, "*") {
			break
		}
		common = prefix
	}
	return common
}
