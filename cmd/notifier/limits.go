package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// limitsTimeout bounds the requests of a command to NATS and Redis.
const limitsTimeout = 15 * time.Second

func newLimitsCommand() *cobra.Command {
	l := &limitsCommand{}
	command := &cobra.Command{
		Use:   "limits [PATH]",
		Args:  onePathAtMost,
		Short: "Show the limits in force, or change them while workers run",
		Long: "Print the limits in force, where each comes from (default, environment, or live: set with limits set), and how\n" +
			"many of its slots are taken now. A rule for many paths, such as category, shows its fullest path. With a path, print\n" +
			"every rule that matches it or a path above it, which of them wins, what is used, and when the next slot opens.\n\n" +
			"The limits are those of the running workers. Where none answers, they are those of the settings here.\n\n" +
			"A JetStream key-value bucket (NOTIFIER_LIMITS_BUCKET) keeps the changes. All workers watch it: a change is in\n" +
			"force everywhere at once, without a restart.",
		Example: "  notifier limits payments.refunds\n" +
			"  notifier limits set payments 40/30m\n" +
			"  notifier limits set payments 0/1h --for 2h\n" +
			"  notifier limits set global 200/30m+20/1m\n" +
			"  notifier limits set 'payments.*' 'token:100/1h;burst=20' --shadow\n" +
			"  notifier limits unset payments\n" +
			"  notifier limits history\n" +
			"  notifier limits rollback 12\n" +
			"  notifier limits adopt",
		RunE: l.connected(l.show),
	}
	unset := &cobra.Command{
		Use:   "unset PATH",
		Short: "Remove an override, so that the limit of the settings is in force again",
		Args:  exactArguments(1),
		RunE:  l.connected(l.unset),
	}
	history := &cobra.Command{
		Use:   "history",
		Short: "List the changes in the bucket and who made them, the oldest first",
		RunE:  l.connected(l.history),
	}
	rollback := &cobra.Command{
		Use:   "rollback REVISION",
		Short: "Restore all overrides of a revision",
		Args:  exactArguments(1),
		RunE:  l.rollback,
	}
	set, adopt := newLimitsSetCommand(l), newLimitsAdoptCommand(l)
	for _, showing := range []*cobra.Command{command, history} {
		showing.Flags().BoolVar(&l.asJSON, "json", false, "print one line of JSON")
	}
	for _, changing := range []*cobra.Command{set, unset} {
		changing.Flags().BoolVar(&l.shadow, "shadow", false, "change the shadow limits, which have no effect on events")
	}
	for _, changing := range []*cobra.Command{set, unset, rollback, adopt} {
		changing.Flags().StringVar(&l.by, "as", "", "name of the author in the history (default: the user of the NATS connection, else user@host)")
	}
	command.AddCommand(set, unset, history, rollback, adopt)
	return command
}

// onePathAtMost takes no argument, or the path of a category.
func onePathAtMost(cmd *cobra.Command, arguments []string) error {
	switch len(arguments) {
	case 0:
		return nil
	case 1:
		if question := didYouMean(cmd, arguments); question != "" {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s is taken for a category; %s\n", arguments[0], question)
		}
		return event.ValidatePath(arguments[0])
	default:
		return fmt.Errorf("expected: %s", cmd.UseLine())
	}
}

// exactArguments says how many arguments a command takes, and which.
func exactArguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		if len(arguments) != n {
			return fmt.Errorf("expected: %s", cmd.UseLine())
		}
		return nil
	}
}

// limitsCommand is the flags of the commands, and what they work with.
type limitsCommand struct {
	by     string         // the author of a change; "" for the user of the connection
	lasts  model.Duration // of what is set; 0: it has no end
	shadow bool
	yes    bool // nobody has to agree
	asJSON bool

	settings config.Config     // with the limits of the running workers, where there are any
	workers  int               // that answer
	theirs   deployment        // what they report
	tree     *limits.Tree      // of the settings
	bucket   *overrides.Bucket // nil if there is none and none may be made
	live     *limits.Live
	ends     map[overrides.Name]time.Time // of live limits that end by themselves
	out      io.Writer
}

// connected returns a command's RunE, which reads the settings, opens the bucket and then works.
func (l *limitsCommand) connected(work func(ctx context.Context, arguments []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, arguments []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), limitsTimeout)
		defer cancel()
		return withNATS(ctx, func(settings config.Config, connection *consume.Connection) error {
			l.settings, l.out = settings, cmd.OutOrStdout()
			err := l.useWorkersLimits(ctx, connection)
			if err == nil {
				err = l.open(ctx, connection)
			}
			if err == nil {
				err = work(ctx, arguments)
			}
			return explainDenied(err, connection)
		})
	}
}

