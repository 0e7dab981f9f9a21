package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// warnOf says what whoever has set a limit may not expect of it. What is used is left out where Redis does not answer.
func (l *limitsCommand) warnOf(ctx context.Context, tree *limits.Tree, set limits.Override) {
	for _, limit := range set.Limits {
		if above, found := stricterAbove(tree, set.Level, limit); found {
			_, _ = fmt.Fprintf(l.out, "warning: %s never denies anything: %s above it allows no more than %s\n", limit, nameOf(above), above.Limits)
		}
	}
	levels, _, err := l.usage(ctx, tree)
	if err != nil {
		return
	}
	for _, use := range levels {
		if use.Level == set.Level && use.Used > use.Limit.Capacity() {
			_, _ = fmt.Fprintf(l.out, "warning: %s are used, so nothing more of it is sent until enough of them are free\n", inWords(use))
		}
	}
}

func nameOf(n limits.Node) string {
	if n.Path == "" {
		return limits.LevelGlobal
	}
	return n.Path
}

func inWords(use throttle.LevelUse) string { return wordsOf([]throttle.LevelUse{use})[use.Level] }

// stricterAbove finds a node above the paths of a level whose log allows no more in the time of a limit than the limit does. Of a
// pattern with a wildcard, only the root is above every path.
func stricterAbove(tree *limits.Tree, level string, limit limits.Limit) (limits.Node, bool) {
	path := level
	switch {
	case level == limits.LevelGlobal || limit.Algorithm != limits.SlidingLog:
		return limits.Node{}, false
	case level == limits.LevelCategory || strings.Contains(level, "*"):
		path = ""
	}
	for _, above := range tree.Path(path) {
		if above.Path == path && path != "" {
			continue
		}
		for _, bound := range above.Limits {
			if bound.Algorithm == limits.SlidingLog && bound.Count <= limit.Count && bound.Window >= limit.Window {
				above.Limits = limits.Limits{bound}
				return above, true
			}
		}
	}
	return limits.Node{}, false
}
