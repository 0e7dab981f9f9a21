package journal

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// Names describe the journal's stream.
type Names struct {
	Stream   string
	Subject  string        // producers' subject; the journal's subjects are <subject>-journal.<first level of the category>
	Age      time.Duration // of the oldest entries
	MaxBytes int64         // of the stream; newer entries push out older ones
	Replicas int           // see package replicas
}

// All matches every subject of the journal.
func (n Names) All() string { return n.Subject + "-journal.>" }

// SubjectOf is the subject of the entries of a first-level category.
func (n Names) SubjectOf(first string) string { return n.Subject + "-journal." + first }

// Config is the configuration of a new stream.
func (n Names) Config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:       n.Stream,
		Subjects:   []string{n.All()},
		Retention:  jetstream.LimitsPolicy,
		Storage:    jetstream.FileStorage,
		Discard:    jetstream.DiscardOld,
		MaxAge:     n.Age,
		MaxBytes:   n.MaxBytes,
		Duplicates: min(duplicateWindow, n.Age),
	}
}

// duplicateWindow is how long the stream ignores a second copy of a batch. A worker publishes a second copy if the confirmation was lost.
const duplicateWindow = 2 * time.Minute

const apiTimeout = 5 * time.Second

// Provision creates the stream if it is absent. It does not change an existing stream.
func (n Names) Provision(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, _, err := replicas.EnsureStream(ctx, js, n.Config(), n.Replicas)
	return err
}
