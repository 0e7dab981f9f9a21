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

	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// The classes of errors that a caller may act on.
var (
	ErrNoBucket        = errors.New("the limits bucket is absent")
	ErrNotSet          = errors.New("no such override is set")
	ErrConflict        = errors.New("someone else changed it in the meantime")
	ErrUnknownRevision = errors.New("revision is not known")
)

// Options say which bucket to use.
type Options struct {
	Name      string // such as notifier-limits
	Provision bool   // create the bucket if it is absent; an existing bucket is never altered
	Replicas  int    // of a bucket that is created; [replicas.Auto]: what the cluster allows
	By        string // author of the changes, for the history; "" if unknown
	Logger    *slog.Logger
	Forged    func(n int) // called when messages are read that neither a worker nor an operator wrote; nil: nobody counts them

	// Outdated tells a watcher whether a state is older than the one in force, as after a restore. The watcher ends no override
	// of such a state, since each end makes the state a newer one. nil: no state is.
	Outdated func(context.Context, Snapshot) bool
}

// requestTimeout bounds one request to the server. A request that is not permitted takes that long.
const requestTimeout = 5 * time.Second

// Bucket is a bucket of overrides. Its methods may run at once.
type Bucket struct {
	js jetstream.JetStream
	o  Options

	mu      sync.Mutex
	noted   time.Time         // creation of the bucket that warnOnce has looked at
	foreign map[string]uint64 // key that names no limit -> its revision when that was logged
}

// Open finds the bucket, or creates it if the options allow that. Otherwise the error is an [ErrNoBucket].
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Bucket, error) {
	b := newBucket(js, o)
	if err := b.find(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func newBucket(js jetstream.JetStream, o Options) *Bucket {
	return &Bucket{js: js, o: o, foreign: make(map[string]uint64)}
}

// Every client of NATS derives the stream and the subjects of a bucket from its name in this way.
func (b *Bucket) stream() string { return "KV_" + b.o.Name }
func (b *Bucket) prefix() string { return "$KV." + b.o.Name + "." }

// right is the subject of a request to JetStream about the bucket's stream.
func (b *Bucket) right(request string) string { return "$JS.API." + request + "." + b.stream() }

func (b *Bucket) fail(doing string, err error) error {
	return fmt.Errorf("%s bucket %q: %w", doing, b.o.Name, err)
}

// find makes sure that the bucket exists.
func (b *Bucket) find(ctx context.Context) error {
	found, err := b.look(ctx)
	if errors.Is(err, ErrNoBucket) && b.o.Provision {
		if err := b.create(ctx); err != nil {
			return b.fail("creating", err)
		}
		found, err = b.look(ctx)
	}
	if err != nil {
		return b.fail("looking for", err)
	}
	b.warnOnce(found.CachedInfo())
	return nil
}

func (b *Bucket) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := replicas.Create(ctx, b.o.Replicas, func(count int) error {
		_, err := b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:      b.o.Name,
			Description: "Live overrides of the notifier's limits",
			History:     jetstream.KeyValueMaxHistory,
			Storage:     jetstream.FileStorage,
			Replicas:    count,
		})
		return err
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another instance was faster
		return nil
	}
	if err != nil {
		return b.explain(err, "$JS.API.INFO", b.right("STREAM.CREATE"))
	}
	b.o.Logger.Info("limits bucket is created", "bucket", b.o.Name)
	return nil
}

// look asks the leader of the bucket's stream for its state. The error is an [ErrNoBucket] if there is no bucket.
func (b *Bucket) look(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.js.Stream(ctx, b.stream())
	if err := b.found(err); err != nil {
		return nil, err
	}
	if stream.CachedInfo().Config.MaxMsgsPerSubject < 1 {
		return nil, jetstream.ErrBadBucket
	}
	return stream, nil
}

// found explains the error of a look at the bucket's stream.
func (b *Bucket) found(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return ErrNoBucket
	}
	return b.explain(err, b.right("STREAM.INFO"))
}

// explain adds the likely cause to a timeout: the server does not answer a request that is not permitted.
func (b *Bucket) explain(err error, rights ...string) error {
	switch {
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout):
		return err
	case !b.js.Conn().IsConnected():
		return fmt.Errorf("%w (nats is not connected)", err)
	default:
		return fmt.Errorf("%w (no answer: nats is not well, or the right to publish %s is missing)",
			err, strings.Join(rights, " and "))
	}
}

// warnOnce warns about settings of a bucket that somebody else created, once for each such bucket.
func (b *Bucket) warnOnce(found *jetstream.StreamInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.noted.Equal(found.Created) {
		return
	}
	b.noted = found.Created
	clear(b.foreign)
	if history := found.Config.MaxMsgsPerSubject; history < jetstream.KeyValueMaxHistory {
		b.o.Logger.Warn("limits bucket keeps few changes of each limit, so a rollback does not reach far",
			"bucket", b.o.Name, "history", history, "expected", jetstream.KeyValueMaxHistory)
	}
	if found.Config.MaxAge > 0 {
		b.o.Logger.Warn("limits bucket expires its keys, which workers notice only with the next change",
			"bucket", b.o.Name, "ttl", found.Config.MaxAge)
	}
}

// understands tells whether a change is one of a limit. A foreign key is logged once for each revision that sets it.
func (b *Bucket) understands(c Change) bool {
	if c.foreign && !c.Adopted && !c.Deleted && !c.forged && !c.overwritten {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.foreign[c.key] < c.Revision {
			b.foreign[c.key] = c.Revision
			b.o.Logger.Warn("limits bucket holds a key that is not the name of a limit, it is ignored",
				"bucket", b.o.Name, "key", c.key, "revision", c.Revision)
		}
	}
	return !c.foreign
}