// useWorkersLimits puts the limits of the running workers in the place of those of the settings here.
func (l *limitsCommand) useWorkersLimits(ctx context.Context, connection *consume.Connection) error {
	theirs, err := askWorkersLimits(ctx, connection, l.settings)
	if l.workers = len(theirs.reports); l.workers > 0 {
		l.settings.Limits = theirs.settings
		l.theirs = deployment{reports: theirs.reports, limits: theirs.settings}
	}
	return err
}

// open opens the bucket, if it is there or may be made.
func (l *limitsCommand) open(ctx context.Context, connection *consume.Connection) (err error) {
	if l.tree, err = limits.NewTree(l.settings.Limits.Plan()); err != nil {
		return err
	}
	js, options := jetStream(connection), overridesOptions(l.settings, slog.New(slog.DiscardHandler))
	options.By = cmp.Or(l.by, natsUser(l.settings.NATS), userAtHost())
	l.live = limits.NewLive(l.settings.Limits.Plan(), l.settings.Limits.ShadowLimits, earlierValues(js, options), options.Logger)
	l.bucket, err = overrides.Open(ctx, js, options)
	if errors.Is(err, overrides.ErrNoBucket) {
		return nil
	}
	return err
}

// inForce reads the bucket, if there is one, and returns the limits with what it holds.
func (l *limitsCommand) inForce(ctx context.Context) (s overrides.Snapshot, rules limits.Ruleset, err error) {
	if l.bucket != nil {
		if s, err = l.bucket.Load(ctx); err != nil {
			return s, rules, err
		}
	}
	rules, err = l.live.Ruleset(s.Generation, s.Revision, liveEntries(s))
	return s, rules, err
}

func (l *limitsCommand) needBucket() error {
	if l.bucket == nil {
		return fmt.Errorf("%w: %s (notifier provision creates it)", overrides.ErrNoBucket, l.settings.Limits.Bucket)
	}
	return nil
}

func (l *limitsCommand) unset(ctx context.Context, arguments []string) error {
	if err := l.needBucket(); err != nil {
		return err
	}
	name := overrides.Name{Pattern: arguments[0], Shadow: l.shadow}
	revision, err := l.bucket.Unset(ctx, name)
	if errors.Is(err, overrides.ErrName) {
		return &usageError{err}
	}
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(l.out, "%s is what the settings say (revision %d)\n", name, revision)
	return l.enforce(ctx)
}

// enforce has Redis reject the decisions of workers that do not know the newest change of the bucket. After it, the change is in force for every
// event, also where a worker was suspended or cut off from NATS when the change was made.
func (l *limitsCommand) enforce(ctx context.Context) error {
	s, err := l.bucket.Load(ctx)
	if err != nil {
		return fmt.Errorf("the change is stored: reading it back: %w", err)
	}
	var inForce limits.Position
	err = l.withStore(l.tree, func(store *throttle.Redis) (err error) {
		inForce, err = store.Advance(ctx, position(s))
		return err
	})
	if err != nil {
		return fmt.Errorf("revision %d is stored, and workers apply it as soon as NATS delivers it; a worker that is suspended or cut off from NATS "+
			"may still decide by older limits, as redis does not know the revision: %s", s.Revision, explainRedis(err))
	}
	l.warnOfNewer(s, inForce)
	return nil
}

func (l *limitsCommand) rollback(cmd *cobra.Command, arguments []string) error {
	revision, err := strconv.ParseUint(arguments[0], 10, 64)
	if err != nil {
		return &usageError{fmt.Errorf("%q is not a revision, which is a number that limits history shows", arguments[0])}
	}
	return l.connected(func(ctx context.Context, _ []string) error {
		if err := l.needBucket(); err != nil {
			return err
		}
		changes, err := l.bucket.Rollback(ctx, revision)
		for _, change := range changes {
			_, _ = fmt.Fprintf(l.out, "%s: %s -> %s (revision %d)\n", change.Name, valueOf(change.Old), valueOf(change.Value)+ending(change.Change), change.Revision)
		}
		if len(changes) == 0 {
			if err == nil {
				_, _ = fmt.Fprintln(l.out, "nothing to change")
			}
			return err
		}
		return errors.Join(err, l.enforce(ctx))
	})(cmd, arguments)
}

// withStore connects to Redis for the limits of a tree, and closes the connection after the use.
func (l *limitsCommand) withStore(tree *limits.Tree, use func(*throttle.Redis) error) error {
	client, err := newRedisClient(l.settings.Redis, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return use(newStore(client, l.settings.Redis, throttle.Settings{Tree: tree, Lease: l.settings.NATS.AckWait}))
}
