package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

func newLimitsAdoptCommand(l *limitsCommand) *cobra.Command {
	command := &cobra.Command{
		Use:   "adopt",
		Short: "Put the limits of the bucket in force although Redis knows newer ones",
		Long: "Put the limits of the bucket in force although Redis knows newer limits: after NATS was restored from a backup, or\n" +
			"replaced by another cluster. Until then Redis turns away workers that read the bucket: they are not ready and\n" +
			"take no events. Changes that were made after the backup are lost. Counts stay.\n\n" +
			"If the bucket is not older, the command changes nothing.",
		Args: cobra.MatchAll(cobra.NoArgs, somebodyToAsk(&l.yes)),
		RunE: l.adopt,
	}
	command.Flags().BoolVar(&l.yes, "yes", false, "do not ask")
	return command
}

// adopt prints both states, asks, and puts the printed state of the bucket in force.
func (l *limitsCommand) adopt(cmd *cobra.Command, _ []string) error {
	var shown differing
	err := l.connected(reads, func(ctx context.Context, _ []string) (err error) {
		if shown, err = l.compare(ctx); err != nil {
			return err
		}
		return shown.print(l.out)
	})(cmd, nil)
	if err != nil || !shown.older() {
		return err
	}
	if !l.yes { // no connection is open meanwhile, so there is no hurry
		if agreed, err := screen.Confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), "Put the bucket's state in force?"); !agreed {
			return err
		}
	}
	return l.connected(reads, func(ctx context.Context, _ []string) error { return l.putInForce(ctx, shown) })(cmd, nil)
}

// differing has the state of the bucket, and the position that Redis has in force.
type differing struct {
	bucket  overrides.Snapshot
	inForce limits.Position
	since   time.Time
}

// older reports whether Redis rejects the decisions of workers that read the bucket.
func (d differing) older() bool { return setup.Position(d.bucket).Before(d.inForce) }

// compare reads Redis and then the bucket, so that a change between the two makes the bucket newer. It fails if the bucket is absent.
func (l *limitsCommand) compare(ctx context.Context) (d differing, err error) {
	if _, err = l.limits.Bucket(); err != nil {
		return d, err
	}
	err = l.withStore(l.limits.Tree, func(shared *store.Redis) (err error) {
		d.inForce, d.since, err = shared.Positions.InForce(ctx)
		return err
	})
	if err != nil {
		return d, fmt.Errorf("redis: %s", setup.ExplainRedis(err, l.settings.Redis))
	}
	_, d.bucket, err = l.load(ctx)
	return d, err
}

func (d differing) print(out io.Writer) error {
	if !d.older() {
		_, err := fmt.Fprintf(out, "nothing to adopt: the bucket holds %s, in force is %s\n", setup.Position(d.bucket), d.inForce)
		return err
	}
	if err := screen.PrintTable(out, [][]string{
		{"in force:", fmt.Sprintf("%s, since %s", d.inForce, screen.Local(d.since))},
		{"in the bucket:", setup.Position(d.bucket).String()},
	}); err != nil {
		return err
	}
	rows := [][]string{{"LEVEL", "LIMIT", "SET", "BY"}}
	for _, e := range d.bucket.Entries {
		rows = append(rows, []string{e.Name.String(), plain.Line(e.Value) + ending(e), screen.Local(e.Changed), author(e.By)})
	}
	return printList(out, rows, "the bucket overrides no limit", 0)
}

var errChangedMeanwhile = errors.New("limits were changed meanwhile, nothing is adopted: look again")

// putInForce puts the printed state in force, unless something has changed since.
func (l *limitsCommand) putInForce(ctx context.Context, shown differing) error {
	now, err := l.compare(ctx)
	if err != nil {
		return err
	}
	if setup.Position(now.bucket) != setup.Position(shown.bucket) || now.inForce != shown.inForce {
		return errChangedMeanwhile
	}
	bucket, err := l.limits.Bucket()
	if err != nil {
		return err
	}
	revision, err := bucket.NoteAdoption(ctx, now.bucket, shown.inForce.String())
	if err != nil {
		return err
	}
	// Later changes are newer than this position, so a worker that reads them puts them in force.
	next := limits.Position{Generation: shown.bucket.Generation, Revision: revision}
	return l.withStore(l.limits.Tree, func(shared *store.Redis) error {
		put, err := shared.Positions.PutInForce(ctx, shown.inForce, next)
		switch {
		case err != nil:
			return fmt.Errorf("redis: %s", setup.ExplainRedis(err, l.settings.Redis))
		case !put:
			return errChangedMeanwhile
		}
		_, err = fmt.Fprintf(l.out, "in force is %s, replacing %s\n", next, shown.inForce)
		return err
	})
}
