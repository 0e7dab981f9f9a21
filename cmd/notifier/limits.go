package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// limitsTimeout bounds what a command asks of NATS and Redis.
const limitsTimeout = 15 * time.Second

func newLimitsCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "limits",
		Short: "Show the limits in force, or change them while workers run",
		Long: "Print the limits in force, where each comes from (default, environment, or live: set with limits set), and how\n" +
			"many of its slots are taken now. A rule for many paths, such as category, shows its fullest path.\n\n" +
			"A JetStream key-value bucket (NOTIFIER_LIMITS_BUCKET) keeps the changes. All workers watch it: a change is in\n" +
			"force everywhere at once, without a restart.",
		Example: "  notifier limits set payments 40/30m\n" +
			"  notifier limits set global 200/30m+20/1m\n" +
			"  notifier limits set 'payments.*' 'token:100/1h;burst=20' --shadow\n" +
			"  notifier limits unset payments\n" +
			"  notifier limits history\n" +
			"  notifier limits rollback 12\n" +
			"  notifier limits adopt",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withLimits(cmd, "", func(ctx context.Context, l *limitsCommand) error { return l.show(ctx) })
		},
	}
	shadow, by := false, ""
	set := &cobra.Command{
		Use:   "set PATH LIMIT",
		Short: "Override the limit of a path, global or category",
		Args:  exactArguments(2),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return withLimits(cmd, by, func(ctx context.Context, l *limitsCommand) error {
				return l.set(ctx, overrides.Name{Pattern: arguments[0], Shadow: shadow}, arguments[1])
			})
		},
	}
	unset := &cobra.Command{
		Use:   "unset PATH",
		Short: "Remove an override, so that the limit of the settings is in force again",
		Args:  exactArguments(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return withLimits(cmd, by, func(ctx context.Context, l *limitsCommand) error {
				return l.unset(ctx, overrides.Name{Pattern: arguments[0], Shadow: shadow})
			})
		},
	}
	for _, changing := range []*cobra.Command{set, unset} {
		changing.Flags().BoolVar(&shadow, "shadow", false, "change the shadow limits, which have no effect on events")
	}
	history := &cobra.Command{
		Use:   "history",
		Short: "List the changes in the bucket and who made them, the oldest first",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withLimits(cmd, "", func(ctx context.Context, l *limitsCommand) error { return l.history(ctx) })
		},
	}
	rollback := &cobra.Command{
		Use:   "rollback REVISION",
		Short: "Restore all overrides of a revision",
		Args:  exactArguments(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			revision, err := strconv.ParseUint(arguments[0], 10, 64)
			if err != nil {
				return &usageError{fmt.Errorf("%q is not a revision, which is a number that limits history shows", arguments[0])}
			}
			return withLimits(cmd, by, func(ctx context.Context, l *limitsCommand) error { return l.rollback(ctx, revision) })
		},
	}
	adopt := newLimitsAdoptCommand(&by)
	for _, changing := range []*cobra.Command{set, unset, rollback, adopt} {
		changing.Flags().StringVar(&by, "as", "", "name of the author in the history (default: the user of the NATS connection)")
	}
	command.AddCommand(set, unset, history, rollback, adopt)
	return command
}

// exactArguments is cobra's check, as a usage error.
func exactArguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		if len(arguments) == n {
			return nil
		}
		return &usageError{fmt.Errorf("expected: %s\nSee '%s --help'", cmd.UseLine(), cmd.CommandPath())}
	}
}

// limitsCommand is what the commands work with.
type limitsCommand struct {
	settings config.Config
	bucket   *overrides.Bucket // nil if there is none and none may be made
	earlier  limits.Earlier
	out      io.Writer
}

// withLimits connects. Changes are made in the name of `by`, or else of the user of the connection.
func withLimits(cmd *cobra.Command, by string, run func(ctx context.Context, l *limitsCommand) error) error {
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		return &usageError{err}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), limitsTimeout)
	defer cancel()
	logger := slog.New(slog.DiscardHandler)
	connection, err := connectNATS(settings.NATS, logger)
	if err == nil {
		defer connection.Conn.Close()
		err = awaitConnection(ctx, connection)
	}
	if err != nil {
		return fmt.Errorf("nats: %s", explainNATS(err))
	}
	js, err := jetstream.New(connection.Conn)
	if err != nil {
		return fmt.Errorf("preparing for live limits: %w", err)
	}
	options := overridesOptions(settings)
	options.Logger, options.By = logger, cmp.Or(by, natsUser(settings.NATS))
	l := &limitsCommand{settings: settings, out: cmd.OutOrStdout()}
	l.earlier = func(level string, shadow bool) []string { return earlierValues(js, options, level, shadow) }
	l.bucket, err = overrides.Open(ctx, js, options)
	if err != nil && !errors.Is(err, overrides.ErrNoBucket) {
		return explainDenied(err, connection)
	}
	return explainDenied(run(ctx, l), connection)
}

