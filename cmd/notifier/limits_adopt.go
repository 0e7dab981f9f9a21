package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func newLimitsAdoptCommand(by *string) *cobra.Command {
	yes := false
	command := &cobra.Command{
		Use:   "adopt",
		Short: "Put the bucket's state in force although it is older than the one that is",
		Long: "Put in force what the bucket holds, although Redis knows newer limits: after NATS was restored from a backup, or\n" +
			"replaced by another cluster. Until then workers that read the bucket are turned away by Redis, are not ready and\n" +
			"take no events. Limits that were changed after the backup are as they were before; what was counted stays counted.\n\n" +
			"If the bucket is not older, nothing is changed.",
		Args: allOf(noArguments, func(cmd *cobra.Command, _ []string) error {
			if !yes && !hasTerminal(cmd.InOrStdin()) {
				return usageOf(cmd, "there is nobody to ask: use --yes")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, _ []string) error { return adoptLimits(cmd, *by, yes) },
	}
	command.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return command
}

// adoptLimits shows what is in force and what would be, asks, and changes just that.
func adoptLimits(cmd *cobra.Command, by string, yes bool) error {
	var found differing
	err := withLimits(cmd, by, func(ctx context.Context, l *limitsCommand) (err error) {
		found, err = l.compare(ctx)
		if err != nil {
			return err
		}
		return found.print(l.out)
	})
	if err != nil || !found.older() {
		return err
	}
	if !yes { // takes as long as it takes
		if agreed, err := confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), "Put the bucket's state in force?"); !agreed {
			return err
		}
	}
	return withLimits(cmd, by, func(ctx context.Context, l *limitsCommand) error { return l.adopt(ctx, found) })
}

// differing is what the bucket holds, and what Redis knows to be in force.
type differing struct {
	bucket  overrides.Snapshot
	inForce throttle.Position
	since   time.Time
}

func position(s overrides.Snapshot) throttle.Position {
	return throttle.Position{Generation: s.Generation, Revision: s.Revision}
}

// older tells whether workers that read the bucket are turned away.
func (d differing) older() bool { return position(d.bucket).Before(d.inForce) }

// compare reads both. The bucket has to be there.
func (l *limitsCommand) compare(ctx context.Context) (d differing, err error) {
	bucket, err := l.open()
	if err != nil {
		return d, err
	}
	if d.bucket, err = bucket.Load(ctx); err != nil {
		return d, err
	}
	if d.inForce, d.since, err = l.inForce(ctx); err != nil {
		return d, fmt.Errorf("redis: %s", explainRedis(err))
	}
	return d, nil
}

// inForce is the newest state that a worker has asked Redis with, and since when.
func (l *limitsCommand) inForce(ctx context.Context) (in throttle.Position, since time.Time, err error) {
	err = l.withLimiter(func(limiter *throttle.Redis) error {
		in, since, err = limiter.InForce(ctx)
		return err
	})
	return in, since, err
}

func (d differing) print(out io.Writer) error {
	if !d.older() {
		_, err := fmt.Fprintf(out, "nothing to adopt: the bucket holds %s, in force is %s\n", position(d.bucket), d.inForce)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "in force:\t%s, since %s\n", d.inForce, d.since.Local().Format(time.DateTime))
	_, _ = fmt.Fprintf(table, "in the bucket:\t%s\n", position(d.bucket))
	if err := table.Flush(); err != nil {
		return err
	}
	if len(d.bucket.Entries) == 0 {
		_, err := fmt.Fprintln(out, "the bucket overrides no limit")
		return err
	}
	table = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "LEVEL\tLIMIT\tSET\tBY")
	for _, e := range d.bucket.Entries {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", e.Name, e.Value, e.Changed.Local().Format(time.DateTime), author(e.By))
	}
	return table.Flush()
}

var errChangedMeanwhile = errors.New("limits were changed meanwhile, nothing is adopted: look again")

// adopt puts in force what was shown, unless something has changed since.
func (l *limitsCommand) adopt(ctx context.Context, shown differing) error {
	bucket, err := l.open()
	if err != nil {
		return err
	}
	now, err := l.compare(ctx)
	if err != nil {
		return err
	}
	if position(now.bucket) != position(shown.bucket) || now.inForce != shown.inForce {
		return errChangedMeanwhile
	}
	revision, err := bucket.NoteAdoption(ctx, shown.inForce.String())
	if err != nil {
		return err
	}
	// What others change in the bucket meanwhile is newer than this, and in force as soon as a worker has it.
	next := throttle.Position{Generation: shown.bucket.Generation, Revision: revision}
	return l.withLimiter(func(limiter *throttle.Redis) error {
		put, err := limiter.PutInForce(ctx, shown.inForce, next)
		switch {
		case err != nil:
			return fmt.Errorf("redis: %s", explainRedis(err))
		case !put:
			return errChangedMeanwhile
		}
		_, err = fmt.Fprintf(l.out, "in force is %s, in the place of %s\n", next, shown.inForce)
		return err
	})
}
