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

// assignments describes how to parse a text "path=value,…".
type assignments[T any] struct {
	value   string // one word for the part behind the "="
	example string
	instead string // of the words that are reserved
	star    bool   // "*" is a path
	parse   func(path, value string) (T, error)
}

// assigned is the form that builds a table from assignments.
func assigned[T, Table any](a assignments[T], build func([]T) (Table, error)) form {
	return func(text string) (any, error) {
		entries, err := a.read(text)
		if err != nil {
			return nil, err
		}
		return build(entries)
	}
}

// read returns the entries in their order. The error joins a fault for each invalid part.
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
	if path == limits.LevelGlobal || path == limits.LevelCategory || path == "*" && !a.star {
		return entry, fmt.Errorf("entry %q: %q is reserved, use %s", text, path, a.instead)
	}
	if entry, err = a.parse(path, value); err != nil {
		return entry, fmt.Errorf("entry %q: %w", text, err)
	}
	return entry, nil
}

var routes = assignments[event.Entry[string]]{
	value: "channel", example: "payments=#payments,infra.*=#infra", instead: "NOTIFIER_SLACK_CHANNEL", parse: route,
}

func route(path, name string) (entry event.Entry[string], err error) {
	if entry.Pattern, err = event.ParsePattern(path); err != nil {
		return entry, err
	}
	if entry.Value, err = channel(name); err != nil {
		return entry, fmt.Errorf("%q is not a channel", name)
	}
	return entry, nil
}

var mentions = assignments[event.Entry[[]string]]{
	value: "mention", example: "security=@oncall-security,payments.*=@here+@S0123456789", instead: "*", star: true, parse: mention,
}

func mention(path, text string) (entry event.Entry[[]string], err error) {
	if entry.Pattern, err = event.ParsePattern(path); err != nil {
		return entry, err
	}
	for mention := range strings.SplitSeq(text, "+") {
		mention = strings.TrimSpace(mention)
		name, marked := strings.CutPrefix(mention, "@")
		switch {
		case !marked || !slackID.MatchString(name) && !slackHandle.MatchString(name):
			return entry, fmt.Errorf("%q is not @here, @channel, @everyone, the ID of a user or group, or the handle of a group", mention)
		case slices.Contains(entry.Value, name):
			return entry, fmt.Errorf("%q is set twice", mention)
		}
		entry.Value = append(entry.Value, name)
	}
	return entry, nil
}

var (
	slackID     = regexp.MustCompile(`^[USW][A-Z0-9]{2,}$`)
	slackHandle = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,79}$`)
)

// isGroupHandle reports whether a mention is a handle, which needs a look-up, and not a word or an ID.
func isGroupHandle(name string) bool {
	return slackHandle.MatchString(name) && !slices.Contains([]string{"here", "channel", "everyone"}, name)
}

var delays = assignments[event.ScopeEntry[time.Duration]]{
	value: "duration", example: "security=6h,payments.>=2h", instead: ">", star: true, parse: delay,
}

func delay(path, text string) (entry event.ScopeEntry[time.Duration], err error) {
	if entry.Scope, err = event.ParseScope(path); err != nil {
		return entry, err
	}
	if entry.Value, err = window(text); err != nil {
		return entry, fmt.Errorf("%q is not a duration from 1ms to 366d", text)
	}
	return entry, nil
}

var folds = assignments[event.ScopeEntry[time.Duration]]{
	value: "duration", example: "payments.>=1h,payments.refunds=off", instead: ">", star: true, parse: fold,
}

// fold reads off as 0.
func fold(path, text string) (entry event.ScopeEntry[time.Duration], err error) {
	if text != "off" {
		return delay(path, text)
	}
	entry.Scope, err = event.ParseScope(path)
	return entry, err
}
