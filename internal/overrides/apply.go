package overrides

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// Provisioned reports what [Apply] changed. Without provisioning, it reports what Apply would change.
type Provisioned struct {
	Created bool
	Changes []string // of a bucket that existed
}

// Apply creates the bucket. If the bucket exists, Apply sets the history and the lifetime of keys that workers expect, and the number of
// replicas if the options have one. Unless the options allow provisioning, it changes nothing and only reports the differences.
func Apply(ctx context.Context, js jetstream.JetStream, o Options) (Provisioned, error) {
	b := newBucket(js, o)
	found, err := b.source.look(ctx)
	if errors.Is(err, ErrNoBucket) {
		if o.Provision {
			if err := b.create(ctx); err != nil {
				return Provisioned{}, err
			}
		}
		return Provisioned{Created: true}, nil
	}
	if err != nil {
		return Provisioned{}, b.source.fail("looking for", err)
	}
	config, changes := changed(found.CachedInfo().Config, o.Replicas)
	if len(changes) > 0 && o.Provision {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		if _, err := js.UpdateStream(ctx, config); err != nil {
			return Provisioned{}, b.source.fail("updating", b.source.explain(err, b.source.right("STREAM.UPDATE")))
		}
	}
	return Provisioned{Changes: changes}, nil
}

// changed returns the stream of a bucket with the expected history, lifetime of keys and replicas, and lists the differences.
func changed(config jetstream.StreamConfig, wanted int) (_ jetstream.StreamConfig, changes []string) {
	if config.MaxMsgsPerSubject < jetstream.KeyValueMaxHistory {
		changes = append(changes, fmt.Sprintf("history %d, was %d", jetstream.KeyValueMaxHistory, config.MaxMsgsPerSubject))
		config.MaxMsgsPerSubject = jetstream.KeyValueMaxHistory
	}
	if config.MaxAge > 0 {
		changes = append(changes, fmt.Sprintf("ttl unlimited, was %s", config.MaxAge.Round(time.Second)))
		config.MaxAge = 0
	}
	if wanted != replicas.Auto && config.Replicas != wanted {
		changes = append(changes, fmt.Sprintf("num_replicas %d, was %d", wanted, config.Replicas))
		config.Replicas = wanted
	}
	return config, changes
}
