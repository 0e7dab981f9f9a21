package overrides

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// Errors that a caller may act on.
var (
	ErrNoBucket        = errors.New("the limits bucket is absent")
	ErrNotSet          = errors.New("no such override is set")
	ErrConflict        = errors.New("someone else changed it in the meantime")
	ErrUnknownRevision = errors.New("revision is not known")
)

// Options say which bucket to use.
type Options struct {
	Name      string // such as notifier-limits
	Provision bool   // create the bucket if it is absent, and never alter an existing bucket
	Replicas  int    // of a new bucket; [replicas.Auto]: what the cluster allows
	By        string // author of the changes, for the history; "" if unknown
	Logger    *slog.Logger
	Forged    func(n int) // called for messages that neither a worker nor an operator wrote; may be nil

	// Outdated reports whether a state is older than the limits in force, which happens after a restore. A watcher ends no override of
	// an outdated state, since each end would make the state newer. nil: no state is outdated.
	Outdated func(context.Context, Snapshot) bool
}

// requestTimeout bounds one request to the server. A forbidden request runs into it.
const requestTimeout = 5 * time.Second

// Bucket is a bucket of overrides. Its methods may be called concurrently.
type Bucket struct {
	source source
	o      Options

	mu      sync.Mutex
	noted   time.Time         // creation time of the bucket that warnOnce last checked
	foreign map[string]uint64 // key that is ignored -> logged revision
}

// Open opens the bucket. If the bucket is absent, Open creates it if the options allow that, and otherwise returns [ErrNoBucket].
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Bucket, error) {
	b := newBucket(js, o)
	if err := b.find(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func newBucket(js jetstream.JetStream, o Options) *Bucket {
	return &Bucket{source: source{js, o.Name}, o: o, foreign: make(map[string]uint64)}
}

// source is the stream of a bucket. It reads and never writes.
type source struct {
	js   jetstream.JetStream
	name string
}

// Every NATS client derives the stream and the subjects of a bucket from its name like this.
func (s source) stream() string { return "KV_" + s.name }
func (s source) prefix() string { return "$KV." + s.name + "." }

// right is the subject of a request to JetStream about the bucket's stream.
func (s source) right(request string) string { return "$JS.API." + request + "." + s.stream() }

func (s source) fail(doing string, err error) error {
	return fmt.Errorf("%s bucket %q: %w", doing, s.name, err)
}

func (b *Bucket) find(ctx context.Context) error {
	found, err := b.source.look(ctx)
	if errors.Is(err, ErrNoBucket) && b.o.Provision {
		if b.existed() && !await.For(ctx, replicas.DeletionTime) {
			return context.Cause(ctx)
		}
		if err := b.create(ctx); err != nil {
			return err
		}
		found, err = b.source.look(ctx)
	}
	if err != nil {
		return b.source.fail("looking for", err)
	}
	b.warnOnce(found.CachedInfo())
	return nil
}

func (b *Bucket) existed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.noted.IsZero()
}

func (b *Bucket) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := replicas.Create(ctx, b.o.Replicas, func(count int) error {
		_, err := b.source.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:      b.o.Name,
			Description: "Live overrides of the notifier's limits",
			History:     jetstream.KeyValueMaxHistory,
			Storage:     jetstream.FileStorage,
			Replicas:    count,
		})
		return err
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another instance has just created it
		return nil
	}
	if err != nil {
		return b.source.fail("creating", b.source.explain(err, "$JS.API.INFO", b.source.right("STREAM.CREATE")))
	}
	b.o.Logger.Info("created the limits bucket", "bucket", b.o.Name)
	return nil
}

// look asks the leader of the bucket's stream for its state. The error is an [ErrNoBucket] if there is no bucket.
func (s source) look(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.stream())
	if err := s.found(err); err != nil {
		return nil, err
	}
	if stream.CachedInfo().Config.MaxMsgsPerSubject < 1 {
		return nil, jetstream.ErrBadBucket
	}
	return stream, nil
}

func (s source) found(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return ErrNoBucket
	}
	return s.explain(err, s.right("STREAM.INFO"))
}

// explain adds the likely cause to a timeout: the server does not answer a forbidden request.
func (s source) explain(err error, rights ...string) error {
	switch {
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout):
		return err
	case !s.js.Conn().IsConnected():
		return fmt.Errorf("%w (nats is not connected)", err)
	default:
		return fmt.Errorf("%w (no answer: nats is unhealthy or the right to publish %s is missing)",
			err, strings.Join(rights, " and "))
	}
}

// warnOnce warns once per bucket about settings that differ from the settings of a new bucket.
func (b *Bucket) warnOnce(found *jetstream.StreamInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.noted.Equal(found.Created) {
		return
	}
	b.noted = found.Created
	clear(b.foreign)
	if history := found.Config.MaxMsgsPerSubject; history < jetstream.KeyValueMaxHistory {
		b.o.Logger.Warn("limits bucket keeps too little history for a rollback to older changes",
			"bucket", b.o.Name, "history", history, "expected", jetstream.KeyValueMaxHistory)
	}
	if found.Config.MaxAge > 0 {
		b.o.Logger.Warn("limits bucket expires its keys: workers notice an expiry only with the next change",
			"bucket", b.o.Name, "ttl", found.Config.MaxAge)
	}
}

func (b *Bucket) isNew(c Change) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.foreign[c.stored.key] >= c.Revision {
		return false
	}
	b.foreign[c.stored.key] = c.Revision
	return true
}

// understands reports whether a change is about a limit. It logs each revision of a foreign key once.
func (b *Bucket) understands(c Change) bool {
	if c.stored.foreign && !c.Adopted() && !c.Deleted && !c.stored.forged && !c.stored.overwritten && b.isNew(c) {
		b.o.Logger.Warn("ignoring a key of the limits bucket that does not name a limit",
			"bucket", b.o.Name, "key", c.stored.key, "revision", c.Revision)
	}
	return !c.stored.foreign
}
