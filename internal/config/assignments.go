package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

type (
	routes   struct{}
	mentions struct{}
	delays   struct{}
)

// assignments is how a text "path=value,…" is read.
type assignments[T any] struct {
	value   string // what stands right of the "=", in one word
	example string
	instead string // of the words that are reserved in limits, so that they are no paths here either
	parse   func(path, value string) (T, error)
}

// read returns the entries in the order given, and a fault for each that is none.
func (a assignments[T]) read(text string) ([]T, error) {
	var (
		entries []T
		faults  []error
	)
	given := make(map[string]bool)
	for part := range strings.SplitSeq(text, ",") {
		path, value, _ := strings.Cut(part, "=")
		path, value = strings.TrimSpace(path), strings.TrimSpace(value)
		entry, err := a.entry(strings.TrimSpace(part), path, value)
		if err == nil && given[path] {
			err = fmt.Errorf("rule %q is given twice", path)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%w; expected path=%s,… such as %s", err, a.value, a.example))
			continue
		}
		given[path] = true
		entries = append(entries, entry)
	}
	return entries, errors.Join(faults...)
}

func (a assignments[T]) entry(text, path, value string) (entry T, err error) {
	if value == "" {
		return entry, fmt.Errorf("entry %q is not path=%s", text, a.value)
	}
	if path == limits.LevelGlobal || path == limits.LevelCategory {
		return entry, fmt.Errorf("entry %q: %q is reserved, use %s", text, path, a.instead)
	}
	if entry, err = a.parse(path, value); err != nil {
		return entry, fmt.Errorf("entry %q: %w", text, err)
	}
	return entry, nil
}

const channelSetting = "NOTIFIER_SLACK_CHANNEL"

func (routes) parse(text string) (event.Table[string], error) {
	entries, err := assignments[event.Entry[string]]{
		value: "channel", example: "payments=#payments,infra.*=#infra", instead: channelSetting, parse: parseRoute,
	}.read(text)
	if err != nil {
		return event.Table[string]{}, err
	}
	return event.NewTable(entries)
}

func parseRoute(path, name string) (event.Entry[string], error) {
	if path == "*" {
		return event.Entry[string]{}, fmt.Errorf("%q is reserved, use %s", path, channelSetting)
	}
	pattern, err := event.ParsePattern(path)
	if err != nil {
		return event.Entry[string]{}, err
	}
	if _, err := (channel{}).parse(name); err != nil {
		return event.Entry[string]{}, fmt.Errorf("%q is not a channel", name)
	}
	return event.Entry[string]{Pattern: pattern, Value: name}, nil
}

func (mentions) parse(text string) (event.Table[[]string], error) {
	entries, err := assignments[event.Entry[[]string]]{
		value: "mention", example: "security=@oncall-security,payments.*=@here+@S0123456789", instead: "*", parse: parseMentions,
	}.read(text)
	if err != nil {
		return event.Table[[]string]{}, err
	}
	return event.NewTable(entries)
}

func parseMentions(path, text string) (event.Entry[[]string], error) {
	pattern, err := event.ParsePattern(path)
	if err != nil {
		return event.Entry[[]string]{}, err
	}
	var names []string
	for mention := range strings.SplitSeq(text, "+") {
		mention = strings.TrimSpace(mention)
		name, marked := strings.CutPrefix(mention, "@")
		switch {
		case !marked || !slackID.MatchString(name) && !slackHandle.MatchString(name):
			return event.Entry[[]string]{}, fmt.Errorf("%q is not @here, @channel, @everyone, the ID of a user or group, or the handle of a group", mention)
		case slices.Contains(names, name):
			return event.Entry[[]string]{}, fmt.Errorf("%q is there twice", mention)
		}
		names = append(names, name)
	}
	return event.Entry[[]string]{Pattern: pattern, Value: names}, nil
}

var (
	slackID     = regexp.MustCompile(`^[USW][A-Z0-9]{2,}$`)
	slackHandle = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,79}$`)
)

// isGroupHandle tells a handle from the words and IDs that Slack needs not be asked about.
func isGroupHandle(name string) bool {
	return slackHandle.MatchString(name) && !slices.Contains([]string{"here", "channel", "everyone"}, name)
}

func (delays) parse(text string) (event.Scopes[time.Duration], error) {
	entries, err := assignments[event.ScopeEntry[time.Duration]]{
		value: "duration", example: "security=6h,payments.>=2h", instead: ">", parse: parseDelay,
	}.read(text)
	if err != nil {
		return event.Scopes[time.Duration]{}, err
	}
	return event.NewScopes(entries)
}

func parseDelay(path, text string) (event.ScopeEntry[time.Duration], error) {
	scope, err := event.ParseScope(path)
	if err != nil {
		return event.ScopeEntry[time.Duration]{}, err
	}
	longest, err := window{}.parse(text)
	if err != nil {
		return event.ScopeEntry[time.Duration]{}, fmt.Errorf("%q is not a duration from 1ms to 366d", text)
	}
	return event.ScopeEntry[time.Duration]{Scope: scope, Value: longest}, nil
}