// open is the bucket, which has to be there.
func (l *limitsCommand) open() (*overrides.Bucket, error) {
	if l.bucket == nil {
		return nil, fmt.Errorf("%w: %s (NOTIFIER_NATS_PROVISION=true has it created)", overrides.ErrNoBucket, l.settings.Limits.Bucket)
	}
	return l.bucket, nil
}

func (l *limitsCommand) load(ctx context.Context) (overrides.Snapshot, error) {
	if l.bucket == nil {
		return overrides.Snapshot{}, nil
	}
	return l.bucket.Load(ctx)
}

// rules are those that workers with these settings have in force.
func (l *limitsCommand) rules(s overrides.Snapshot) (limits.Ruleset, error) {
	live := limits.NewLive(l.settings.Limits.Plan(), l.settings.Limits.ShadowLimits, l.earlier, slog.New(slog.DiscardHandler))
	return live.Ruleset(s.Generation, s.Revision, liveEntries(s))
}

// set refuses what workers would ignore.
func (l *limitsCommand) set(ctx context.Context, name overrides.Name, limits string) error {
	entry := overrides.Change{Name: name, Value: limits}
	override, err := l.override(entry)
	if err != nil {
		return &usageError{err}
	}
	bucket, err := l.open()
	if err != nil {
		return err
	}
	s, err := bucket.Load(ctx)
	if err != nil {
		return err
	}
	s.Entries = slices.DeleteFunc(s.Entries, func(e overrides.Change) bool { return e.Name == name })
	s.Entries = append(s.Entries, entry)
	if err := l.goTogether(s); err != nil {
		return &usageError{err}
	}
	revision, err := bucket.Set(ctx, name, override.Limits.String())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.out, "%s is %s (revision %d)\n", name, override.Limits, revision)
	return err
}

// override is what an entry sets. Workers ignore an entry for which there is an error.
func (l *limitsCommand) override(e overrides.Change) (limits.Override, error) {
	override, err := limits.ParseOverride(e.Name.Pattern, e.Value)
	if err == nil {
		_, err = limits.NewTree(l.settings.Limits.Plan().With([]limits.Override{override}, limits.FromLive))
	}
	return override, err
}

// goTogether tells whether overrides can be in force together with the settings.
func (l *limitsCommand) goTogether(s overrides.Snapshot) error {
	var live, shadow []limits.Override
	for _, e := range s.Entries {
		override, err := l.override(e)
		switch {
		case err != nil: // workers ignore it
		case e.Name.Shadow:
			shadow = append(shadow, override)
		default:
			live = append(live, override)
		}
	}
	_, err := limits.NewRuleset(l.settings.Limits.Plan(), live, l.settings.Limits.ShadowLimits, shadow)
	return err
}

func (l *limitsCommand) unset(ctx context.Context, name overrides.Name) error {
	bucket, err := l.open()
	if err != nil {
		return err
	}
	revision, err := bucket.Unset(ctx, name)
	if errors.Is(err, overrides.ErrName) {
		return &usageError{err}
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.out, "%s is what the settings say (revision %d)\n", name, revision)
	return err
}

func (l *limitsCommand) history(ctx context.Context) error {
	if l.bucket == nil {
		return nil
	}
	changes, err := l.bucket.History(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"REVISION", "WHEN", "BY", "LEVEL", "LIMIT"}}
	for _, change := range changes {
		level, value := change.Name.String(), change.Value
		switch {
		case change.Adopted:
			level, value = "(adopted)", "in the place of "+change.Value
		case change.Deleted:
			value = "(unset)"
		}
		rows = append(rows, []string{fmt.Sprint(change.Revision), change.Changed.Local().Format(time.DateTime), author(change.By), level, value})
	}
	return printTable(l.out, rows)
}

// author is who made a change, which other programs do not tell.
func author(by string) string { return cmp.Or(by, "-") }

