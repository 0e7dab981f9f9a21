package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// limitsTimeout bounds all requests of a command to NATS and Redis.
const limitsTimeout = 15 * time.Second

func newLimitsCommand() *cobra.Command {
	l := &limitsCommand{}
	command := &cobra.Command{
		Use:   "limits [PATH[@KEY]]",
		Args:  cobra.MatchAll(numberOfArguments(0, 1), checkLimitsPath),
		Short: "Show the limits in force, or change them while workers run",
		Long: "Print the limits in force, where each comes from (default, environment, or live: set with limits set), and how\n" +
			"many of its slots are taken now. A rule for many paths, such as category, shows its fullest path. With a path, print\n" +
			"every rule that matches it or a path above it, which of them wins, what is used, and when the next slot opens.\n" +
			"PATH@KEY shows how full the limits of that key are, such as payments@db-1.\n\n" +
			"The command prints the limits of the running workers or, if no worker answers, of the settings here.\n\n" +
			"A JetStream key-value bucket (NOTIFIER_LIMITS_BUCKET) keeps the changes. All workers watch it: a change is in\n" +
			"force everywhere at once, without a restart.",
		Example: "  notifier limits payments.refunds\n" +
			"  notifier limits set payments 40/30m\n" +
			"  notifier limits set payments 0/1h --for 2h\n" +
			"  notifier limits set 'payments@key' 1/1h\n" +
			"  notifier limits set global 200/30m+20/1m\n" +
			"  notifier limits set 'payments.*' 'token:100/1h;burst=20' --shadow\n" +
			"  notifier limits unset payments\n" +
			"  notifier limits history\n" +
			"  notifier limits rollback 12\n" +
			"  notifier limits adopt",
		RunE: l.connected(reads, l.show),
	}
	unset := &cobra.Command{
		Use:   "unset PATH",
		Short: "Remove an override, so that the limit of the settings is in force again",
		Args:  numberOfArguments(1, 1),
		RunE:  l.connected(removes, l.unset),
	}
	history := &cobra.Command{
		Use:   "history",
		Short: "List the changes in the bucket and who made them, the oldest first",
		RunE:  l.connected(reads, l.history),
	}
	rollback := &cobra.Command{
		Use:   "rollback REVISION",
		Short: "Restore all overrides of a revision",
		Args:  numberOfArguments(1, 1),
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

// checkLimitsPath checks the path of a category, perhaps with "@" and a key behind it.
func checkLimitsPath(cmd *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	if question := didYouMean(cmd, arguments); question != "" {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s is taken for a category; %s\n", arguments[0], question)
	}
	path, _ := limits.SplitKey(arguments[0])
	if isLevel(path) {
		return fmt.Errorf("%q is a limit and no path of events; notifier limits without a path shows it", path)
	}
	return event.ValidatePath(path)
}

// isLevel reports whether a word names one of the limits that every event has, instead of a path.
func isLevel(word string) bool { return word == limits.LevelGlobal || word == limits.LevelCategory }

type limitsFlags struct {
	by     string   // the author of a change; "" for the user of the connection
	lasts  duration // how long a changed limit stays in force; 0: until the next change
	shadow bool
	yes    bool // change without asking
	asJSON bool
}

// limitsCommand runs one of the limits commands. connected sets all fields but the flags.
type limitsCommand struct {
	limitsFlags

	effect   effect
	settings config.Config // with the limits and the bucket of the running workers, if any answers
	theirs   deployment    // what the workers report
	limits   inspect.Limits
	out      io.Writer
}

// connected returns a command's RunE, which reads the settings, opens the bucket and then works.
func (l *limitsCommand) connected(effect effect, work func(ctx context.Context, arguments []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, arguments []string) error {
		l.effect = effect
		ctx, cancel := context.WithTimeout(cmd.Context(), limitsTimeout)
		defer cancel()
		return withNATS(ctx, func(settings config.Config, connection *stream.Connection) error {
			l.settings, l.out = settings, cmd.OutOrStdout()
			err := l.open(ctx, connection)
			if failed := l.theirs.Failed; failed != nil && len(l.theirs.Reports) == 0 {
				warn(cmd.ErrOrStderr(), "no worker answers with its limits, so the bucket is that of the settings here: "+failed.Error())
			} else if failed != nil {
				warn(cmd.ErrOrStderr(), "not every worker answers with its limits: "+failed.Error())
			}
			if err == nil {
				err = work(ctx, arguments)
			}
			return setup.ExplainDenied(err, connection)
		})
	}
}

type effect int

const (
	reads   effect = iota
	stores         // it creates the bucket if that is absent and the settings allow it
	removes        // it works even if no report of a worker is readable, because Redis notices a bucket that is not the workers'
)

func absentBucket(settings config.Config) string {
	text := "the bucket " + settings.Limits.Bucket + " is absent: "
	if settings.NATS.Provision {
		return text + "a worker that starts creates it, and so do limits set and mute"
	}
	return text + "nothing can be changed while workers run"
}

// open opens the limits of the running workers. If no worker answers, it opens the limits of the settings here.
func (l *limitsCommand) open(ctx context.Context, connection *stream.Connection) error {
	theirs, err := inspect.Workers(ctx, connection, l.settings)
	if err != nil && l.effect == removes {
		theirs, err = inspect.WorkersLimits{Failed: err}, nil
	}
	if err != nil {
		return err
	}
	if l.theirs = (deployment{theirs}); len(theirs.Reports) > 0 {
		l.settings = theirs.Settings
	}
	author := cmp.Or(l.by, setup.NATSUser(l.settings.NATS), setup.UserAtHost())
	settings := l.settings
	settings.NATS.Provision = settings.NATS.Provision && l.effect == stores
	l.limits, err = inspect.OpenLimits(ctx, connection, settings, author)
	return err
}

// load returns the bucket and its state. It fails if the bucket is absent.
func (l *limitsCommand) load(ctx context.Context) (bucket *overrides.Bucket, s overrides.Snapshot, err error) {
	if bucket, err = l.limits.Bucket(); err == nil {
		s, err = bucket.Load(ctx)
	}
	return bucket, s, err
}

func (l *limitsCommand) unset(ctx context.Context, arguments []string) error {
	bucket, s, err := l.load(ctx)
	if err != nil {
		return err
	}
	name := overrides.Name{Pattern: arguments[0], Shadow: l.shadow}
	revision, err := bucket.Unset(ctx, s, name)
	if errors.Is(err, overrides.ErrName) {
		return &UsageError{err}
	}
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(l.out, "%s is unset: the settings apply (revision %d)\n", name, revision)
	return l.enforce(ctx, bucket)
}

// enforce makes Redis reject the decisions of workers that have not read the newest change of the bucket. Then the change is in force for
// every event, even if a worker was suspended or disconnected from NATS.
func (l *limitsCommand) enforce(ctx context.Context, bucket *overrides.Bucket) error {
	s, err := bucket.Load(ctx)
	if err != nil {
		return fmt.Errorf("the change is stored: reading it back: %w", err)
	}
	var inForce limits.Position
	err = l.withStore(l.limits.Tree, func(shared *store.Redis) (err error) {
		inForce, err = shared.Positions.Advance(ctx, setup.Position(s))
		return err
	})
	if err != nil {
		return fmt.Errorf("revision %d is stored, and workers apply it as soon as NATS delivers it; a worker that is suspended or cut off from NATS "+
			"may still decide by older limits, as redis does not know the revision: %s", s.Revision, setup.ExplainRedis(err, l.settings.Redis))
	}
	outdated, err := isOutdated(ctx, bucket, s, inForce)
	if outdated {
		return fmt.Errorf("revision %d of the bucket %s is stored and not in force, since newer limits are: %s; see limits adopt",
			s.Revision, l.settings.Limits.Bucket, inForce)
	}
	return err
}

// isOutdated reports whether newer limits are in force than a bucket has, as after a restore. Redis was asked after the state was read, and somebody
// else may have changed the bucket between the two: isOutdated then looks at the bucket again.
func isOutdated(ctx context.Context, bucket *overrides.Bucket, read overrides.Snapshot, inForce limits.Position) (bool, error) {
	if !setup.Position(read).Before(inForce) {
		return false, nil
	}
	now, err := bucket.Load(ctx)
	if err != nil {
		return false, fmt.Errorf("%s is in force: reading the bucket again: %w", inForce, err)
	}
	return now.Generation != read.Generation || setup.Position(now).Before(inForce), nil
}

func (l *limitsCommand) rollback(cmd *cobra.Command, arguments []string) error {
	revision, err := strconv.ParseUint(arguments[0], 10, 64)
	if err != nil {
		return &UsageError{fmt.Errorf("%q is not a revision, which is a number that limits history shows", arguments[0])}
	}
	return l.connected(reads, func(ctx context.Context, _ []string) error {
		bucket, err := l.limits.Bucket()
		if err != nil {
			return err
		}
		changes, err := bucket.Rollback(ctx, revision, func(changes []overrides.Change) error { return checkAll(ctx, l.limits.Live, bucket, changes) })
		for _, change := range changes {
			_, _ = fmt.Fprintf(l.out, "%s: %s -> %s (revision %d)\n", change.Name, valueOf(change.Old), valueOf(change.Value)+ending(change.Change), change.Revision)
		}
		if len(changes) == 0 {
			if err == nil {
				_, _ = fmt.Fprintln(l.out, "nothing to change")
			}
			return err
		}
		return errors.Join(err, l.enforce(ctx, bucket))
	})(cmd, arguments)
}

// checkAll rejects changes to a bucket that workers would ignore.
func checkAll(ctx context.Context, live *limits.Live, bucket *overrides.Bucket, changes []overrides.Change) error {
	s, err := bucket.Load(ctx)
	if err != nil {
		return err
	}
	for _, change := range changes {
		s.Entries = without(s.Entries, change.Name)
		if change.Deleted {
			continue
		}
		if _, err := live.Check(setup.LiveEntry(change)); err != nil {
			return &UsageError{fmt.Errorf("workers would ignore %s: %w", change.Name, err)}
		}
		s.Entries = append(s.Entries, change)
	}
	_, err = rulesOf(live, s)
	return err
}

func without(entries []overrides.Change, name overrides.Name) []overrides.Change {
	return slices.DeleteFunc(entries, func(e overrides.Change) bool { return e.Name == name })
}

// rulesOf returns the limits that a state of the bucket puts in force. It returns a [UsageError] if they conflict.
func rulesOf(live *limits.Live, s overrides.Snapshot) (limits.Ruleset, error) {
	rules, err := live.Ruleset(s.Generation, s.Revision, setup.LiveEntries(s))
	if err != nil && !errors.Is(err, limits.ErrEarlier) {
		err = &UsageError{err}
	}
	return rules, err
}

// withStore connects to Redis with the limits of a tree, calls use, and closes the connection.
func (l *limitsCommand) withStore(tree *limits.Tree, use func(*store.Redis) error) error {
	client, err := setup.Redis(l.settings.Redis)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return use(setup.Store(client, l.settings.Redis, store.Settings{Tree: tree, Lease: l.settings.NATS.AckWait}))
}
