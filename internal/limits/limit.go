package limits

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
)

// Bounds of a limit. A log of ten million entries takes about a gigabyte; 366 days is a leap year.
const (
	MaxCount  = 10_000_000 // slots
	MinWindow = time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
)

const day = 24 * time.Hour

// Limit is one limit, with the algorithm that counts it.
type Limit = algorithm.Limit

// Limits all apply at one node of the tree, logs first. Empty means that the node has no limit.
type Limits []Limit

// Rule gives limits to every path that its pattern matches.
type Rule struct {
	Pattern event.Pattern
	EachKey bool // the limits count the events of each key by themselves
	Limits  Limits
}

// Parse reads "10/30m", "10/30m+3/1m", "5/minute", "0/1h", "token:100/1h;burst=20" or "none". The error quotes the limit at
// fault.
func Parse(text string) (Limits, error) {
	text = strings.TrimSpace(text)
	if text == "none" {
		return nil, nil
	}
	var limits Limits
	for part := range strings.SplitSeq(text, "+") {
		limit, err := parseLimit(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		for _, other := range limits {
			if !limit.Description().PerNode && other.Algorithm == limit.Algorithm && other.Window == limit.Window {
				return nil, fmt.Errorf("limit %q: there is a %s limit with that window already", part, limit.Algorithm)
			}
		}
		limits = append(limits, limit)
	}
	slices.SortStableFunc(limits, func(a, b Limit) int { // logs first
		return cmp.Compare(order(a), order(b))
	})
	return limits, nil
}

// order returns 0 for limits that share the bucket of their node, which come first.
func order(l Limit) int {
	if l.Description().PerNode {
		return 0
	}
	return 1
}

func parseLimit(text string) (Limit, error) {
	rest, chosen := text, algorithm.Algorithm(0)
	if name, after, found := strings.Cut(text, ":"); found {
		named, known := algorithm.Named(strings.TrimSpace(name))
		if !known {
			return Limit{}, fmt.Errorf("limit %q: %q is not one of the algorithms %s", text, name, strings.Join(algorithm.Names(nil), ", "))
		}
		rest, chosen = after, named
	}
	rest, option, hasOption := strings.Cut(rest, ";")
	count, window, found := strings.Cut(rest, "/")
	if !found {
		return Limit{}, fmt.Errorf("limit %q is not <count>/<window>, such as 10/30m, nor none", text)
	}
	n, err := parseCount(strings.TrimSpace(count))
	if err != nil {
		return Limit{}, fmt.Errorf("limit %q: %w", text, err)
	}
	w, err := ParseWindow(strings.TrimSpace(window))
	if err != nil {
		return Limit{}, fmt.Errorf("limit %q: %w", text, err)
	}
	limit := Limit{Count: n, Window: w, Algorithm: chosen}
	if most := chosen.Description().MaxProduct / w.Microseconds(); chosen.Description().MaxProduct > 0 && n > most {
		return Limit{}, fmt.Errorf("limit %q: a %s limit counts exactly up to %d in %s; use a shorter window, or %s",
			text, chosen, most, algorithm.FormatWindow(w), algorithm.SlidingCounter)
	}
	if hasOption {
		if limit.Burst, err = parseBurst(strings.TrimSpace(option), limit); err != nil {
			return Limit{}, fmt.Errorf("limit %q: %w", text, err)
		}
	}
	return limit, nil
}

// parseBurst reads "burst=20". A burst of the whole count reads as none.
func parseBurst(text string, limit Limit) (int64, error) {
	value, found := strings.CutPrefix(text, "burst=")
	if !found {
		return 0, fmt.Errorf("option %q is not burst=<count>; limits of several paths are separated by commas", text)
	}
	if !limit.Description().Bursts {
		bursting := algorithm.Names(func(d *algorithm.Description) bool { return d.Bursts })
		return 0, fmt.Errorf("only a %s limit has a burst", strings.Join(bursting, " or "))
	}
	burst, err := parseCount(value)
	if err != nil {
		return 0, fmt.Errorf("burst: %w", err)
	}
	switch {
	case burst == 0 || burst > limit.Count:
		return 0, fmt.Errorf("burst %d is not between 1 and the count, %d", burst, limit.Count)
	case burst == limit.Count:
		return 0, nil
	}
	return burst, nil
}

func parseCount(text string) (int64, error) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, fmt.Errorf("count %q is not a whole number", text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > MaxCount {
		return 0, fmt.Errorf("count %s is above %d", text, MaxCount)
	}
	return n, nil
}

var namedWindows = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour,
	"d": day, "day": day,
	"week": 7 * day,
}

