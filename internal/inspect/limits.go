package inspect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

// Limits are the limits of settings, and the bucket of the live limits that override them.
type Limits struct {
	Tree   *limits.Tree // of the settings alone
	Live   *limits.Live
	bucket *overrides.Bucket // nil: the bucket is absent and may not be created
	name   string            // of the bucket
}

// OpenLimits opens the bucket of live limits, and creates it if it is absent and NOTIFIER_NATS_PROVISION is true. Changes get the
// name of an author.
func OpenLimits(ctx context.Context, connection *stream.Connection, settings config.Config, author string) (Limits, error) {
	tree, err := limits.NewTree(settings.Limits.Plan())
	if err != nil {
		return Limits{}, err
	}
	js, options := setup.JetStream(connection), setup.Overrides(settings, slog.New(slog.DiscardHandler))
	options.By = author
	bucket, err := overrides.Open(ctx, js, options)
	if err != nil && !errors.Is(err, overrides.ErrNoBucket) {
		return Limits{}, err
	}
	return Limits{Tree: tree, Live: setup.Live(js, settings, options), bucket: bucket, name: options.Name}, nil
}

// Bucket returns the bucket. If the bucket is absent, it returns [overrides.ErrNoBucket].
func (l Limits) Bucket() (*overrides.Bucket, error) {
	if l.bucket == nil {
		return nil, fmt.Errorf("%w: %s (notifier provision creates it)", overrides.ErrNoBucket, l.name)
	}
	return l.bucket, nil
}

// InForce reads the bucket, and returns its contents with the limits that result. Without a bucket, no limit is overridden.
func (l Limits) InForce(ctx context.Context) (s overrides.Snapshot, rules limits.Ruleset, err error) {
	if l.bucket != nil {
		if s, err = l.bucket.Load(ctx); err != nil {
			return s, rules, err
		}
	}
	rules, err = l.Live.Ruleset(s.Generation, s.Revision, setup.LiveEntries(s))
	rules.Mutes = setup.Mutes(s)
	return s, rules, err
}
