package config

import (
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Categories lists the categories that settings name by their exact path, each once: those with limits first, then those with
// guarantees, routes, delays, folds and mentions.
func (c Config) Categories() []string {
	var paths []string
	add := func(path string) {
		if !strings.ContainsAny(path, "*>") && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	for _, rule := range c.Limits.Rules {
		add(rule.Pattern.String())
	}
	for _, override := range c.Limits.ShadowLimits {
		if override.Level != limits.LevelGlobal && override.Level != limits.LevelCategory {
			path, _ := limits.SplitKey(override.Level)
			add(path)
		}
	}
	for _, guarantee := range c.Limits.Guarantees {
		add(guarantee.Path)
	}
	for _, route := range c.Slack.Routes.Entries() {
		add(route.Pattern.String())
	}
	for _, delay := range c.Delay.Longest.Entries() {
		add(delay.Scope.String())
	}
	for _, fold := range c.Fold.Entries() {
		add(fold.Scope.String())
	}
	for _, mention := range c.Slack.Mentions.Entries() {
		add(mention.Pattern.String())
	}
	return paths
}
