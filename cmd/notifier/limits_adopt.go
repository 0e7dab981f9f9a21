package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func newLimitsAdoptCommand(by *string) *cobra.Command {
	yes := false
	command := &cobra.Command{
		Use:   "adopt",
		Short: "Put the limits of the bucket in force although Redis knows newer ones",
		Long: "Put the limits of the bucket in force although Redis knows newer limits: after NATS was restored from a backup, or\n" +
			"replaced by another cluster. Until then Redis turns away workers that read the bucket: they are not ready and\n" +
			"take no events. Changes that were made after the backup are lost. What was counted stays counted.\n\n" +
			"If the bucket is not older, the command changes nothing.",
		Args: allOf(noArguments, func(cmd *cobra.Command, _ []string) error { return somebodyToAsk(cmd, yes) }),
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
	inForce limits.Position
	since   time.Time
}

func position(s overrides.Snapshot) limits.Position {
	return limits.Position{Generation: s.Generation, Revision: s.Revision}
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
func (l *limitsCommand) inForce(ctx context.Context) (in limits.Position, since time.Time, err error) {
	err = l.withStore(func(store *throttle.Redis) error {
		in, since, err = store.InForce(ctx)
		return err
	})
	return in, since, err
}

func (d differing) print(out io.Writer) error {
	if !d.older() {
		_, err := fmt.Fprintf(out, "nothing to adopt: the bucket holds %s, in force is %s\n", position(d.bucket), d.inForce)
		return err
	}
	if err := printTable(out, [][]string{
		{"in force:", fmt.Sprintf("%s, since %s", d.inForce, d.since.Local().Format(time.DateTime))},
		{"in the bucket:", position(d.bucket).String()},
	}); err != nil {
		return err
	}
	if len(d.bucket.Entries) == 0 {
		_, err := fmt.Fprintln(out, "the bucket overrides no limit")
		return err
	}
	rows := [][]string{{"LEVEL", "LIMIT", "SET", "BY"}}
	for _, e := range d.bucket.Entries {
		rows = append(rows, []string{e.Name.String(), e.Value, e.Changed.Local().Format(time.DateTime), author(e.By)})
	}
	return printTable(out, rows)
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
	next := limits.Position{Generation: shown.bucket.Generation, Revision: revision}
	return l.withStore(func(store *throttle.Redis) error {
		put, err := store.PutInForce(ctx, shown.inForce, next)
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