// ParseWindow reads a duration from MinWindow to MaxWindow, such as 30m, 1h30m or 1d12h. It also accepts the name of a unit, such as
// minute.
func ParseWindow(text string) (time.Duration, error) {
	window, named := namedWindows[text]
	if !named {
		parsed, err := model.ParseDuration(text)
		if err != nil {
			return 0, fmt.Errorf("window %q is not a duration, such as 30m, 1h30m, 1d or minute", text)
		}
		window = time.Duration(parsed)
	}
	if window < MinWindow || window > MaxWindow {
		return 0, fmt.Errorf("window %q is not between %s and %s", text, algorithm.FormatWindow(MinWindow), algorithm.FormatWindow(MaxWindow))
	}
	return window, nil
}

// String returns the text that Parse reads; "none" for no limits.
func (l Limits) String() string {
	if len(l) == 0 {
		return "none"
	}
	parts := make([]string, len(l))
	for i, limit := range l {
		parts[i] = limit.String()
	}
	return strings.Join(parts, "+")
}

// reserved lists the rules with a setting of their own, and these settings.
var reserved = map[string]string{
	"global":   "NOTIFIER_GLOBAL_LIMIT",
	"category": "NOTIFIER_CATEGORY_LIMIT",
	"*":        "NOTIFIER_CATEGORY_LIMIT",
}

// parseList reads "name=value,…". It returns the good entries and every fault, each naming its entry. A duplicate name is a fault.
func parseList[T any](text, form string, parse func(name, value string) (T, error)) (parsed []T, faults []error) {
	given := make(map[string]bool)
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		name, value, found := strings.Cut(entry, "=")
		if !found {
			faults = append(faults, fmt.Errorf("entry %q is not %s", entry, form))
			continue
		}
		name = strings.TrimSpace(name)
		one, err := parse(name, value)
		if err == nil && given[name] {
			err = fmt.Errorf("%q is given twice", name)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("entry %q: %w", entry, err))
			continue
		}
		given[name] = true
		parsed = append(parsed, one)
	}
	return parsed, faults
}

// ParseRules reads "path=limit,…". It returns the good rules and every fault, each naming its entry.
func ParseRules(text string) ([]Rule, []error) {
	return parseList(text, "path=limit, such as payments=40/30m", parseRule)
}

func parseRule(path, limit string) (Rule, error) {
	if setting, taken := reserved[path]; taken {
		return Rule{}, fmt.Errorf("%q is reserved, use %s", path, setting)
	}
	rule, err := parseLevel(path)
	if err != nil {
		return Rule{}, err
	}
	rule.Limits, err = Parse(limit)
	return rule, err
}

// Use is how full one limit of one path is.
type Use struct {
	Level string `json:"level"` // the rule of the limit, as in metrics
	Path  string `json:"path"`  // "" is the root
	Limit string `json:"limit"` // such as 10/30m
	Used  int64  `json:"used"`
	Size  int64  `json:"size"` // the capacity of the limit
	// Next is when an event that the limit denied finds its slots: if guarantees reserve slots, an event without a guarantee. nil: the time
	// is unknown.
	Next *time.Time `json:"next_slot,omitempty"`
	// Never means that such an event never finds slots: guarantees reserve all of them.
	Never bool `json:"never,omitempty"`
}

// UseOf returns the use of a limit of a node, without the time of its next slot.
func UseOf(n Node, l Limit, used int64) Use {
	return Use{Level: n.Level, Path: n.Path, Limit: l.String(), Used: used, Size: l.Capacity()}
}

// Name returns the path, or "global" for the root. For the use of one key it adds "@key".
func (u Use) Name() string {
	if strings.HasSuffix(u.Level, eachKey) {
		return u.Path + eachKey
	}
	return cmp.Or(u.Path, LevelGlobal)
}

// Full reports whether no slot is free, other than for guarantees.
func (u Use) Full() bool { return u.Used >= u.Size || u.Next != nil || u.Never }

// Share is how full the limit is, from 0 to 1. A limit of no slots is full.
func (u Use) Share() float64 {
	if u.Full() {
		return 1
	}
	return float64(u.Used) / float64(u.Size)
}
