package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func newLimitsSetCommand(l *limitsCommand) *cobra.Command {
	command := &cobra.Command{
		Use:   "set PATH LIMIT",
		Short: "Override the limit of a path, global or category",
		Long: "Override the limit of a path, global or category, until it is set or unset again. PATH@key limits each key of the\n" +
			"events of a path, such as 'payments@key'; '*@key' does so for every first-level category.\n\n" +
			"With --for, the override ends by itself after that time: what was set before without an end is in force again, else\n" +
			"the limit of the settings. The workers end it, by the clock of NATS, and store that as a change.",
		Example: "  notifier limits set payments 40/30m\n" +
			"  notifier limits set payments 80/30m --for 2h",
		Args: cobra.MatchAll(numberOfArguments(2, 2), checkLength(&l.lasts)),
		RunE: l.connected(stores, l.set),
	}
	durationVar(command, &l.lasts, "for", "how long the limit stays in force, such as 30m, 2h or 7d")
	return command
}

const shortestLength = time.Second

func checkLength(given *duration) cobra.PositionalArgs {
	return func(cmd *cobra.Command, _ []string) error {
		if lasts := time.Duration(*given); cmd.Flags().Changed("for") && (lasts < shortestLength || lasts > limits.MaxWindow) {
			return fmt.Errorf("--for %s is not between 1s and 366d", given)
		}
		return nil
	}
}

// set changes a limit. It rejects a limit that workers would ignore.
func (l *limitsCommand) set(ctx context.Context, arguments []string) error {
	entry := overrides.Change{Name: overrides.Name{Pattern: arguments[0], Shadow: l.shadow}, Value: arguments[1]}
	override, err := l.limits.Live.Check(setup.LiveEntry(entry))
	if err != nil {
		return &UsageError{err}
	}
	bucket, s, err := l.load(ctx)
	if err != nil {
		return err
	}
	if err := l.checkFollowing(s, entry.Name); err != nil {
		return err
	}
	s.Entries = append(without(s.Entries, entry.Name), entry)
	rules, err := rulesOf(l.limits.Live, s)
	if err != nil {
		return err
	}
	done, err := bucket.Set(ctx, s, entry.Name, override.Limits.String(), time.Duration(l.lasts))
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(l.out, "%s is %s%s (revision %d)\n", entry.Name, override.Limits, ending(done), done.Revision)
	if !l.shadow {
		l.warnOf(ctx, rules.Tree, override)
	}
	return l.enforce(ctx, bucket)
}

// checkFollowing rejects --for if workers would ignore the limit that is in force again afterwards.
func (l *limitsCommand) checkFollowing(s overrides.Snapshot, name overrides.Name) error {
	for _, entry := range s.Entries {
		if l.lasts == 0 || entry.Name != name || !entry.Until.IsZero() {
			continue
		}
		if _, err := l.limits.Live.Check(setup.LiveEntry(entry)); err != nil {
			return fmt.Errorf("--for: workers ignore what %s is set to now, so it cannot be in force again: %w; unset it first", name, err)
		}
	}
	return nil
}

func ending(c overrides.Change) string {
	switch {
	case c.Until.IsZero():
		return ""
	case c.Then == "":
		return " until " + screen.Local(c.Until) + ", then the settings apply"
	default:
		return " until " + screen.Local(c.Until) + ", then " + plain.Line(c.Then) + " again"
	}
}

// warnOf prints warnings about a limit that was set. Without an answer of Redis it does not warn about use.
func (l *limitsCommand) warnOf(ctx context.Context, tree *limits.Tree, set limits.Override) {
	l.warnOfPath(set.Level)
	if set.Level == limits.LevelGlobal && len(set.Limits) == 0 {
		warn(l.out, "nothing bounds all events together now: a flood of many categories goes out whole")
	}
	if slices.ContainsFunc(set.Limits, func(limit limits.Limit) bool { return limit.Capacity() == 0 }) {
		warn(l.out, "nothing of it is sent any more; notifier mute does that until an end, and then reports what was dropped")
		return
	}
	for _, pointless := range tree.Pointless() {
		if pointless.Level == set.Level {
			warn(l.out, pointless.String())
		}
	}
	levels, _, err := l.usage(ctx, tree)
	if err != nil {
		return
	}
	for _, use := range levels {
		if use.Level == set.Level && use.Used > use.Size {
			warn(l.out, wordsOf([]store.LevelUse{use})[use.Level]+" are used, so nothing more of it is sent until enough of them are free")
		}
	}
	l.warnOfFullLimits(ctx, tree, set.Level)
}

func warn(out io.Writer, text string) { _, _ = fmt.Fprintf(out, "warning: %s\n", text) }

// warnOfPath warns about a path that is probably mistyped.
func (l *limitsCommand) warnOfPath(level string) {
	path, _ := limits.SplitKey(level)
	path = strings.TrimSuffix(path, ".*")
	known := l.theirs.categories()
	if len(l.theirs.Reports) == 0 || event.ValidatePath(path) != nil || slices.ContainsFunc(known, func(other string) bool {
		return other == path || strings.HasPrefix(other, path+".")
	}) {
		return
	}
	if near := plain.Nearest(path, known); near != "" {
		warn(l.out, fmt.Sprintf("no recent event of %s is known; %s exists", path, near))
	}
}

// warnOfFullLimits warns about a full limit of another level on the path. For a rule of many paths it checks the root alone.
func (l *limitsCommand) warnOfFullLimits(ctx context.Context, tree *limits.Tree, level string) {
	path, _ := limits.SplitKey(level)
	if event.ValidatePath(path) != nil || level == limits.LevelGlobal || level == limits.LevelCategory {
		path = "a" // stands for any category; the limits below the root are left out
	}
	_ = l.withStore(tree, func(shared *store.Redis) error {
		known, err := shared.Readings.Explain(ctx, store.Request{ID: path + " ", Category: path, Cost: 1})
		if err != nil {
			return err
		}
		for _, limit := range known.Limits {
			if limit.Next == nil || limit.Level == level || path != level && limit.Path != "" {
				continue
			}
			warn(l.out, fmt.Sprintf("%s %s is full: nothing is sent before %s", limit.Level, limit.Limit, screen.Local(*limit.Next)))
		}
		return nil
	})
}
