package livelimits

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// silentBucket is a JetStream that does not answer about streams before it is opened.
type silentBucket struct {
	jetstream.JetStream
	opened chan struct{}
}

func (s silentBucket) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	select {
	case <-s.opened:
		return s.JetStream.Stream(ctx, name)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A worker is not ready before it has read the bucket, however long that takes. It is ready if there is certainly no bucket.
func TestNotReadyBeforeTheBucketIsRead(t *testing.T) {
	t.Parallel()
	for name, exists := range map[string]bool{"a bucket": true, "no bucket": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := testkit.NewLog(t)
			js := silentBucket{servertest.JetStream(t, servertest.StartNATS(t).URL), make(chan struct{})}
			adopted := make(chan limits.Ruleset, 1)
			var settings config.Config
			settings.Limits.Bucket, settings.NATS.Provision = "limits", exists
			live := New(Options{
				Settings: settings, JetStream: js, Logger: log.Logger(), Adopt: func(rules limits.Ruleset) { adopted <- rules },
				InForce: func(context.Context) (limits.Position, time.Time, error) { return limits.Position{}, time.Time{}, nil },
			})
			ctx, stop := context.WithCancel(testkit.Context(t))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				live.Run(ctx)
			}()
			defer func() {
				stop()
				<-ended
			}()
			readable := make(chan error, 1)
			go func() { readable <- live.AwaitReadable(ctx) }()
			testkit.Eventually(t, "the worker waits", func() bool { return len(log.Lines("live limits are unreadable: pulling no events")) == 1 })
			testkit.Fails(t, "ready before the bucket is read", live.Ready(), nil, "the live limits have not been read: ")
			close(js.opened)
			testkit.NoError(t, <-readable)
			testkit.NoError(t, live.Ready())
			testkit.Equal(t, len(adopted) == 1, exists, "live limits are in force")
		})
	}
}