func (l *limitsCommand) rollback(ctx context.Context, revision uint64) error {
	bucket, err := l.open()
	if err != nil {
		return err
	}
	changed, err := bucket.Rollback(ctx, revision)
	for _, name := range changed {
		_, _ = fmt.Fprintln(l.out, "changed:", name)
	}
	if err == nil && len(changed) == 0 {
		_, _ = fmt.Fprintln(l.out, "nothing to change")
	}
	return err
}

// show prints the limits in force and what is used of them.
func (l *limitsCommand) show(ctx context.Context) error {
	s, err := l.load(ctx)
	if err != nil {
		return err
	}
	rules, err := l.rules(s)
	if err != nil {
		return err
	}
	used, problem := l.usage(ctx, rules.Tree)
	rows := [][]string{{"LEVEL", "LIMIT", "FROM", "USED"}}
	for _, level := range rules.Tree.AllLevels() {
		rows = append(rows, []string{level.Level, level.Limits.String(), string(rules.Tree.Origin(level.Level)), used[level.Level]})
	}
	if rules.Shadow != nil {
		for _, level := range rules.Shadow.Levels() {
			if origin := rules.Shadow.Origin(level.Level); !slices.ContainsFunc(rules.Tree.Levels(), func(n limits.Node) bool {
				return n.Level == level.Level && n.Limits.String() == level.Limits.String()
			}) {
				rows = append(rows, []string{"shadow " + level.Level, level.Limits.String(), string(origin), ""})
			}
		}
	}
	if err := printTable(l.out, rows); err != nil {
		return err
	}
	for _, guarantee := range rules.Tree.Guarantees() {
		_, _ = fmt.Fprintf(l.out, "%d slots of each global window belong to %s\n", guarantee.Slots, guarantee.Path)
	}
	for _, entry := range s.Entries {
		if _, err := l.override(entry); err != nil {
			_, _ = fmt.Fprintf(l.out, "workers ignore what %s is set to in revision %d, and keep its last good limit: %v\n",
				entry.Name, entry.Revision, err)
		}
	}
	if l.bucket == nil {
		_, _ = fmt.Fprintf(l.out, "the bucket %s is absent: nothing can be changed while workers run\n", l.settings.Limits.Bucket)
	} else {
		_, _ = fmt.Fprintf(l.out, "revision %d of the bucket %s\n", s.Revision, l.settings.Limits.Bucket)
	}
	if problem == nil {
		var inForce limits.Position
		if inForce, _, problem = l.inForce(ctx); position(s).Before(inForce) {
			_, _ = fmt.Fprintf(l.out, "workers that read this take no events, since newer limits are in force: %s; see limits adopt\n", inForce)
		}
	}
	if problem != nil {
		return fmt.Errorf("what is used is not known: redis: %s", explainRedis(problem))
	}
	return nil
}

// usage tells in words what is used of each level: of one that covers many paths, of the fullest.
func (l *limitsCommand) usage(ctx context.Context, tree *limits.Tree) (map[string]string, error) {
	var levels []throttle.LevelUse
	err := l.withStoreOf(tree, func(store *throttle.Redis) (err error) {
		levels, err = store.LevelUsage(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	words := make(map[string]string, len(levels))
	for _, level := range levels {
		text := fmt.Sprintf("%d of %d", level.Used, cmp.Or(level.Limit.Burst, level.Limit.Count))
		if level.Paths > 1 || level.Path != "" && level.Path != level.Level {
			text += " (" + level.Path + ")"
		}
		if level.Paths > 1 {
			text += fmt.Sprintf(", %d paths in use", level.Paths)
		}
		words[level.Level] = strings.TrimSpace(text)
	}
	return words, nil
}

// withStore gives what talks to Redis about all limits together.
func (l *limitsCommand) withStore(use func(*throttle.Redis) error) error {
	tree, err := limits.NewTree(l.settings.Limits.Plan())
	if err != nil {
		return err
	}
	return l.withStoreOf(tree, use)
}

// withStoreOf gives what talks to Redis about the limits of a tree.
func (l *limitsCommand) withStoreOf(tree *limits.Tree, use func(*throttle.Redis) error) error {
	client, err := newRedisClient(l.settings.Redis, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return use(newStore(client, l.settings.Redis, throttle.Settings{Tree: tree, Lease: l.settings.NATS.AckWait}))
}
